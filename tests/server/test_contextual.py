"""POST /v1/contextualizedembeddings against a real gunicorn: the rows of http.md section 16 for this route."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import ContextualEncoder
from ffwd_ort_conformance.tiny import TEXTS
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder
from tests.server.test_embeddings import problems
from tests.server.test_embeddings import vectors as plain_vectors
from tests.serving import Reply, Server

PATH = "/v1/contextualizedembeddings"
DOCUMENTS = [[*TEXTS[:2], "the ferry"], ["kelp"], ["?", TEXTS[5]], ["kelp", "kelp"]]
ASK: dict[str, Any] = {"model": "ctx", "input": DOCUMENTS}
PP = ASK | {"model": "pp"}


def write_pplx(folder: Path, hidden: int) -> Path:
    """Write a tiny pplx-embed. In its vocabulary " tide" is one token, and so is every other word after a space."""
    tiny = TinyDecoder(
        model_type="bidirectional_pplx_qwen3",
        hidden=hidden,
        head_norms=True,
        pooling=("mean_tokens",),
        normalize=False,
    )
    return write_decoder(folder, tiny)


@pytest.fixture(scope="module")
def pplx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pplx(tmp_path_factory.mktemp("pplx") / "wide", 48)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pplx(tmp_path_factory.mktemp("pplx") / "narrow", 16)


@pytest.fixture(scope="module")
def server(pplx: Path, narrow: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Labels: ctx; unit (the same, scaled); pp (perplexity); plain (the same as ctx, an embedder)."""
    server = Server(
        [
            *("--contextual-model", f"ctx={pplx}"),
            *("--contextual-model", f"unit={pplx}:normalize=always"),
            *("--contextual-model", f"pp={narrow}:api=perplexity:min_dim=4"),
            *("--model", f"plain={pplx}"),
            *("--cache-dir", str(cache_dir)),
        ],
        tmp_path_factory.mktemp("contextual") / "server.log",
    )
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def encoder(pplx: Path, cache_dir: Path) -> Iterator[ContextualEncoder]:
    with ContextualEncoder(pplx, cache_dir=cache_dir) as encoder:
        yield encoder


def entries(reply: Reply) -> list[list[Any]]:
    """Take every document's embeddings out of an answer, and check its shape."""
    assert reply.status == 200, reply.body
    body = reply.json()
    assert set(body) == {"object", "data", "model", "usage"} and body["object"] == "list"
    for place, document in enumerate(body["data"]):
        assert (document["object"], document["index"]) == ("list", place)
        assert [(c["object"], c["index"]) for c in document["data"]] == [
            ("embedding", i) for i in range(len(document["data"]))
        ]
    return [[chunk["embedding"] for chunk in document["data"]] for document in body["data"]]


def apart(found: list[list[Any]], expected: list[np.ndarray]) -> float:
    """Return the largest difference of two answers, for vectors of unit length."""
    assert [len(document) for document in found] == [len(document) for document in expected]
    mine, theirs = np.concatenate([np.array(d) for d in found]), np.concatenate(expected)
    return float((np.abs(mine - theirs) / np.linalg.norm(theirs, axis=1, keepdims=True)).max())


def test_each_document_has_a_vector_for_each_of_its_chunks_in_order(server: Server, encoder: ContextualEncoder) -> None:
    reply = server.post(ASK, PATH)
    assert apart(entries(reply), encoder.encode(DOCUMENTS, normalize=False)) < 5e-6
    assert reply.json()["model"] == "ctx" and "x-truncated" not in reply.headers
    turned = entries(server.post(ASK | {"input": DOCUMENTS[::-1]}, PATH))[::-1]
    assert apart(turned, encoder.encode(DOCUMENTS, normalize=False)) < 5e-6


def test_a_chunk_is_seen_in_its_document_and_in_no_other(server: Server) -> None:
    first, second, alone = entries(server.post(ASK | {"input": [["kelp", "the tide"], ["kelp", "?"], ["kelp"]]}, PATH))
    assert np.abs(np.array(first[0]) - alone[0]).max() > 1e-2 and np.abs(np.array(first[0]) - second[0]).max() > 1e-2


def test_a_document_of_one_chunk_has_the_ordinary_embedding(server: Server) -> None:
    found = entries(server.post(ASK | {"input": [[text] for text in TEXTS]}, PATH))
    ordinary = plain_vectors(server.post({"model": "plain", "input": list(TEXTS)}))
    assert apart(found, [vector[None] for vector in ordinary]) < 5e-6


def test_usage_counts_chunks_and_a_separator_between_neighbours(server: Server) -> None:
    chunks = [chunk for document in DOCUMENTS for chunk in document]
    separators = len(chunks) - len(DOCUMENTS)
    own = server.post({"model": "plain", "input": chunks}).json()["usage"]["prompt_tokens"]
    usage = server.post(ASK, PATH).json()["usage"]
    assert usage == {"prompt_tokens": own + separators, "total_tokens": own + separators}


