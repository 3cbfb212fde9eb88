"""Requests that a machine thinks up from the document (benchmarks/schemathesis_run.py sends as many as one likes)."""

from pathlib import Path

from tests.contract import load, operations
from tests.fuzzing import SECONDS_TO_ANSWER, explore, start_fleet

FEW = 330


def test_generated_requests_are_answered_as_the_document_says(tmp_path: Path, cache_dir: Path) -> None:
    server = start_fleet(tmp_path, cache_dir)
    try:
        report = explore(server, FEW)
        assert server.get("/ready").status == 200
    finally:
        server.stop()
    assert report.faults == []
    assert report.count >= 250 and report.slowest < SECONDS_TO_ANSWER
    served = {label for label, status in report.statuses if status == 200}
    refused = {f"POST {path}" for path in ("/v1/chat/completions", "/v1/completions")}
    assert served == {f"{method.upper()} {path}" for path, method in operations(load())} - refused
    assert len(report.problems) >= 8, "requests fail for many reasons, not for the same one"
