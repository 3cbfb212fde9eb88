"""Requests that a machine thinks up from the document: no 5xx, no status that it does not name, no hang, no leak.

`python -m tests.server.test_schemathesis 2000` runs as many requests a server of its own.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ffwd_ort.server.openapi import LABEL, document
from ffwd_ort_conformance.tiny import write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Server

SECONDS_TO_ANSWER = 10.0
LABELS = ("m", "ctx", "late", "ce")
FEW = 300


def start(place: Path, cache: Path) -> Server:
    """Start a server with a label of every kind."""
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    arguments = [
        *("--model", f"m={write_bert(place / 'm')}:rerank=cosine"),
        *("--contextual-model", f"ctx={write_decoder(place / 'ctx', pplx)}"),
        *("--late-model", f"late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ce={write_cross_encoder(place / 'ce', 'bert')}"),
        *("--cache-dir", str(cache)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    return server


def explore(server: Server, requests: int) -> Counter[tuple[str, int]]:
    """Send about so many generated requests over all routes; return how often each answer came."""
    import schemathesis

    # Random labels would be refused by name, every one of them.
    named = json.dumps(document()).replace(json.dumps(LABEL), json.dumps({"type": "string", "enum": [*LABELS, "no"]}))
    schema = schemathesis.openapi.from_dict(json.loads(named))
    operations = [result.ok() for result in schema.get_all_operations()]
    seen: Counter[tuple[str, int]] = Counter()
    each = max(1, requests // sum(operation.method == "post" for operation in operations))
    for operation in operations:

        @seed(20261130)
        @settings(
            max_examples=each,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send(case: schemathesis.Case) -> None:
            reply = case.call(base_url=server.url, timeout=SECONDS_TO_ANSWER)
            seen[case.operation.label, reply.status_code] += 1
            known = case.operation.definition.raw["responses"]
            assert reply.status_code < 500, f"{case.as_curl_command()}: {reply.status_code}"
            assert str(reply.status_code) in known or reply.status_code == 404, case.as_curl_command()

        send()
    return seen


def resident(server: Server) -> int:
    """Return the worker's resident MiB."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return int(Path(f"/proc/{children.split()[0]}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.filterwarnings("ignore")
def test_generated_requests_meet_no_5xx_and_no_status_that_is_not_documented(tmp_path: Path, cache_dir: Path) -> None:
    server = start(tmp_path, cache_dir)
    try:
        seen = explore(server, FEW)
    finally:
        server.stop()
    assert sum(seen.values()) > FEW * 0.8
    answered = {label for label, status in seen if status == 200}
    assert {"POST /v1/embeddings", "POST /embed", "GET /v1/models", "GET /health"} <= answered


def main(requests: int) -> None:
    """Run many, and say what came and how the memory went."""
    with tempfile.TemporaryDirectory() as scratch:
        server = start(Path(scratch), Path(scratch) / "cache")
        try:
            explore(server, 300)
            before = resident(server)
            seen = explore(server, requests)
            after = resident(server)
        finally:
            server.stop()
    for (label, status), count in sorted(seen.items()):
        print(f"{label:<40} {status} {count}")
    print(f"{sum(seen.values())} requests, none 5xx or undocumented; {before} MiB before, {after} MiB after")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
