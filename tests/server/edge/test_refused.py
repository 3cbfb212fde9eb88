"""Rows of http.md section 16 that end in a validation error: the first problem, and how many there are."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.serving import Server

E, R, C, T = "/v1/embeddings", "/v1/rerank", "/v1/contextualizedembeddings", "/v1/tokenize"
MINI: dict[str, Any] = {"model": "mini", "input": "x"}
MRL: dict[str, Any] = MINI | {"model": "mrl"}
RANK: dict[str, Any] = {"model": "ce", "query": "tide", "documents": ["low", "high"]}
LONG = "tide " * 511  # 513 tokens with the special ones
DEEP = "[" * 2000 + "]" * 2000
Expected = Sequence[tuple[str, str | None]]  # (type, param) of the first problems; all of them where `exactly`

# (row, path, body as sent, problems, whether these are all)
ROWS: list[tuple[str, str, Any, Expected, bool]] = [
    ("E17", E, b"", [("missing", None)], True),
    ("E18", E, b"   ", [("json_invalid", None)], True),
    ("E18", E, b'{"model":"mini","input":"x"} y', [("json_invalid", None)], True),
    ("E18", E, b"{'a':1}", [("json_invalid", None)], True),
    *[("E19", E, raw, [("type_error.object", None)], True) for raw in (b"[]", b"null", b'"x"', b"7")],
    *[
        ("E20", E, b'{"model":"mini","input":"x","seed":%s}' % raw, [("json_invalid", None)], True)
        for raw in (b"NaN", b"-Infinity", b"1e400", b"9" * 400)
    ],
    ("E21", E, DEEP.encode(), [("json_invalid", None)], True),
    ("E21", E, b'{"model":"mini","input":"x","z":%s}' % DEEP.encode(), [("json_invalid", None)], True),
    ("E22", E, b'{"model":"mini","input":"x","z":%s}' % (b"[" * 64 + b"]" * 64), [("json_invalid", None)], True),
    ("E23", E, b'{"model":"mini","input":"\xff"}', [("json_invalid", None)], True),
    ("E23", E, b'{"model":"mini","input":"\\ud83c"}', [("json_invalid", None)], True),
    ("E23", E, b"\xef\xbb\xbf" + json.dumps(MINI).encode(), [("json_invalid", None)], True),
    ("E23", E, json.dumps(MINI).encode("utf-16"), [("json_invalid", None)], True),
    ("E23", E, b'{"model":"mini","input":"a\nb"}', [("json_invalid", None)], True),
    ("E25", E, {}, [("missing", "model"), ("missing", "input")], True),
    ("E26", E, {"input": "x"}, [("missing", "model")], True),
    *[("E27", E, MINI | {"model": label}, [("enum", "model")], True) for label in ("nope", "Mini")],
    ("E28", E, MINI | {"model": "late"}, [("enum", "model")], True),
    *[("E29", E, MINI | {"model": label}, [("type_error.string", "model")], True) for label in (None, 7)],
    (
        "E30",
        E,
        {"model": "nope", "input": "x", "encoding_format": "base64_int8", "dimensions": 3},
        [("enum", "model")],
        True,
    ),
    ("E31", E, {"model": "mini"}, [("missing", "input")], True),
    ("E32", E, MINI | {"input": ""}, [("value_error.empty", "input")], True),
    ("E32", E, MINI | {"input": []}, [("value_error.list.min_items", "input")], True),
    ("E32", E, MINI | {"input": ["", "ok"]}, [("value_error.empty", "input.0")], True),
    (
        *("E33", E, MINI | {"input": ["ok", 1, None, ""]}),
        [("type_error.string", "input.1"), ("type_error.string", "input.2"), ("value_error.empty", "input.3")],
        True,
    ),
    *[("E34", E, MINI | {"input": v}, [("type_error", "input")], True) for v in (7, {"text": "x"}, None)],
    ("E34", E, MINI | {"input": [["a"]]}, [("type_error.string", "input.0")], True),
    ("E35", E, MINI | {"input": ["a"] * 513}, [("value_error.list.max_items", "input")], True),
    ("E35", E, MINI | {"input": ["a"] * 512 + [""]}, [("value_error.list.max_items", "input")], True),
    ("E39", E, MINI | {"input": LONG}, [("value_error.context_length", "input")], True),
    ("E44", E, MINI | {"truncate": "yes"}, [("type_error.bool", "truncate")], True),
    ("E44", E, MINI | {"truncation_direction": "up"}, [("enum", "truncation_direction")], True),
    ("E44", E, MINI | {"truncation_direction": None}, [("type_error.string", "truncation_direction")], True),
    *[("E46", E, MINI | {"dimensions": n}, [("value_error.range", "dimensions")], True) for n in (0, -1, 383, 385)],
    *[
        ("E47", E, MINI | {"dimensions": n}, [("type_error.integer", "dimensions")], True)
        for n in ("8", None, True, 8.5, 99999999999, 1e30)
    ],
    ("E48", E, MRL | {"dimensions": 31}, [("value_error.range", "dimensions")], True),
    (
        *("E49", E, {"model": "pp", "input": "x", "dimensions": 12, "encoding_format": "base64_binary"}),
        [("value_error.divisible", "dimensions")],
        True,
    ),
    ("E50", E, MINI | {"encoding_format": None}, [("type_error.string", "encoding_format")], True),
    *[("E50", E, MINI | {"encoding_format": f}, [("enum", "encoding_format")], True) for f in ("hex", "base64_int8")],
    ("E51", E, {"model": "pp", "input": "x", "encoding_format": "base64"}, [("enum", "encoding_format")], True),
    ("E53", E, MINI | {"pooling": "max"}, [("enum", "pooling")], True),
    ("E53", E, MINI | {"pooling": None}, [("type_error.string", "pooling")], True),
    ("E55", E, MINI | {"text_type": "query"}, [("extra_fields", "text_type")], True),
    ("E55", E, MINI | {"input_type": "search_document"}, [("extra_fields", "input_type")], True),
    ("E57", E, MRL | {"text_type": "passage"}, [("enum", "text_type")], True),
    ("E57", E, MRL | {"text_type": None}, [("type_error.string", "text_type")], True),
    ("E58", E, MRL | {"text_type": "query", "input_type": "query"}, [("value_error.conflict", "text_type")], True),
    ("E58", E, MRL | {"text_type": "query", "prompt_name": "query"}, [("value_error.conflict", "prompt_name")], True),
    ("E59", E, MRL | {"prompt_name": "nope"}, [("enum", "prompt_name")], True),
    ("E59", E, MINI | {"prompt_name": "query"}, [("extra_fields", "prompt_name")], True),
    *[
        ("E60", E, MINI | {"input": v}, [("type_error.token_ids", "input")], True)
        for v in ([101, 2659, 102], [[101, 102]])
    ],
    *[
        ("E61", E, {"model": "ids", "input": [101, n]}, [("value_error.token_id", "input.1")], True)
        for n in (30522, -1)
    ],
    ("E61", E, {"model": "ids", "input": [[101], []]}, [("value_error.empty", "input.1")], True),
    ("E61", E, {"model": "ids", "input": [101, True]}, [("type_error.string", "input.0")], False),
    (
        "E62",
        E,
        {"model": "ids", "input": [101, 102], "prompt_name": "query"},
        [("value_error.conflict", "input")],
        True,
    ),
    ("E63", C, {"model": "ctx", "input": "a"}, [("type_error.array", "input")], True),
    ("E63", C, {"model": "ctx", "input": ["a"]}, [("type_error.array", "input.0")], True),
    ("E63", C, {"model": "ctx", "input": []}, [("value_error.list.min_items", "input")], True),
    ("E63", C, {"model": "ctx", "input": [[]]}, [("value_error.list.min_items", "input.0")], True),
    (
        *("E63", C, {"model": "ctx", "input": [["", 1]]}),
        [("value_error.empty", "input.0.0"), ("type_error.string", "input.0.1")],
        True,
    ),
    ("E64", C, {"model": "ctx", "input": [["a"]] * 513}, [("value_error.list.max_items", "input")], True),
    ("E64", C, {"model": "ctx", "input": [["a"] * 16_001]}, [("value_error.list.max_items", "input")], True),
    ("E64", C, {"model": "ctx", "input": [["tide " * 200]]}, [("value_error.context_length", "input.0")], True),
    (
        *("E64", C, {"model": "ctx", "input": [["tide " * 200, "b"]], "truncate": True}),
        [("value_error.context_length", "input.0")],
        True,
    ),
    ("E65", C, {"model": "mini", "input": [["a"]]}, [("enum", "model")], True),
    ("E66", R, {}, [("missing", "model"), ("missing", "query"), ("missing", "documents")], True),
    *[("E67", R, RANK | {"top_n": n}, [("value_error.range", "top_n")], True) for n in (0, -1)],
    *[("E67", R, RANK | {"top_n": n}, [("type_error.integer", "top_n")], True) for n in (True, None, "2")],
    ("E67", R, RANK | {"top_n": 2, "top_k": 2}, [("value_error.conflict", "top_n")], True),
    ("E68", R, RANK | {"documents": ["a"] * 1001}, [("value_error.list.max_items", "documents")], True),
    ("E68", R, RANK | {"documents": []}, [("value_error.list.min_items", "documents")], True),
    ("E68", R, RANK | {"documents": "x"}, [("type_error.array", "documents")], True),
    ("E69", R, RANK | {"documents": [{"title": "x"}]}, [("missing", "documents.0.text")], True),
    ("E69", R, RANK | {"documents": [{"text": ""}]}, [("value_error.empty", "documents.0.text")], True),
    ("E69", R, RANK | {"documents": [{"text": 3}]}, [("type_error.string", "documents.0.text")], True),
    ("E69", R, RANK | {"documents": [7]}, [("type_error.string", "documents.0")], True),
    *[("E70", R, RANK | {"return_documents": v}, [("type_error.bool", "return_documents")], True) for v in ("yes", 1)],
    ("E72", R, RANK | {"query": ""}, [("value_error.empty", "query")], True),
    ("E72", R, RANK | {"query": 5}, [("type_error.string", "query")], True),
    ("E72", R, RANK | {"query": "tide " * 600}, [("value_error.context_length", "query")], True),
    (
        *("E72", R, {"model": "late", "query": "tide " * 300, "documents": ["a"]}),
        [("value_error.context_length", "query")],
        True,
    ),
    ("E73", R, RANK | {"documents": ["tide " * 600]}, [("value_error.context_length", "documents.0")], True),
    ("E73", R, RANK | {"max_tokens_per_doc": 0}, [("value_error.range", "max_tokens_per_doc")], True),
    ("E75", R, RANK | {"model": "late", "raw_scores": False}, [("extra_fields", "raw_scores")], True),
    ("E76", R, RANK | {"model": "mini"}, [("enum", "model")], True),
    (
        *("E79", "/rerank", RANK | {"texts": ["a"]}),
        [("value_error.conflict", "documents")],
        True,
    ),
    ("E79", R, {"model": "ce", "query": "a", "texts": ["a"]}, [("missing", "documents")], True),
    (
        "E80",
        "/embed",
        {"model": "mini", "inputs": "x", "normalize": False},
        [("value_error.contract", "normalize")],
        True,
    ),
    ("E80", "/embed", {"model": "mini"}, [("missing", "inputs")], True),
]


def number(rows: list[str]) -> list[str]:
    """Number the cases of each row: E18-1, E18-2 ..."""
    return [f"{row}-{rows[: place + 1].count(row)}" for place, row in enumerate(rows)]


@pytest.mark.parametrize(("row", "path", "body", "expected", "exactly"), ROWS, ids=number([case[0] for case in ROWS]))
def test_row(edge: Server, row: str, path: str, body: Any, expected: Expected, exactly: bool) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = edge.request("POST", path, raw)
    assert reply.status == 422, (row, reply.body)
    answer = reply.json()
    found = [(p["type"], ".".join(map(str, p["loc"][1:])) or None) for p in answer["detail"]]
    assert found[: len(expected)] == list(expected) and (not exactly or len(found) == len(expected)), row
    assert (answer["error"]["code"], answer["error"]["param"]) == expected[0]
    assert answer["error"]["message"] == answer["detail"][0]["msg"]


# The words of section 4.4, where a row's point is in them.
MESSAGES: list[tuple[str, str, Any, str]] = [
    ("E17", E, b"", "body required"),
    ("E18", E, b"   ", "invalid JSON"),
    ("E19", E, b"[]", "body must be a JSON object"),
    ("E27", E, MINI | {"model": "nope"}, "value is not a valid enum member for this endpoint"),
    ("E28", E, MINI | {"model": "late"}, "model is not available on this endpoint"),
    ("E35", E, MINI | {"input": ["a"] * 513}, "input must contain at most 512 items"),
    ("E39", E, MINI | {"input": LONG}, "input exceeds 512 token limit (counted 513; bound by model positions)"),
    (
        *("E45", E, MINI | {"input": ["tide " * 510] * 234 + ["tide " * 191]}),
        "request exceeds the request token limit (counted 120001; bound by --max-request-tokens 120000)",
    ),
    *[("E46", E, MINI | {"dimensions": n}, "dimensions must be between 384 and 384") for n in (0, -1, 383, 385)],
    (
        *("E49", E, {"model": "pp", "input": "x", "dimensions": 12, "encoding_format": "base64_binary"}),
        "dimensions must be divisible by 8 for base64_binary",
    ),
    *[
        ("E50", E, MINI | {"encoding_format": f}, "value is not a valid enum member; permitted: 'float', 'base64'")
        for f in ("hex", "base64_int8")
    ],
    (
        *("E51", E, {"model": "pp", "input": "x", "encoding_format": "base64"}),
        "value is not a valid enum member; permitted: 'base64_int8', 'base64_binary', 'float'",
    ),
    ("E53", E, MINI | {"pooling": "max"}, "value is not a valid enum member; permitted: 'mean', 'cls', 'last'"),
    (
        *("E55", E, MINI | {"text_type": "query"}),
        "text_type is only supported for instruction embedding models",
    ),
    (
        *("E55", E, MINI | {"input_type": "search_document"}),
        "input_type is only supported for instruction embedding models",
    ),
    (
        *("E58", E, MRL | {"text_type": "query", "input_type": "query"}),
        "text_type and input_type are aliases; provide only one",
    ),
    (
        *("E58", E, MRL | {"text_type": "query", "prompt_name": "query"}),
        "prompt_name and text_type both select a prompt; provide only one",
    ),
    ("E59", E, MRL | {"prompt_name": "nope"}, "value is not a valid enum member; permitted: 'query'"),
    ("E59", E, MINI | {"prompt_name": "query"}, "prompt_name is only supported for models with prompts"),
    (
        *("E60", E, MINI | {"input": [101]}),
        "token id arrays are not accepted for this model; send text (LangChain: check_embedding_ctx_length=False)",
    ),
    ("E61", E, {"model": "ids", "input": [101, 30522]}, "token id must be between 0 and 30521"),
    (
        *("E62", E, {"model": "ids", "input": [101, 102], "prompt_name": "query"}),
        "token ids take no prompt; remove prompt_name",
    ),
    ("E64", C, {"model": "ctx", "input": [["a"]] * 513}, "input must contain at most 512 documents"),
    ("E64", C, {"model": "ctx", "input": [["a"] * 16_001]}, "input must contain at most 16000 chunks"),
    ("E65", C, {"model": "mini", "input": [["a"]]}, "model is not available on this endpoint"),
    ("E67", R, RANK | {"top_n": 0}, "top_n must be between 1 and the number of documents"),
    ("E67", R, RANK | {"top_n": 2, "top_k": 2}, "top_n and top_k are aliases; provide only one"),
    ("E68", R, RANK | {"documents": ["a"] * 1001}, "documents must contain at most 1000 items"),
    ("E73", R, RANK | {"max_tokens_per_doc": 0}, "max_tokens_per_doc must be at least 1"),
    (
        *("E75", R, RANK | {"model": "late", "raw_scores": False}),
        "raw_scores=false is only supported for cross-encoder models",
    ),
    ("E76", R, RANK | {"model": "mini"}, "model is not available on this endpoint"),
    ("E79", "/rerank", RANK | {"texts": ["a"]}, "documents and texts are alternatives; provide only one"),
    (
        *("E80", "/embed", {"model": "mini", "inputs": "x", "normalize": False}),
        "normalize is fixed to true by the model",
    ),
]


@pytest.mark.parametrize(("row", "path", "body", "message"), MESSAGES, ids=number([case[0] for case in MESSAGES]))
def test_message(edge: Server, row: str, path: str, body: Any, message: str) -> None:
    reply = edge.post(body, path)
    assert (reply.status, reply.json()["error"]["message"]) == (422, message), row


def test_e84_every_row_above_has_the_same_body_under_the_other_status(edge: Server, edge_400: Server) -> None:
    for row, path, body, *_ in ROWS:
        ours, theirs = edge.post(body, path), edge_400.post(body, path)
        assert (ours.status, theirs.status) == (422, 400), row
        assert ours.body == theirs.body, row
