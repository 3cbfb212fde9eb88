"""The C server's flags and answers: a client of it, and its command line, need not change."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Server

KEY = {"Authorization": "Bearer sesame", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("drop-in")
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    qwen = TinyDecoder(head_norms=True, append_eos=True, prompts=(("query", "Query:"),))
    arguments = [
        *("--model", f"pplx-embed-v1-0.6b={write_decoder(place / 'pplx', pplx)}:api=pplx:min_dim=4"),
        *("--model", f"Qwen3-Embedding-0.6B={write_decoder(place / 'qwen', qwen)}:min_dim=32:query=Find\\n"),
        *("--contextual-model", f"pplx-embed-context-v1-0.6b={place / 'pplx'}:api=pplx"),
        *("--late-model", f"pplx-embed-v1-late-0.6b={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ms-marco={write_cross_encoder(place / 'ce', 'bert')}"),
        *("--host", "127.0.0.1", "-t", "2", "-b", "32", "--max-batch-tokens", "4096", "--batch-wait-us", "0"),
        *("--max-request-tokens", "120000", "--max-concurrent-requests", "64", "--rows", "64", "--auto-truncate"),
        *("--api-key", "sesame", "-v", "--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    yield server
    server.stop()


def ask(server: Server, path: str, body: dict[str, object]) -> dict[str, object]:
    import json

    reply = server.request("POST", path, json.dumps(body).encode(), KEY)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json" and "infer;dur=" in reply.headers["server-timing"]
    answer: dict[str, object] = reply.json()
    return answer


def test_embeddings_have_the_c_servers_fields_and_defaults(server: Server) -> None:
    pplx = ask(server, "/v1/embeddings", {"model": "pplx-embed-v1-0.6b", "input": ["scientific curiosity"]})
    assert set(pplx) == {"object", "data", "model", "usage"} and pplx["model"] == "pplx-embed-v1-0.6b"
    (entry,) = pplx["data"]  # type: ignore[misc]
    assert set(entry) == {"object", "index", "embedding"} and len(base64.b64decode(entry["embedding"])) == 16
    qwen = ask(server, "/v1/embeddings", {"model": "Qwen3-Embedding-0.6B", "input": "a", "text_type": "query"})
    assert isinstance(qwen["data"][0]["embedding"], list)  # type: ignore[index]
    assert set(qwen["usage"]) == {"prompt_tokens", "total_tokens"}  # type: ignore[call-overload]


def test_contextual_documents_and_reranking_have_the_c_servers_fields(server: Server) -> None:
    model = "pplx-embed-context-v1-0.6b"
    chunks = ask(server, "/v1/contextualizedembeddings", {"model": model, "input": [["one", "two"], ["three"]]})
    assert [[set(c) for c in d["data"]] for d in chunks["data"]] == [  # type: ignore[attr-defined]
        [{"object", "index", "embedding"}] * 2,
        [{"object", "index", "embedding"}],
    ]
    documents = ["Scientists explore from curiosity.", "SQLite stores data."]
    for label in ("pplx-embed-v1-late-0.6b", "ms-marco"):
        ranked = ask(server, "/v1/rerank", {"model": label, "query": "scientific curiosity", "documents": documents})
        assert {"object", "model", "results", "usage"} <= set(ranked)
        assert all({"index", "relevance_score"} == set(result) for result in ranked["results"])  # type: ignore[attr-defined]
        assert {"query_tokens", "document_tokens", "total_tokens"} <= set(ranked["usage"])  # type: ignore[call-overload]


def test_a_bad_body_has_the_c_servers_list_of_problems(server: Server) -> None:
    reply = server.request("POST", "/v1/embeddings", b'{"model":"pplx-embed-v1-0.6b","input":["",1]}', KEY)
    assert reply.status == 422
    assert reply.json()["detail"] == [
        {"loc": ["body", "input", 0], "msg": "input item must not be empty", "type": "value_error.empty"},
        {"loc": ["body", "input", 1], "msg": "input item must be a string", "type": "type_error.string"},
    ]
    missing = server.request("POST", "/v1/embeddings", b"{}")
    assert (missing.status, missing.json()["error"]["message"]) == (401, "missing or invalid bearer token")
