"""The C server's command line and answers: who starts it, and who asks it, need change nothing.

What http.md section 15 lists as different on purpose is left out here.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort_conformance.tiny import long_text
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Server

KEY = {"Authorization": "Bearer sesame"}
PROMPT = "Task: find the tide table\nQuery:"  # with a line's end and colons, as retrieval instructions have them
DOCUMENTS = ["The ferry sails at nine.", "Kelp season opens in May.", 'The "low" water.']


@pytest.fixture(scope="module")
def server(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("drop-in")
    base = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    pplx = write_decoder(place / "pplx", base)
    qwen = write_decoder(place / "qwen", TinyDecoder(head_norms=True, append_eos=True))
    prompt = PROMPT.replace("\n", "\\n")
    arguments = [
        *("--model", f"pplx={pplx}:api=perplexity:min_dim=8"),
        *("--contextual-model", f"pplx-context={pplx}:api=perplexity"),
        *("--late-model", f"pplx-late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"cross={write_cross_encoder(place / 'ce', 'bert')}"),
        *("--model", f"qwen={qwen}:api=openai:min_dim=32:query_instruct={prompt}"),
        *("--model", f"short={pplx}:api=pplx:query={prompt}"),
        *("--host", "127.0.0.1", "-t", "2", "-b", "2", "--max-batch-tokens", "4096", "--batch-wait-us", "1000"),
        *("--max-request-tokens", "120000", "--max-concurrent-requests", "64", "--memory-utilization", "0.90"),
        *("--gpu-gemm-mode", "f32", "--gpu-weight-dtype", "f32", "--auto-truncate"),
        *("--api-key", "sesame", "-vv", "--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    yield server
    server.stop()


def ask(server: Server, path: str, **body: Any) -> Any:
    """Ask for a 200, and hold its headers to what the C server sends."""
    reply = server.post(body, path, KEY)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert all(f"{stage};dur=" in reply.headers["server-timing"] for stage in ("queue", "infer"))
    return reply.json()


def vectors(answer: Any) -> np.ndarray:
    return np.array([entry["embedding"] for entry in answer["data"]])


def test_curl_with_a_body_of_several_lines_gets_the_fields_of_each_route(server: Server) -> None:
    examples = (
        ("/v1/embeddings", '{"model":"qwen","input":["The tide\\u2014falls.",\n          "Low water."]}'),
        ("/v1/contextualizedembeddings", '{"model":"pplx-context",\n "input":[["One.","Two."],\n  ["Three."]]}'),
        (
            "/v1/rerank",
            '{\n  "model":"pplx-late", "query":"when is low water?",\n  "documents":["At nine.","Kelp."]\n}',
        ),
    )
    answers = []
    for path, body in examples:
        header = ["-H", "Content-Type: application/json", "-H", "Authorization: Bearer sesame"]
        command = ["curl", "-s", f"{server.url}{path}", *header, "-d", body]
        answers.append(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout))
    embeddings, chunks, ranked = answers
    assert (embeddings["object"], embeddings["model"]) == ("list", "qwen")
    assert [(e["object"], e["index"], len(e["embedding"])) for e in embeddings["data"]] == [
        ("embedding", 0, 48),
        ("embedding", 1, 48),
    ]
    assert all(set(entry) == {"object", "index", "embedding"} for entry in embeddings["data"])
    assert set(embeddings["usage"]) == set(chunks["usage"]) == {"prompt_tokens", "total_tokens"}
    assert [(d["object"], d["index"], [(c["object"], c["index"]) for c in d["data"]]) for d in chunks["data"]] == [
        ("list", 0, [("embedding", 0), ("embedding", 1)]),
        ("list", 1, [("embedding", 0)]),
    ]
    assert all(isinstance(chunk["embedding"], str) for document in chunks["data"] for chunk in document["data"])
    assert {result["index"] for result in ranked["results"]} == {0, 1} and ranked["object"] == "list"
    assert all(set(result) == {"index", "relevance_score"} for result in ranked["results"])
    assert ranked["usage"].items() >= {"query_tokens": 32}.items()


def test_a_perplexity_label_gives_int8_by_default_and_the_same_numbers_as_floats(server: Server) -> None:
    default, named, floats, cut = (
        ask(server, "/v1/embeddings", model="pplx", input=DOCUMENTS, **more)
        for more in (
            {},
            {"encoding_format": "base64_int8"},
            {"encoding_format": "float"},
            {"encoding_format": "float", "dimensions": 8},
        )
    )
    assert default == named and [entry["index"] for entry in default["data"]] == [0, 1, 2]
    packed = [np.frombuffer(base64.b64decode(entry["embedding"]), np.int8) for entry in default["data"]]
    assert np.array_equal(np.array(packed) / 128, vectors(floats))
    assert np.array_equal(vectors(cut), vectors(floats)[:, :8])
    bits = ask(server, "/v1/embeddings", model="short", input="kelp", encoding_format="base64_binary")
    assert len(base64.b64decode(bits["data"][0]["embedding"])) == 2


def test_an_openai_label_cuts_to_unit_length_and_counts_its_terminal(server: Server) -> None:
    full, cut = (ask(server, "/v1/embeddings", model="qwen", input="kelp", **d) for d in ({}, {"dimensions": 32}))
    shorter = vectors(full)[:, :32]
    assert np.abs(vectors(cut) - shorter / np.linalg.norm(shorter)).max() < 1e-6
    plain = ask(server, "/v1/embeddings", model="pplx", input="kelp")["usage"]["total_tokens"]
    assert full["usage"] == {"prompt_tokens": plain + 1, "total_tokens": plain + 1}


@pytest.mark.parametrize("model", ["qwen", "short"])
def test_text_type_query_is_the_prompt_of_the_command_line(server: Server, model: str) -> None:
    asked = ask(server, "/v1/embeddings", model=model, input="kelp", text_type="query", encoding_format="float")
    typed = PROMPT + "kelp"
    written = ask(server, "/v1/embeddings", model=model, input=typed, text_type="document", encoding_format="float")
    assert np.abs(vectors(asked) - vectors(written)).max() < 5e-6 and asked["usage"] == written["usage"]


def test_chunks_see_their_document_and_are_counted_with_its_separators(server: Server) -> None:
    def chunk(*documents: list[str]) -> Any:
        asked = ask(
            server, "/v1/contextualizedembeddings", model="pplx-context", input=documents, encoding_format="float"
        )
        return [vectors(document) for document in asked["data"]], asked["usage"]["total_tokens"]

    alone = ask(server, "/v1/embeddings", model="pplx", input=["kelp", "the tide"], encoding_format="float")
    (beside,), together = chunk(["kelp", "the tide"])
    (first, second), apart = chunk(["kelp"], ["the tide"])
    assert apart == alone["usage"]["total_tokens"] and together == apart + 1
    assert np.array_equal(np.concatenate([first, second]), vectors(alone))
    assert np.abs(beside - vectors(alone)).max() > 1e-2


@pytest.mark.parametrize("model", ["pplx-late", "cross"])
def test_reranking_sorts_cuts_and_echoes(server: Server, model: str) -> None:
    asked = {"model": model, "query": "when is low water?", "documents": DOCUMENTS}
    every = ask(server, "/v1/rerank", **asked)
    assert {"object": "list", "model": model}.items() <= every.items()
    scores = [result["relevance_score"] for result in every["results"]]
    assert scores == sorted(scores, reverse=True) and {r["index"] for r in every["results"]} == {0, 1, 2}
    usage = every["usage"]
    assert usage["total_tokens"] == usage["query_tokens"] + usage["document_tokens"]
    assert ask(server, "/v1/rerank", **asked, top_k=1)["results"] == every["results"][:1]
    echoed = ask(server, "/v1/rerank", **asked, top_n=2, return_documents=True)["results"]
    assert [result["document"] for result in echoed] == [DOCUMENTS[result["index"]] for result in echoed]


def test_a_long_text_is_cut_under_auto_truncate(server: Server) -> None:
    answer = ask(server, "/v1/embeddings", model="qwen", input=long_text(5000))
    assert answer["usage"]["total_tokens"] <= 4096 and np.isfinite(vectors(answer)).all()


BAD = (
    ("/v1/embeddings", {"input": "x"}, "model"),
    ("/v1/embeddings", {"model": "other", "input": "x"}, "model"),
    ("/v1/embeddings", {"model": "pplx-context", "input": "x"}, "model"),
    ("/v1/embeddings", {"model": "pplx", "input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"model": "pplx", "input": "x", "encoding_format": "base64"}, "encoding_format"),
    ("/v1/embeddings", {"model": "pplx", "input": "x", "dimensions": 4}, "dimensions"),
    ("/v1/embeddings", {"model": "pplx", "input": []}, "input"),
    ("/v1/embeddings", {"model": "pplx", "input": "x", "text_type": "query"}, "text_type"),
    ("/v1/embeddings", {"model": "qwen", "input": "x", "text_type": "passage"}, "text_type"),
    ("/v1/contextualizedembeddings", {"model": "pplx", "input": [["x"]]}, "model"),
    ("/v1/contextualizedembeddings", {"model": "pplx-context", "input": "x"}, "input"),
    ("/v1/contextualizedembeddings", {"model": "pplx-context", "input": [[""]]}, "input"),
    ("/v1/rerank", {"model": "pplx", "query": "x", "documents": ["y"]}, "model"),
    ("/v1/rerank", {"model": "pplx-late", "query": "", "documents": ["y"]}, "query"),
    ("/v1/rerank", {"model": "pplx-late", "query": "x", "documents": []}, "documents"),
    ("/v1/rerank", {"model": "pplx-late", "query": "x", "documents": ["y"], "top_n": 1, "top_k": 1}, "top_n"),
)


@pytest.mark.parametrize(("path", "body", "field"), BAD, ids=range(len(BAD)))
def test_what_it_refuses_is_422_with_a_list_of_problems(
    server: Server, path: str, body: dict[str, Any], field: str
) -> None:
    reply = server.post(body, path, KEY)
    assert reply.status == 422
    (problem,) = reply.json()["detail"]
    assert set(problem) == {"loc", "msg", "type"} and problem["loc"][:2] == ["body", field]


def test_every_problem_is_listed_in_the_c_servers_words(server: Server) -> None:
    reply = server.post({"model": "pplx", "input": ["", 1]}, headers=KEY)
    assert (reply.status, reply.json()["detail"]) == (
        422,
        [
            {"loc": ["body", "input", 0], "msg": "input item must not be empty", "type": "value_error.empty"},
            {"loc": ["body", "input", 1], "msg": "input item must be a string", "type": "type_error.string"},
        ],
    )


def test_paths_keys_and_broken_requests_have_the_c_servers_statuses(server: Server) -> None:
    body = {"model": "qwen", "input": "x"}
    assert server.request("OPTIONS", "/v1/embeddings").status == 204
    assert server.post({}, "/nope", KEY).status == 404
    for headers in ({}, {"Authorization": "Bearer other"}):
        refused = server.post(body, headers=headers)
        assert (refused.status, refused.json()["error"]["message"]) == (401, "missing or invalid bearer token")
    assert server.post(b"{'a'", headers=KEY).status == 422
    assert server.raw(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_connection_is_kept_and_more_requests_than_a_batch_holds_are_answered(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    sockets = []
    for _ in range(2):
        connection.request("POST", "/v1/embeddings", b'{"model":"qwen","input":"x"}', KEY)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        sockets.append(connection.sock)
    assert sockets[0] is sockets[1] is not None
    connection.close()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, server, "/v1/embeddings", model="qwen", input=["x", "y", "z"]) for _ in range(6)]
        assert all(len(each.result()["data"]) == 3 for each in asked)


def test_the_key_may_come_from_the_environment_and_sigterm_ends_with_0(
    serve: Callable[..., Server], tiny: Path
) -> None:
    server = serve("--model", f"docs={tiny}", env={"FFWD_API_KEY": "sesame"})
    assert server.post({"model": "docs", "input": "x"}).status == 401
    assert server.post({"model": "docs", "input": "x"}, headers=KEY).status == 200
    server.terminate()
    assert server.wait() == 0


@pytest.mark.parametrize("flag", ["--version", "--build-info", "--help", "-h"])
def test_questions_about_the_program_are_answered_and_end_with_0(flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ffwd_ort.cli.server", flag], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0 and done.stdout
