"""Bodies at the limit of 64 MiB are answered without the memory that counting all their tokens would take (15 GB)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffwd_ort.server.errors import MAX_BODY_BYTES
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_colbert
from tests.server.test_embeddings import problems
from tests.serving import Server

WORDS = "tide " * (MAX_BODY_BYTES // 5)
MOST_MIB = 700  # above what the worker had: the body, its parsed texts, and some


@pytest.fixture(scope="module")
def server(tiny: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Labels: tiny, and one of every kind that takes 128 tokens."""
    folder = tmp_path_factory.mktemp("huge")
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    arguments = [
        *("--model", f"tiny={tiny}:rerank=cosine"),
        *("--model", f"short={tiny}:rerank=cosine:max_seq=128"),
        *("--reranker-model", f"ce={write_cross_encoder(folder / 'ce', 'bert')}:max_seq=128"),
        *("--late-model", f"late={write_colbert(folder / 'late')}:max_seq=128"),
        *("--contextual-model", f"ctx={write_decoder(folder / 'pplx', pplx)}:max_seq=128"),
        *("--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, folder / "server.log")
    server.wait_ready()
    yield server
    server.stop()


def memory(server: Server, field: str) -> int:
    """Read MiB of the worker, gunicorn's only child."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    status = Path(f"/proc/{children.split()[0]}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) // 1024


def one_text() -> dict[str, object]:
    return {"model": "tiny", "input": WORDS[: MAX_BODY_BYTES - 100]}


def many_texts() -> dict[str, object]:
    each = MAX_BODY_BYTES // 512 - 9
    return {"model": "tiny", "input": [WORDS[:each]] * 512}


def documents() -> dict[str, object]:
    each = MAX_BODY_BYTES // 1000 - 8
    return {"model": "tiny", "query": "tide", "documents": [WORDS[:each]] * 1000}


TOO_LONG = "value_error.context_length"
CASES: dict[str, tuple[Callable[[], dict[str, object]], str, str, str]] = {
    "one text": (one_text, "/v1/embeddings", TOO_LONG, "input"),
    "512 texts": (many_texts, "/v1/embeddings", TOO_LONG, "input.0"),
    "1000 documents": (documents, "/v1/rerank", TOO_LONG, "documents.0"),
    "one text to tokenize": (one_text, "/v1/tokenize", TOO_LONG, "input"),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_of_64_mib_are_refused_within_bounded_memory(server: Server, name: str) -> None:
    make, path, code, place = CASES[name]
    before = memory(server, "VmRSS")
    reply = server.request("POST", path, json.dumps(make()).encode())
    found = problems(reply)
    assert found[0] == (code, place)
    assert "counted at least " in reply.json()["detail"][0]["msg"]
    assert memory(server, "VmHWM") - before < MOST_MIB


def test_64_mib_of_brackets_are_no_json(server: Server) -> None:
    assert problems(server.request("POST", "/v1/embeddings", b"[" * MAX_BODY_BYTES)) == [("json_invalid", "")]


def test_a_text_of_64_mib_is_cut_as_a_short_one_would_be(server: Server) -> None:
    cut = server.request("POST", "/v1/embeddings", json.dumps(one_text() | {"truncate": True}).encode())
    short = server.post({"model": "tiny", "input": WORDS[:5000], "truncate": True})
    assert cut.status == short.status == 200 and cut.headers["x-truncated"] == "1"
    assert cut.json()["data"] == short.json()["data"] and cut.json()["usage"] == short.json()["usage"]


LONG = WORDS[:10_400]  # far above a cap of 128 tokens, which is seen from a part of it
MANY: dict[str, tuple[str, dict[str, object], str]] = {
    "embeddings": ("/v1/embeddings", {"model": "short", "input": [LONG] * 200}, "data"),
    "cosine": ("/v1/rerank", {"model": "short", "query": "tide", "documents": [LONG] * 500}, "results"),
    "pairs": ("/v1/rerank", {"model": "ce", "query": "tide", "documents": [LONG] * 500}, "results"),
    "maxsim": ("/v1/rerank", {"model": "late", "query": "tide", "documents": [LONG] * 500}, "results"),
    "contextual": ("/v1/contextualizedembeddings", {"model": "ctx", "input": [[LONG]] * 200}, "data"),
}


@pytest.mark.parametrize("name", MANY)
def test_every_long_text_that_is_cut_is_answered(server: Server, name: str) -> None:
    path, body, key = MANY[name]
    reply = server.request("POST", path, json.dumps(body | {"truncate": True}).encode())
    assert reply.status == 200, reply.body[:300]
    texts = body.get("input") or body["documents"]
    assert isinstance(texts, list)
    assert len(reply.json()[key]) == len(texts) == int(reply.headers["x-truncated"])
