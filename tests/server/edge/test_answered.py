"""Rows of http.md section 16 that end in an answer, and those before validation."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.server.edge.test_refused import MINI, MRL, RANK, C, R, T
from tests.serving import Reply, Server


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return reply.json()


def vectors(reply: Reply) -> np.ndarray:
    return np.array([entry["embedding"] for entry in ok(reply)["data"]], np.float32)


def reference(minilm: Path, most: int | None = None, direction: str = "right") -> Tokenizer:
    """Open the checkpoint's tokenizer as its own library does; with `most`, one that cuts."""
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if most is not None:
        tokenizer.enable_truncation(most, direction=direction)
    return tokenizer


def test_e01_e02_e03_unknown_paths_and_other_methods(edge: Server) -> None:
    for path in ("/nope", "/v1/embeddings/", "//v1/embeddings", "//health"):
        assert (edge.request("POST", path, b"{}").status, edge.get(path).code) == (404, "not_found")
    reply = edge.request("GET", "/v1/embeddings", headers={"Accept": "text/html"})
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", "POST, OPTIONS")
    assert reply.headers["content-type"] == "application/json"
    head = edge.request("HEAD", "/v1/embeddings")
    assert (head.status, head.body) == (405, b"")
    alive = edge.request("HEAD", "/health")
    assert (alive.status, alive.body) == (200, b"")
    posted = edge.request("POST", "/health", b"")
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


def test_e04_options_and_cors(edge: Server, serve: Any, tiny: Any) -> None:
    plain = edge.request("OPTIONS", R, headers={"Origin": "https://a.example"})
    assert plain.status == 204 and not [name for name in plain.headers if name.startswith("access-control")]
    assert edge.request("OPTIONS", "/nope").status == 404
    server = serve("--model", f"m={tiny}", "--cors-origin", "https://a.example")
    allowed = server.request("OPTIONS", R, headers={"Origin": "https://a.example"})
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, "https://a.example")
    assert allowed.headers["vary"] == "Origin" and "access-control-allow-credentials" not in allowed.headers
    other = server.request("OPTIONS", R, headers={"Origin": "https://b.example"})
    assert other.status == 204 and "access-control-allow-origin" not in other.headers
    posted = server.request("POST", "/v1/embeddings", b'{"input":"x"}', {"Origin": "https://a.example"})
    assert posted.headers["access-control-expose-headers"].startswith("X-Request-Id")


