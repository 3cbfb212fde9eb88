"""POST /v1/rerank by MaxSim and by cosine, against a real gunicorn: the rows of http.md section 16 for these labels."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import LateInteractionEncoder, SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, long_text, write_bert
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from ffwd_ort_conformance.tiny_late import WIDTH, write_colbert, write_pplx_late
from tests.server.test_embeddings import problems
from tests.serving import Reply, Server

DOCUMENTS = [*TEXTS, "the ferry sails", "stone and sand"]
ASK: dict[str, Any] = {"query": "when does the ferry sail?", "documents": DOCUMENTS}
RERANK_PATHS = ["/v1/rerank", "/v2/rerank", "/rerank"]


@pytest.fixture(scope="module")
def pplx_late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pplx-late recipe. In its vocabulary " tide" is one token, and so is every other word after a space."""
    return write_pplx_late(tmp_path_factory.mktemp("late") / "pplx-late")


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colbert(tmp_path_factory.mktemp("late") / "colbert")


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder whose prompts differ in length and take no part in pooling."""
    prompts = (("query", "the tide: "), ("document", "a boat in the bay: "))
    return write_bert(tmp_path_factory.mktemp("late") / "prompted", TinyBert(prompts=prompts, include_prompt=False))


@pytest.fixture(scope="module")
def server(
    pplx_late: Path,
    colbert: Path,
    tiny: Path,
    prompted: Path,
    cache_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """Labels: late and colbert; cosr (an embedder with prompts that also reranks); tiny, which does not."""
    server = Server(
        [
            *("--late-model", f"late={pplx_late}"),
            *("--late-model", f"colbert={colbert}"),
            *("--model", f"cosr={prompted}:rerank=cosine"),
            *("--model", f"tiny={tiny}"),
            *("--cache-dir", str(cache_dir)),
        ],
        tmp_path_factory.mktemp("late") / "server.log",
    )
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def encoder(pplx_late: Path, cache_dir: Path) -> Iterator[LateInteractionEncoder]:
    with LateInteractionEncoder(pplx_late, cache_dir=cache_dir) as encoder:
        yield encoder


def rerank(server: Server, model: str, **changes: Any) -> Reply:
    return server.post({"model": model, **ASK, **changes}, "/v1/rerank")


def scores(reply: Reply) -> np.ndarray:
    """Take the scores out of an answer, by document, and check that they came in descending order."""
    assert reply.status == 200, reply.body
    results = reply.json()["results"]
    listed = [result["relevance_score"] for result in results]
    assert listed == sorted(listed, reverse=True)
    by_document = {result["index"]: result["relevance_score"] for result in results}
    return np.array([by_document[index] for index in sorted(by_document)])


def close(reply: Reply, expected: np.ndarray) -> bool:
    """Tell whether an answer has these scores: sums over a query's tokens, in float32."""
    return bool((np.abs(scores(reply) - expected) <= 1e-5 * np.maximum(1, np.abs(expected))).all())


def message(reply: Reply) -> str:
    assert reply.status == 422
    return str(reply.json()["error"]["message"])


@pytest.mark.parametrize("model", ["late", "colbert"])
@pytest.mark.parametrize("path", RERANK_PATHS)
def test_late_labels_score_by_maxsim(
    server: Server, pplx_late: Path, colbert: Path, cache_dir: Path, model: str, path: str
) -> None:
    with LateInteractionEncoder({"late": pplx_late, "colbert": colbert}[model], cache_dir=cache_dir) as encoder:
        expected = encoder.score(ASK["query"], DOCUMENTS)
        order = [index for index, _ in encoder.rank(ASK["query"], DOCUMENTS)]
    reply = server.post({"model": model, **ASK}, path)
    assert close(reply, expected)
    assert [result["index"] for result in reply.json()["results"]] == order
    assert (reply.json()["model"], reply.json()["id"]) == (model, reply.headers["x-request-id"])


def test_cosine_labels_score_by_the_cosine_of_prompted_vectors(server: Server, prompted: Path, cache_dir: Path) -> None:
    with SentenceEncoder(prompted, cache_dir=cache_dir) as encoder:
        expected = encoder.encode(DOCUMENTS, text_type="document") @ encoder.encode(ASK["query"], text_type="query")
    assert close(rerank(server, "cosr"), expected)
    twice = rerank(server, "cosr", query="tide", documents=["tide"])
    assert -1 <= twice.json()["results"][0]["relevance_score"] < 0.999, "the two sides have prompts of their own"


def test_a_late_label_makes_no_embeddings(server: Server) -> None:
    reply = server.post({"model": "late", "input": "x"})
    assert problems(reply) == [("enum", "model")] and message(reply) == "model is not available on this endpoint"


def test_an_embedder_reranks_only_where_it_was_told_to(server: Server) -> None:
    assert problems(rerank(server, "tiny")) == [("enum", "model")]
    assert message(rerank(server, "tiny")) == "model is not available on this endpoint"
    assert problems(server.post(ASK, "/v1/rerank")) == [("missing", "model")], "three labels would do"