def test_vectors_are_scaled_only_where_the_label_is_told_to(server: Server, encoder: ContextualEncoder) -> None:
    assert apart(entries(server.post(ASK | {"model": "unit"}, PATH)), encoder.encode(DOCUMENTS)) < 5e-6
    assert abs(np.linalg.norm(entries(server.post(ASK, PATH))[0][0]) - 1) > 0.1


def test_base64_holds_the_float_answer(server: Server) -> None:
    floats = np.concatenate([np.array(d, np.float32) for d in entries(server.post(ASK, PATH))])
    encoded = entries(server.post(ASK | {"encoding_format": "base64"}, PATH))
    decoded = [np.frombuffer(base64.b64decode(chunk), "<f4") for document in encoded for chunk in document]
    assert np.abs(np.stack(decoded) - floats).max() <= 1e-6


def test_perplexity_formats_hold_the_unscaled_vectors(server: Server, narrow: Path, cache_dir: Path) -> None:
    def ask(kind: type, **extra: Any) -> np.ndarray:
        answer = entries(server.post(PP | extra, PATH))
        return np.stack([np.frombuffer(base64.b64decode(chunk), kind) for document in answer for chunk in document])

    with ContextualEncoder(narrow, cache_dir=cache_dir) as encoder:
        expected = np.concatenate(encoder.encode(DOCUMENTS, normalize=False))
    quantised = ask(np.int8)
    assert quantised.shape == expected.shape == (8, 16)
    assert np.abs(quantised - np.tanh(expected) * 127).max() < 0.51
    assert (ask(np.int8, encoding_format="base64_int8") == quantised).all()
    floats = [chunk for d in entries(server.post(PP | {"encoding_format": "float"}, PATH)) for chunk in d]
    assert (np.array(floats) == quantised / 128).all()
    bits = np.unpackbits(ask(np.uint8, encoding_format="base64_binary"), axis=1, bitorder="little")
    sure = np.abs(expected) > 1e-4
    assert (bits[sure] == (expected[sure] > 0)).all()
    assert (ask(np.int8, dimensions=12) == quantised[:, :12]).all()


REFUSED: list[tuple[Any, list[tuple[str, str]]]] = [
    ({}, [("missing", "model"), ("missing", "input")]),
    *[(ASK | {"input": value}, [("type_error.array", "input")]) for value in ("a", None, {"0": ["a"]})],
    (ASK | {"input": ["a"]}, [("type_error.array", "input.0")]),
    (ASK | {"input": []}, [("value_error.list.min_items", "input")]),
    (ASK | {"input": [["ok"], []]}, [("value_error.list.min_items", "input.1")]),
    (ASK | {"input": [["", 1]]}, [("value_error.empty", "input.0.0"), ("type_error.string", "input.0.1")]),
    (ASK | {"input": [["x"]] * 512 + [[""]]}, [("value_error.list.max_items", "input")]),
    (ASK | {"input": [["x"] * 16_000, [""]]}, [("value_error.list.max_items", "input")]),
    (ASK | {"input": [["ok"], ["x"] * 65]}, [("value_error.context_length", "input.1")]),
    (ASK | {"input": [[" tide" * 129], ["ok"], [" bay" * 64] * 2]}, [("value_error.context_length", "input.0"),
                                                                      ("value_error.context_length", "input.2")]),
    *[(ASK | {"model": model}, [("enum", "model")]) for model in ("plain", "nope")],
    *[(ASK | {"dimensions": n}, [("value_error.range", "dimensions")]) for n in (47, 49)],
    (PP | {"dimensions": 3}, [("value_error.range", "dimensions")]),
    (PP | {"dimensions": 12, "encoding_format": "base64_binary"}, [("value_error.divisible", "dimensions")]),
    (ASK | {"encoding_format": "base64_int8"}, [("enum", "encoding_format")]),
    (
        {"encoding_format": 1, "dimensions": "x", "truncate": 0, "truncation_direction": None, "input": 3},
        [
            ("missing", "model"),
            ("type_error.string", "encoding_format"),
            ("type_error.integer", "dimensions"),
            ("type_error.bool", "truncate"),
            ("type_error.string", "truncation_direction"),
            ("type_error.array", "input"),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_bad_body_is_refused_with_every_problem_in_order(
    server: Server, body: Any, expected: list[tuple[str, str]]
) -> None:
    assert problems(server.post(body, PATH)) == expected


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"input": "a"}, "input must be an array of document chunk arrays"),
    ({"input": []}, "input must contain at least 1 document"),
    ({"input": [["x"]] * 513}, "input must contain at most 512 documents"),
    ({"input": [["x"] * 16_001]}, "input must contain at most 16000 chunks"),
    ({"input": [5]}, "document must be an array of strings"),
    ({"input": [[]]}, "document must contain at least 1 chunk"),
    ({"input": [[5]]}, "chunk must be a string"),
    ({"input": [[""]]}, "chunk must not be empty"),
    ({"input": [[" tide" * 99, "?"] * 2]}, "document exceeds 128 token limit (counted 203; bound by model positions)"),
    ({"model": "plain"}, "model is not available on this endpoint"),
]


