"""POST /v1/rerank with a cross-encoder, against a real gunicorn: the rows of http.md section 16 for this route."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import CrossEncoder
from ffwd_ort.errors import RefusedError
from ffwd_ort_conformance.tiny import TEXTS, long_text
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from tests.server.test_embeddings import problems
from tests.serving import Reply, Server

DOCUMENTS = [*TEXTS, "the ferry sails", "stone and sand"]
ASK: dict[str, Any] = {"model": "ce", "query": "when does the ferry sail?", "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def ce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("ce") / "ce", "bert")


@pytest.fixture(scope="module")
def server(ce: Path, tiny: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ["--reranker-model", f"ce={ce}", "--model", f"tiny={tiny}", "--cache-dir", str(cache_dir)]
    server = Server(arguments, tmp_path_factory.mktemp("rerank") / "server.log")
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def scores(ce: Path, cache_dir: Path) -> np.ndarray:
    with CrossEncoder(ce, cache_dir=cache_dir) as encoder:
        assert [index for index, _ in encoder.rank(ASK["query"], DOCUMENTS)] == np.argsort(
            -encoder.score(ASK["query"], DOCUMENTS), kind="stable"
        ).tolist()
        return encoder.score(ASK["query"], DOCUMENTS)


def rerank(server: Server, path: str = "/v1/rerank", **changes: Any) -> Reply:
    return server.post({**ASK, **changes}, path)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_back_by_descending_score(server: Server, scores: np.ndarray, path: str) -> None:
    reply = rerank(server, path)
    assert reply.status == 200, reply.body
    body = reply.json()
    order = np.argsort(-scores, kind="stable")
    assert [result["index"] for result in body["results"]] == order.tolist()
    found = np.array([result["relevance_score"] for result in body["results"]])
    assert np.abs(found - scores[order]).max() < 2e-5
    assert (body["object"], body["model"], body["id"]) == ("list", "ce", reply.headers["x-request-id"])
    usage = body["usage"]
    assert usage["query_tokens"] + usage["document_tokens"] == usage["total_tokens"] == usage["prompt_tokens"]
    alone = server.post({"model": "tiny", "input": ASK["query"]}).json()["usage"]["prompt_tokens"]
    assert usage["query_tokens"] == alone * len(DOCUMENTS), "the query with its specials, once a pair"


def test_sigmoids_keep_the_order_of_the_logits(server: Server, scores: np.ndarray) -> None:
    raw, soft = rerank(server).json()["results"], rerank(server, raw_scores=False).json()["results"]
    assert [r["index"] for r in raw] == [r["index"] for r in soft]
    expected = 1 / (1 + np.exp(-np.array([r["relevance_score"] for r in raw])))
    assert np.abs(np.array([r["relevance_score"] for r in soft]) - expected).max() < 1e-6


def test_top_n_and_top_k_cut_the_list_and_more_than_there_are_means_all(server: Server) -> None:
    assert len(rerank(server, top_n=2.0).json()["results"]) == 2
    assert len(rerank(server, top_k=3).json()["results"]) == 3
    assert len(rerank(server, top_k=5000).json()["results"]) == len(DOCUMENTS)


def test_documents_are_echoed_as_they_were_sent(server: Server) -> None:
    sent = ["a tide", {"text": "b boat", "id": 9}]
    results = rerank(server, documents=sent, return_documents=True).json()["results"]
    assert {r["index"]: r["document"] for r in results} == dict(enumerate(sent))


def test_equal_documents_have_equal_scores_and_keep_their_order(server: Server) -> None:
    results = rerank(server, documents=["the tide", "kelp", "the tide"]).json()["results"]
    tied = [r for r in results if r["index"] != 1]
    assert tied[0]["relevance_score"] == tied[1]["relevance_score"] and [r["index"] for r in tied] == [0, 2]


REFUSED: list[tuple[Any, list[tuple[str, str]]]] = [
    ({}, [("missing", "query"), ("missing", "documents")]),
    (ASK | {"model": "tiny"}, [("enum", "model")]),
    *[(ASK | {"top_n": n}, [("value_error.range", "top_n")]) for n in (0, -1)],
    *[(ASK | {"top_n": n}, [("type_error.integer", "top_n")]) for n in (True, None, "2")],
    (ASK | {"top_n": 2, "top_k": 2}, [("value_error.conflict", "top_n")]),
    (ASK | {"top_k": 0}, [("value_error.range", "top_k")]),
    (ASK | {"documents": ["x"] * 1001}, [("value_error.list.max_items", "documents")]),
    (ASK | {"documents": []}, [("value_error.list.min_items", "documents")]),
    (ASK | {"documents": "x"}, [("type_error.array", "documents")]),
    (ASK | {"documents": [{"title": "x"}]}, [("missing", "documents.0.text")]),
    (ASK | {"documents": [{"text": ""}]}, [("value_error.empty", "documents.0.text")]),
    (ASK | {"documents": [{"text": 3}]}, [("type_error.string", "documents.0.text")]),
    (ASK | {"documents": [7, "ok", ""]}, [("type_error.string", "documents.0"), ("value_error.empty", "documents.2")]),
    *[(ASK | {"return_documents": v}, [("type_error.bool", "return_documents")]) for v in ("yes", 1)],
    (ASK | {"query": ""}, [("value_error.empty", "query")]),
    (ASK | {"query": 5}, [("type_error.string", "query")]),
    (ASK | {"query": long_text(140)}, [("value_error.context_length", "query")]),
    (ASK | {"query": long_text(140), "truncate": True}, [("value_error.context_length", "query")]),
    (ASK | {"documents": ["ok", long_text(140)]}, [("value_error.context_length", "documents.1")]),
    (ASK | {"max_tokens_per_doc": 0}, [("value_error.range", "max_tokens_per_doc")]),
    (ASK | {"raw_scores": None}, [("type_error.bool", "raw_scores")]),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_bad_body_is_refused_with_every_problem_in_order(
    server: Server, body: Any, expected: list[tuple[str, str]]
) -> None:
    assert problems(server.post(body, "/v1/rerank")) == expected


def test_only_the_document_is_ever_cut(server: Server) -> None:
    long = [long_text(600), "short"]
    cut = rerank(server, documents=long, truncate=True)
    assert cut.headers["x-truncated"] == "1"
    few = rerank(server, documents=long, max_tokens_per_doc=20)
    assert few.status == 200 and few.json()["usage"]["total_tokens"] < cut.json()["usage"]["total_tokens"]
    most = rerank(server, documents=long[:1], max_tokens_per_doc=100_000).json()["usage"]
    assert most["total_tokens"] == 128


def test_labels_say_what_they_serve(server: Server) -> None:
    entry = server.get("/v1/models/ce").json()
    assert (entry["kind"], entry["scorer"]) == ("cross_encoder", "logit") and "/v1/rerank" in entry["routes"]
    assert (
        server.post({"model": "ce", "input": "x"}).json()["error"]["message"]
        == "model is not available on this endpoint"
    )


def test_a_checkpoint_under_a_flag_that_its_kind_cannot_serve_is_refused(ce: Path, tiny: Path, cache_dir: Path) -> None:
    from ffwd_ort import SentenceEncoder

    with pytest.raises(RefusedError, match="--model model: ce is of kind cross_encoder"):
        SentenceEncoder(ce, cache_dir=cache_dir)
    with pytest.raises(RefusedError, match="--reranker-model model: tiny-bert is of kind embedding"):
        CrossEncoder(tiny, cache_dir=cache_dir)