LONG = " tide" * 100 + " kelp" * 60
REFUSED: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
    ("late", {"query": ""}, [("value_error.empty", "query")]),
    ("late", {"query": 5}, [("type_error.string", "query")]),
    ("late", {"query": LONG}, [("value_error.context_length", "query")]),
    ("cosr", {"query": long_text(140)}, [("value_error.context_length", "query")]),
    (
        "late",
        {"query": LONG, "documents": ["ok", LONG, "ok", LONG]},
        [("value_error.context_length", place) for place in ("query", "documents.1", "documents.3")],
    ),
    ("cosr", {"documents": ["ok", long_text(140)]}, [("value_error.context_length", "documents.1")]),
    ("late", {"raw_scores": False}, [("extra_fields", "raw_scores")]),
    ("cosr", {"raw_scores": False}, [("extra_fields", "raw_scores")]),
    ("late", {"raw_scores": 1}, [("type_error.bool", "raw_scores")]),
    ("late", {"max_tokens_per_doc": 0}, [("value_error.range", "max_tokens_per_doc")]),
    ("cosr", {"documents": ["x"] * 1001}, [("value_error.list.max_items", "documents")]),
]


@pytest.mark.parametrize(("model", "changes", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_bad_body_is_refused_with_every_problem_in_order(
    server: Server, model: str, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert problems(rerank(server, model, **changes)) == expected


def test_messages_are_those_of_the_contract(server: Server) -> None:
    bound = "(counted 161; bound by model positions)"
    assert message(rerank(server, "late", query=LONG)) == f"query exceeds 128 token limit {bound}"
    assert message(rerank(server, "late", documents=[LONG])) == f"document exceeds 128 token limit {bound}"
    only = "raw_scores=false is only supported for cross-encoder models"
    assert message(rerank(server, "late", raw_scores=False)) == only
    assert scores(rerank(server, "late", raw_scores=True)).tolist() == scores(rerank(server, "late")).tolist()


def test_a_query_is_padded_to_32_tokens_and_punctuation_alone_is_a_document(server: Server) -> None:
    reply = rerank(server, "late", query="kelp", documents=["!", " tide" * 5, " kelp" * 7])
    assert np.isfinite(scores(reply)).all() and len(reply.json()["results"]) == 3
    usage = {"query_tokens": 32, "document_tokens": 2 + 6 + 8, "total_tokens": 48, "prompt_tokens": 48}
    assert reply.json()["usage"] == usage, "each document has a [D], the query 32 tokens with its mask tokens"
    longer = rerank(server, "late", query=" kelp" * 40, documents=["!"]).json()["usage"]
    assert longer["query_tokens"] == 41, "longer queries are kept whole"


def test_a_cosine_labels_usage_counts_each_text_once_with_its_prompt(server: Server) -> None:
    def count(texts: list[str], text_type: str) -> int:
        body = {"model": "cosr", "input": texts, "text_type": text_type}
        return int(server.post(body).json()["usage"]["prompt_tokens"])

    query, documents = count([ASK["query"]], "query"), count(DOCUMENTS, "document")
    usage = rerank(server, "cosr", top_n=1).json()["usage"]
    assert (usage["query_tokens"], usage["document_tokens"]) == (query, documents)
    assert usage["total_tokens"] == usage["prompt_tokens"] == query + documents


@pytest.mark.parametrize("model", ["late", "cosr"])
def test_equal_documents_have_equal_scores_and_keep_their_order(server: Server, model: str) -> None:
    for query in TEXTS:
        results = rerank(server, model, query=query, documents=["kelp", *["the tide"] * 6]).json()["results"]
        tied = [result for result in results if result["index"]]
        assert len({result["relevance_score"] for result in tied}) == 1, query
        assert [result["index"] for result in tied] == list(range(1, 7))


# --- truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "kept"), [("right", " tide" * 100 + " kelp" * 27), ("left", " tide" * 67 + " kelp" * 60)]
)
def test_texts_are_cut_to_the_cap_and_keep_their_markers(
    server: Server, encoder: LateInteractionEncoder, direction: str, kept: str
) -> None:
    reply = rerank(server, "late", query=LONG, documents=["kelp", LONG], truncate=True, truncation_direction=direction)
    assert close(reply, encoder.score(kept, ["kelp", kept]))
    assert reply.headers["x-truncated"] == "2"
    alone = rerank(server, "late", documents=["kelp"]).json()["usage"]["document_tokens"]
    usage = reply.json()["usage"]
    assert (usage["query_tokens"], usage["document_tokens"]) == (128, alone + 128)


def test_documents_are_cut_to_the_tokens_asked_for_and_one_of_their_own_stays(
    server: Server, encoder: LateInteractionEncoder
) -> None:
    documents = [" tide" * 20 + " kelp" * 20, " ferry" * 3]
    reply = rerank(server, "late", documents=documents, max_tokens_per_doc=25)
    assert close(reply, encoder.score(ASK["query"], [" tide" * 20 + " kelp" * 4, " ferry" * 3]))
    assert (reply.headers["x-truncated"], reply.json()["usage"]["document_tokens"]) == ("1", 25 + 4)
    least = rerank(server, "late", documents=documents, max_tokens_per_doc=1)
    assert close(least, encoder.score(ASK["query"], [" tide", " ferry"]))
    most = rerank(server, "late", documents=[LONG], max_tokens_per_doc=100_000)
    assert most.json()["usage"]["document_tokens"] == 128
    few = rerank(server, "cosr", documents=[long_text(600), "kelp"], max_tokens_per_doc=20).json()["usage"]
    assert few["document_tokens"] == 20 + 9, "[CLS] a boat in the bay : kelp [SEP]"


# --- flags, and what labels say --------------------------------------------------------------------


def test_the_query_takes_a_row_where_texts_are_encoded_apart(
    serve: Callable[..., Server], pplx_late: Path, tiny: Path, tmp_path: Path
) -> None:
    pairs = write_cross_encoder(tmp_path / "ce", "bert")
    labels = ("--late-model", f"late={pplx_late}", "--model", f"cosr={tiny}:rerank=cosine", "--reranker-model")
    server = serve(*labels, f"ce={pairs}", "--rows", "3", "--max-request-tokens", "60", "--auto-truncate")
    for model in ("late", "cosr"):
        assert len(scores(rerank(server, model, documents=["x"] * 2))) == 2
        most = "documents must contain at most 2 items (bound by --rows 3, query included)"
        assert message(rerank(server, model, documents=["x"] * 3)) == most
    assert len(scores(rerank(server, "ce", query="x", documents=["x"] * 3))) == 3
    most = "documents must contain at most 3 items (bound by --rows 3)"
    assert message(rerank(server, "ce", documents=["x"] * 4)) == most
    reply = rerank(server, "late", query="x", documents=[" tide" * 27])
    assert reply.json()["usage"]["total_tokens"] == 60
    limit = "request exceeds the request token limit (counted 61; bound by --max-request-tokens 60)"
    over = rerank(server, "late", query="x", documents=[" tide" * 28])
    assert (message(over), over.param) == (limit, "documents")


def test_a_folder_alone_is_served_on_every_route_of_its_kind(
    serve: Callable[..., Server], tiny: Path, pplx_late: Path
) -> None:
    server = serve(str(tiny))
    assert server.post({"input": "x"}).json()["model"] == "tiny-bert"
    assert np.abs(scores(server.post(ASK, "/v1/rerank"))).max() <= 1
    late = serve(str(pplx_late))
    assert scores(late.post(ASK, "/v1/rerank")).max() > 1
    assert late.get("/v1/models").json()["data"][0]["kind"] == "late"


@pytest.mark.parametrize(
    ("label", "kind", "scorer", "routes", "dim", "pooling"),
    [
        ("late", "late", "maxsim", RERANK_PATHS, WIDTH, None),
        ("cosr", "embedding", "cosine", ["/v1/embeddings", "/embed", *RERANK_PATHS], 48, "mean"),
        ("tiny", "embedding", None, ["/v1/embeddings", "/embed"], 48, "mean"),
    ],
)
def test_labels_say_what_they_serve(
    server: Server, label: str, kind: str, scorer: str | None, routes: list[str], dim: int, pooling: str | None
) -> None:
    entry = server.get(f"/v1/models/{label}").json()
    assert tuple(entry[key] for key in ("kind", "scorer", "dim", "pooling")) == (kind, scorer, dim, pooling)
    assert sorted(entry["routes"]) == sorted([*routes, "/v1/tokenize"])


def tokenized(server: Server, **body: Any) -> Reply:
    return server.post(body, "/v1/tokenize")


def test_tokenize_lists_every_id_of_a_text_far_over_the_cap(server: Server) -> None:
    (entry,) = tokenized(server, model="late", input=["tide " * 5000]).json()["data"]
    assert entry["exceeds_limit"] and not entry["truncated"]
    assert len(entry["ids"]) == entry["token_count"] > 5000


def test_tokenize_lays_out_queries_and_documents_of_a_late_label(server: Server) -> None:
    document, plain, query = (
        tokenized(server, model="colbert", input="the tide", **kind).json()["data"][0]["ids"]
        for kind in ({"text_type": "document"}, {}, {"text_type": "query"})
    )
    assert document == plain and len(query) > len(document) and query[1] != document[1]


def test_tokenize_refuses_a_prompt_name_where_it_says_nothing(server: Server) -> None:
    reply = tokenized(server, model="colbert", input="the tide", prompt_name="query")
    assert problems(reply) == [("extra_fields", "prompt_name")]