def test_e05_e06_e07_keys(serve: Any, tiny: Any) -> None:
    server = serve("--model", f"m={tiny}", "--api-key", "sesame")
    body = b'{"input":"x"}'
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer sesam\xe9"}):
        reply = server.request("POST", "/v1/embeddings", body, headers)
        assert (reply.status, reply.code, reply.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert server.request("POST", "/v1/embeddings", body, {"authorization": "bearer sesame"}).status == 200
    assert (server.get("/nope").status, server.get("/v1/embeddings").status) == (404, 405)
    assert [server.get(path).status for path in ("/health", "/ready", "/live", "/metrics")] == [200, 200, 200, 401]
    public = serve("--model", f"m={tiny}", "--api-key", "sesame", "--metrics-public")
    assert public.get("/metrics").status == 200


def test_e13_e14_e16_e22_e24_bodies_and_ids(edge: Server) -> None:
    raw = json.dumps(MINI).encode()
    for headers in ({"Content-Type": "text/plain"}, {}):
        ok(edge.request("POST", "/v1/embeddings", raw, headers))
    packed = edge.request("POST", "/v1/embeddings", raw, {"Content-Encoding": "gzip"})
    assert (packed.status, packed.code) == (415, "unsupported_content_encoding")
    assert edge.request("POST", "/v1/embeddings", raw, {"X-Request-Id": "tide-7"}).headers["x-request-id"] == "tide-7"
    made = edge.request("POST", "/v1/embeddings", raw, {"X-Request-Id": "a" * 200}).headers["x-request-id"]
    assert len(made) == 32 and int(made, 16) >= 0
    ok(edge.request("POST", "/v1/embeddings", b'{"model":"mini","input":"x","z":%s}' % (b"[" * 63 + b"]" * 63)))
    twice = ok(edge.request("POST", "/v1/embeddings", b'{"model":"nope","model":"mini","input":"x"}'))
    assert twice["model"] == "mini"


def test_e35_e37_e38_e39_texts_and_their_counts(edge: Server, minilm: Any) -> None:
    assert len(ok(edge.post(MINI | {"input": ["a"] * 512}))["data"]) == 512
    counts = {" ": 2, "\u200d": 2, "\U0001f469\u200d\U0001f52c lab": 4, "hello [MASK] x": 5}
    for text, count in counts.items():
        assert ok(edge.post(MINI | {"input": text}))["usage"]["prompt_tokens"] == count, text
    assert 103 in ok(edge.post({"model": "mini", "input": "hello [MASK] x"}, T))["data"][0]["ids"]
    for text in (*counts, "ab\0cd"):
        assert (
            ok(edge.post({"model": "mini", "input": text}, T))["data"][0]["ids"] == reference(minilm).encode(text).ids
        )
    both = vectors(edge.post(MINI | {"input": ["ab\0cd", "ab"]}))
    assert np.abs(both[0] - both[1]).max() > 1e-3
    assert ok(edge.post(MINI | {"input": "tide " * 510}))["usage"]["prompt_tokens"] == 512


@pytest.mark.parametrize(("direction", "kept"), [("right", (449, 61)), ("left", (61, 449))])
def test_e41_e42_truncation_keeps_the_special_tokens(
    edge: Server, minilm: Path, direction: str, kept: tuple[int, int]
) -> None:
    text = "tide " * 449 + "bay " * 449  # 900 tokens
    cutter = reference(minilm, 512, direction)
    expected = cutter.encode(text).ids
    assert (len(expected), expected[0], expected[-1]) == (512, 101, 102)
    (_, tide, bay, _) = reference(minilm).encode("tide bay").ids
    assert (expected.count(tide), expected.count(bay)) == kept, "the end that was asked for is kept"
    body = MINI | {"input": text, "truncate": True, "truncation_direction": direction}
    reply = edge.post(body)
    assert ok(reply)["usage"]["prompt_tokens"] == 512 and reply.headers["x-truncated"] == "1"
    assert ok(edge.post(body, T))["data"][0]["ids"] == expected
    given = edge.post({"model": "ids", "input": expected})
    assert np.abs(vectors(reply) - vectors(given)).max() < 5e-6


def test_e36_e40_e43_flags_are_named_where_they_bind(serve: Any, minilm: Any) -> None:
    server = serve("--model", f"mini={minilm}", "--rows", "32", "--max-seq", "128", "--auto-truncate")
    many = server.post(MINI | {"input": ["a"] * 33})
    assert (many.status, many.code, many.param) == (422, "value_error.list.max_items", "input")
    assert many.json()["error"]["message"] == "input must contain at most 32 items (bound by --rows 32)"
    long = MINI | {"input": "tide " * 200}
    cut = server.post(long)
    assert ok(cut)["usage"]["prompt_tokens"] == 128 and cut.headers["x-truncated"] == "1"
    refused = server.post(long | {"truncate": False}).json()["error"]
    assert refused["message"] == "input exceeds 128 token limit (counted 202; bound by --max-seq)"
    other = serve("--model", f"mini={minilm}", "--max-batch-tokens", "64")
    assert "64 token limit (counted 202; bound by --max-batch-tokens)" in other.post(long).json()["error"]["message"]


def test_e45_a_request_at_its_limit_is_answered(edge: Server) -> None:
    texts = ["tide " * 510] * 234 + ["tide " * 190]
    assert ok(edge.post(MINI | {"input": texts}))["usage"]["prompt_tokens"] == 120_000


def test_e26_the_only_label_need_not_be_named(mini: Server) -> None:
    assert ok(mini.post({"input": "x"}))["model"] == "mini"


def test_e48_e49_e52_e53_dimensions_formats_and_pooling(edge: Server) -> None:
    assert vectors(edge.post(MRL | {"dimensions": 64.0})).shape == (1, 64)
    short = vectors(edge.post(MRL | {"dimensions": 32}))
    assert short.shape == (1, 32) and abs(float(np.linalg.norm(short)) - 1) < 1e-6
    pp = {"model": "pp", "input": "x", "dimensions": 12, "encoding_format": "base64_int8"}
    assert len(base64.b64decode(ok(edge.post(pp))["data"][0]["embedding"])) == 12
    raw = base64.b64decode(ok(edge.post(MINI | {"encoding_format": "base64"}))["data"][0]["embedding"])
    assert len(raw) == 1536 and np.abs(np.frombuffer(raw, "<f4") - vectors(edge.post(MINI))[0]).max() < 1e-6
    text = MINI | {"input": "the tide falls"}
    assert np.abs(vectors(edge.post(text | {"pooling": "cls"})) - vectors(edge.post(text))).max() > 1e-2


def test_e54_a_bundles_label_takes_its_own_pooling(edge: Server) -> None:
    body = MINI | {"model": "sealed", "input": "the tide falls"}
    assert np.abs(vectors(edge.post(body | {"pooling": "mean"})) - vectors(edge.post(body))).max() < 5e-6


def test_e56_e57_prompts_are_what_was_typed_by_hand(edge: Server) -> None:
    asked = [MRL | {"text_type": "query"}, MRL | {"input_type": "search_query"}, MRL | {"input": "the tide: x"}]
    replies = [edge.post(body) for body in asked]
    found = [vectors(reply) for reply in replies]
    assert all(np.abs(one - found[0]).max() < 5e-6 for one in found)
    assert len({ok(reply)["usage"]["prompt_tokens"] for reply in replies}) == 1
    ok(edge.post(MRL | {"input_type": "passage"}))


def test_e61_accepted_token_ids_are_used_as_they_are(edge: Server) -> None:
    three = edge.post({"model": "ids", "input": [101, 2659, 102]})
    assert ok(three)["usage"]["prompt_tokens"] == 3
    assert np.abs(vectors(three) - vectors(edge.post(MINI | {"input": "low"}))).max() < 5e-6
    assert ok(edge.post({"model": "ids", "input": [[101, 102]]}))["usage"]["prompt_tokens"] == 2


def test_e64_a_document_is_cut_inside_its_last_chunk(edge: Server) -> None:
    reply = edge.post({"model": "ctx", "input": [["low", "tide " * 200]], "truncate": True}, C)
    assert ok(reply)["usage"]["prompt_tokens"] == 128 and reply.headers["x-truncated"] == "1"


def test_e64_auto_truncate_cuts_a_last_chunk_and_refuses_to_lose_it(serve: Any, edge_arguments: list[str]) -> None:
    (ctx,) = [argument for argument in edge_arguments if argument.startswith("ctx=")]
    server = serve("--contextual-model", ctx, "--auto-truncate")
    cut = server.post({"model": "ctx", "input": [["low", "tide " * 200]]}, C)
    assert ok(cut)["usage"]["prompt_tokens"] == 128 and cut.headers["x-truncated"] == "1"
    assert [len(document["data"]) for document in ok(cut)["data"]] == [2]
    lost = server.post({"model": "ctx", "input": [["tide " * 200, "b"]]}, C)
    assert (lost.status, lost.code, lost.param) == (422, "value_error.context_length", "input.0")


def test_e74_sigmoids_that_saturate_keep_the_order_of_the_logits(edge: Server) -> None:
    body = RANK | {"model": "hot", "documents": ["high water", "kelp", "low", "red buoy", "the ferry"]}
    raw, soft = (ok(edge.post(body | {"raw_scores": given}, R))["results"] for given in (True, False))
    assert len({result["relevance_score"] for result in raw}) == 5
    assert [result["relevance_score"] for result in soft] == [1.0] * 5
    order = [result["index"] for result in raw]
    assert [result["index"] for result in soft] == order != sorted(order)


def test_e67_e71_e73_e74_e75_e76_e77_e78_reranking(edge: Server) -> None:
    assert [len(ok(edge.post(RANK | {key: n}, R))["results"]) for key, n in (("top_k", 5000), ("top_n", 2.0))] == [2, 2]
    sent = ["a", {"text": "b", "id": 9}]
    echoed = ok(edge.post(RANK | {"documents": sent, "return_documents": True}, R))["results"]
    assert {result["index"]: result["document"] for result in echoed} == dict(enumerate(sent))
    long = RANK | {"documents": ["tide " * 600]}
    assert ok(edge.post(long | {"max_tokens_per_doc": 64}, R))["usage"]["total_tokens"] < 80
    assert ok(edge.post(long | {"max_tokens_per_doc": 100_000}, R))["usage"]["total_tokens"] == 512
    soft = ok(edge.post(RANK | {"raw_scores": False}, R))["results"]
    assert all(0 <= result["relevance_score"] <= 1 for result in soft)
    assert [r["index"] for r in soft] == [r["index"] for r in ok(edge.post(RANK, R))["results"]]
    ok(edge.post(RANK | {"model": "late", "raw_scores": True}, R))
    cosines = ok(edge.post(RANK | {"model": "cosr"}, R))["results"]
    assert all(-1 <= result["relevance_score"] <= 1 for result in cosines)
    one = ok(edge.post({"model": "late", "query": "kelp", "documents": ["!"]}, R))
    assert one["usage"]["query_tokens"] == 32 and len(one["results"]) == 1
    ok(edge.post({"model": "late", "query": "tide " * 300, "documents": ["a"], "truncate": True}, R))
    for model in ("ce", "late", "cosr"):
        tied = ok(edge.post(RANK | {"model": model, "documents": ["low", "low"]}, R))["results"]
        assert tied[0]["relevance_score"] == tied[1]["relevance_score"]
        assert [result["index"] for result in tied] == [0, 1]


def test_e79_e80_e81_e82_e83_other_shapes_and_routes(edge: Server) -> None:
    bare = ok(edge.post({"model": "ce", "query": "a", "texts": ["b", "c"]}, "/rerank"))
    assert [set(item) for item in bare] == [{"index", "score"}] * 2
    assert np.array(ok(edge.post({"model": "mini", "inputs": "x", "prompt_name": None}, "/embed"))).shape == (1, 384)
    text = {"model": "mini", "input": "tide " * 898}
    (whole,) = ok(edge.post(text, T))["data"]
    assert (whole["token_count"], whole["exceeds_limit"], whole["truncated"]) == (900, True, False)
    (cut,) = ok(edge.post(text | {"truncate": True}, T))["data"]
    assert (len(cut["ids"]), cut["truncated"], cut["exceeds_limit"]) == (512, True, False)
    for path in ("/v1/chat/completions", "/v1/completions"):
        reply = edge.request("POST", path, b"no json")
        assert (reply.status, reply.code) == (400, "unsupported_capability")
    missing = edge.get("/v1/models/nope")
    assert (missing.status, missing.code, missing.param) == (404, "model_not_found", "model")
    assert ok(edge.get("/v1/models/a%2Fb"))["id"] == "a/b"


def test_e89_many_texts_come_back_in_their_order_as_alone(edge: Server) -> None:
    draw = np.random.default_rng(89)
    words = ["tide", "kelp", "ferry", "bar", "buoy", "red", "port", "low", "high", "water"]
    texts = [" ".join(draw.choice(words, size=int(n))) for n in draw.integers(1, 300, 50)]
    reply = edge.post(MINI | {"input": texts})
    assert [entry["index"] for entry in ok(reply)["data"]] == list(range(50))
    alone = np.concatenate([vectors(edge.post(MINI | {"input": text})) for text in texts])
    assert np.abs(vectors(reply) - alone).max() < 5e-6