@pytest.mark.parametrize(("changes", "message"), MESSAGES, ids=[message for _, message in MESSAGES])
def test_messages_are_those_of_the_contract(server: Server, changes: dict[str, Any], message: str) -> None:
    assert server.post(ASK | changes, PATH).json()["error"]["message"] == message


def test_as_many_documents_and_chunks_as_are_permitted_are_answered(server: Server) -> None:
    most = [["x"] * (32 if i < 128 else 31) for i in range(512)]
    found = entries(server.post(PP | {"input": most}, PATH))
    assert sum(map(len, found)) == 16_000 and len(found) == 512


def test_fields_of_other_routes_are_ignored(server: Server) -> None:
    others = {"pooling": "max", "text_type": 5, "prompt_name": "nope", "documents": None}
    assert server.post(ASK | others, PATH).body == server.post(ASK, PATH).body


# --- truncation ------------------------------------------------------------------------------------

LONG = [" kelp" * 50 + " tide" * 50, " ferry" * 20 + " bay" * 40]  # 161 tokens with the separator


@pytest.mark.parametrize(
    ("direction", "cut"),
    [
        ("right", [LONG[0], " ferry" * 20 + " bay" * 7]),
        ("left", [" kelp" * 17 + " tide" * 50, LONG[1]]),
    ],
)
def test_the_chunk_at_the_end_that_is_cut_loses_what_is_over(
    server: Server, encoder: ContextualEncoder, direction: str, cut: list[str]
) -> None:
    body = ASK | {"input": [["kelp"], LONG], "truncate": True, "truncation_direction": direction}
    reply = server.post(body, PATH)
    assert apart(entries(reply), encoder.encode([["kelp"], cut], normalize=False)) < 5e-6
    assert reply.headers["x-truncated"] == "1"
    alone = server.post(ASK | {"input": [["kelp"]]}, PATH).json()["usage"]["total_tokens"]
    assert reply.json()["usage"]["total_tokens"] == alone + 128


def test_a_document_whose_last_chunk_would_have_no_token_left_is_refused(server: Server) -> None:
    truncated = ASK | {"truncate": True}
    kept = server.post(truncated | {"input": [[" tide" * 126, " bay" * 2]]}, PATH)
    assert (kept.headers["x-truncated"], kept.json()["usage"]["total_tokens"]) == ("1", 128)
    for document in ([" tide" * 127, " bay" * 2], [" tide" * 130, " bay", " bay"]):
        assert problems(server.post(truncated | {"input": [["ok"], document]}, PATH)) == [
            ("value_error.context_length", "input.1")
        ]
    first = truncated | {"input": [[" bay", " tide" * 127]], "truncation_direction": "left"}
    assert problems(server.post(first, PATH)) == [("value_error.context_length", "input.0")]


def test_the_servers_flags_hold_here_and_one_label_needs_no_name(serve: Callable[..., Server], pplx: Path) -> None:
    flags = ("--auto-truncate", "--rows", "3", "--max-request-tokens", "300")
    server = serve("--contextual-model", f"ctx={pplx}", "--model", f"plain={pplx}", *flags)
    reply = server.post({"input": [LONG, LONG]}, PATH)
    assert entries(reply) and reply.json()["model"] == "ctx" and reply.headers["x-truncated"] == "2"
    assert problems(server.post({"input": [LONG], "truncate": False}, PATH)) == [
        ("value_error.context_length", "input.0")
    ]
    assert problems(server.post({"input": [[" tide" * 140, "?"]]}, PATH)) == [("value_error.context_length", "input.0")]
    many = server.post({"input": [["x"]] * 4}, PATH).json()["error"]["message"]
    assert many == "input must contain at most 3 documents (bound by --rows 3)"
    much = server.post({"input": [LONG] * 3}, PATH).json()["error"]
    limit = "request exceeds the request token limit (counted 384; bound by --max-request-tokens 300)"
    assert (much["message"], much["param"]) == (limit, "input")


def test_a_label_says_what_it_serves(server: Server) -> None:
    entry = server.get("/v1/models/ctx").json()
    assert (entry["kind"], entry["scorer"], entry["normalize"]) == ("contextual", None, False)
    assert sorted(entry["routes"]) == [PATH, "/v1/tokenize"]
    other = server.post({"model": "ctx", "input": "x"}).json()["error"]
    assert (other["message"], other["param"]) == ("model is not available on this endpoint", "model")
