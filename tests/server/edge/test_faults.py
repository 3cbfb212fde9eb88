"""Rows E86 to E88: what fails at run time, over real HTTP. E86's checkpoint is in test_lifecycle.py."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ffwd_ort.cache import BundleCache
from tests.server.edge.faulty import PATH, POISON, SLOW_SECONDS
from tests.serving import Server


@pytest.fixture(params=["raise", "slow"])
def faulty(request: pytest.FixtureRequest, tiny: Path, cache_dir: Path, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    bundle = BundleCache(cache_dir).open(str(tiny)).path
    how = str(request.param)
    options = ["--request-timeout", "0.5"] if how == "slow" else []
    server = Server([str(bundle), how, *options], tmp_path / "log", module="tests.server.edge.faulty")
    server.wait_ready()
    yield how, server
    server.stop()


def test_e87_e88_faults_are_answered_without_a_trace_and_neighbours_get_theirs(faulty: tuple[str, Server]) -> None:
    how, server = faulty
    if how == "raise":
        ids = server.post({"input": "the"}, "/v1/tokenize").json()["data"][0]["ids"]
        bad = next(
            word for word in WORDS if POISON in server.post({"input": word}, "/v1/tokenize").json()["data"][0]["ids"]
        )
        assert POISON not in ids
        with ThreadPoolExecutor(6) as pool:
            asked = ["the", bad, "the the"] * 4
            replies = list(pool.map(lambda text: server.post({"input": text}), asked))
        for text, reply in zip(asked, replies, strict=True):
            assert reply.status == (500 if text == bad else 200)
            assert PATH.encode() not in reply.body and b"Traceback" not in reply.body
        failed = replies[1]
        assert (failed.code, failed.json()["error"]["message"]) == ("inference_failed", "embedding failed")
        return
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(server.post, {"input": "tide"})
        time.sleep(SLOW_SECONDS / 5)  # its step runs now, for longer than the others may wait
        late = list(pool.map(lambda i: server.post({"input": f"tide {'x ' * i}"}), range(5)))
    assert first.result().status == 200, "begun work is finished"
    assert {(reply.status, reply.code, reply.headers["retry-after"]) for reply in late} == {
        (503, "deadline_exceeded", "1")
    }
    assert late[0].json()["error"]["message"] == "request deadline exceeded"


WORDS = ["the", "a", "of", "and", "to", "in", "is", "it", "tide", "water", "low", "high", "falls", "rises"]
