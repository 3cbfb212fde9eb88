"""POST /v1/embeddings against a real gunicorn: the rows of http.md section 16 for this route."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS, VOCABULARY, long_text
from tests.serving import Reply, Server

Serve = Callable[..., Server]


def problems(reply: Reply, status: int = 422) -> list[tuple[str, str]]:
    """List (type, place) of every problem, and check that both shapes of the body agree."""
    assert reply.status == status, reply.body
    body = reply.json()
    found = [(p["type"], ".".join(map(str, p["loc"][1:]))) for p in body["detail"]]
    assert all(p["loc"][0] == "body" for p in body["detail"])
    error = body["error"]
    assert (error["code"], error["param"] or "") == found[0]
    assert error["message"] == body["detail"][0]["msg"] and error["type"] == "invalid_request_error"
    return found


def vectors(reply: Reply) -> np.ndarray:
    assert reply.status == 200, reply.body
    data = reply.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return np.array([entry["embedding"] for entry in data], np.float32)


TINY: dict[str, Any] = {"model": "tiny", "input": "x"}
PP: dict[str, Any] = {"model": "pp", "input": "x"}
MRL: dict[str, Any] = {"model": "mrl", "input": "x"}

# Body, then the problems expected: (type, place) in order.
REFUSED: list[tuple[Any, list[tuple[str, str]]]] = [
    (b"", [("missing", "")]),
    (b"   ", [("json_invalid", "")]),
    (b'{"model":"tiny","input":"x"} y', [("json_invalid", "")]),
    (b"{'a':1}", [("json_invalid", "")]),
    *[(body, [("type_error.object", "")]) for body in (b"[]", b"null", b'"x"', b"7")],
    *[
        (b'{"model":"tiny","input":"x","seed":%s}' % number, [("json_invalid", "")])
        for number in (b"NaN", b"-Infinity", b"1e400", b"9" * 400)
    ],
    (b"[" * 2000 + b"]" * 2000, [("json_invalid", "")]),
    (b'{"model":"tiny","input":"x","deep":' + b"[" * 2000 + b"]" * 2000 + b"}", [("json_invalid", "")]),
    (b'{"model":"tiny","input":"x","deep":' + b"[" * 64 + b"]" * 64 + b"}", [("json_invalid", "")]),
    *[
        (body, [("json_invalid", "")])
        for body in (
            b'{"model":"tiny","input":"\xff"}',
            b'{"model":"tiny","input":"\\ud83c"}',
            b'\xef\xbb\xbf{"model":"tiny","input":"x"}',
            '{"model":"tiny","input":"x"}'.encode("utf-16"),
            b'{"model":"tiny","input":"a\nb"}',
            b'{"model":"tiny","input":"x",}',
            b'{"model":"tiny","input":"x"/*c*/}',
        )
    ],
    ({}, [("missing", "model"), ("missing", "input")]),
    ({"input": "x"}, [("missing", "model")]),
    *[({"model": name, "input": "x"}, [("enum", "model")]) for name in ("nope", "Tiny", "")],
    *[({"model": name, "input": "x"}, [("type_error.string", "model")]) for name in (None, 7, ["tiny"])],
    ({"model": "nope", "input": "x", "encoding_format": "base64_int8", "dimensions": 3}, [("enum", "model")]),
    ({"model": "nope", "input": "x", "dimensions": "3"}, [("enum", "model"), ("type_error.integer", "dimensions")]),
    ({"model": "tiny"}, [("missing", "input")]),
    ({"model": "tiny", "input": ""}, [("value_error.empty", "input")]),
    ({"model": "tiny", "input": []}, [("value_error.list.min_items", "input")]),
    ({"model": "tiny", "input": ["", "ok"]}, [("value_error.empty", "input.0")]),
    (
        {"model": "tiny", "input": ["ok", 1, None, ""]},
        [("type_error.string", "input.1"), ("type_error.string", "input.2"), ("value_error.empty", "input.3")],
    ),
    *[({"model": "tiny", "input": value}, [("type_error", "input")]) for value in (7, {"text": "x"}, None, True)],
    ({"model": "tiny", "input": [["a"]]}, [("type_error.string", "input.0")]),
    ({"model": "tiny", "input": ["x"] * 513}, [("value_error.list.max_items", "input")]),
    ({"model": "tiny", "input": ["x"] * 512 + [""]}, [("value_error.list.max_items", "input")]),
    *[(TINY | {"dimensions": n}, [("value_error.range", "dimensions")]) for n in (0, -1, 47, 49)],
    *[
        (TINY | {"dimensions": n}, [("type_error.integer", "dimensions")])
        for n in ("8", None, True, 8.5, 99999999999, 1e30)
    ],
    (MRL | {"dimensions": 15}, [("value_error.range", "dimensions")]),
    (TINY | {"encoding_format": None}, [("type_error.string", "encoding_format")]),
    *[(TINY | {"encoding_format": name}, [("enum", "encoding_format")]) for name in ("hex", "base64_int8", "Float")],
    (PP | {"encoding_format": "base64"}, [("enum", "encoding_format")]),
    (PP | {"dimensions": 12, "encoding_format": "base64_binary"}, [("value_error.divisible", "dimensions")]),
    (PP | {"dimensions": 3}, [("value_error.range", "dimensions")]),
    (TINY | {"pooling": "max"}, [("enum", "pooling")]),
    (TINY | {"pooling": None}, [("type_error.string", "pooling")]),
    ({"model": "a/b", "input": "x", "pooling": "cls"}, [("value_error.contract", "pooling")]),
    (TINY | {"text_type": "query"}, [("extra_fields", "text_type")]),
    (TINY | {"input_type": "search_document"}, [("extra_fields", "input_type")]),
    (MRL | {"text_type": "passage"}, [("enum", "text_type")]),
    (MRL | {"text_type": None}, [("type_error.string", "text_type")]),
    (MRL | {"text_type": "query", "input_type": "query"}, [("value_error.conflict", "text_type")]),
    (MRL | {"text_type": "query", "prompt_name": "query"}, [("value_error.conflict", "prompt_name")]),
    (MRL | {"prompt_name": "nope"}, [("enum", "prompt_name")]),
    (TINY | {"prompt_name": "query"}, [("extra_fields", "prompt_name")]),
    (MRL | {"prompt_name": 3}, [("type_error.string", "prompt_name")]),
    (TINY | {"truncate": "yes"}, [("type_error.bool", "truncate")]),
    (TINY | {"truncate": 1}, [("type_error.bool", "truncate")]),
    (TINY | {"truncation_direction": "up"}, [("enum", "truncation_direction")]),
    (TINY | {"truncation_direction": None}, [("type_error.string", "truncation_direction")]),
    *[
        ({"model": "tiny", "input": ids}, [("type_error.token_ids", "input")])
        for ids in ([1, 2, 3], [[1, 2]], [1] * 600, [[1], [2]], [1.0, 2])
    ],
    *[({"model": "ids", "input": [2, n]}, [("value_error.token_id", "input.1")]) for n in (len(VOCABULARY), -1)],
    ({"model": "ids", "input": [[2, 3], [2, 999]]}, [("value_error.token_id", "input.1.1")]),
    ({"model": "ids", "input": [[2], []]}, [("value_error.empty", "input.1")]),
    ({"model": "ids", "input": [2, True]}, [("type_error.string", "input.0"), ("type_error.string", "input.1")]),
    ({"model": "ids", "input": [2, 3], "prompt_name": "query"}, [("value_error.conflict", "input")]),
    ({"model": "tiny", "input": long_text(129)}, [("value_error.context_length", "input")]),
    (
        {"model": "tiny", "input": ["x", long_text(129), "y", long_text(500)]},
        [("value_error.context_length", "input.1"), ("value_error.context_length", "input.3")],
    ),
    (
        TINY | {"encoding_format": 1, "dimensions": "x", "pooling": 2, "truncate": 0, "input": 3},
        [
            ("type_error.string", "encoding_format"),
            ("type_error.integer", "dimensions"),
            ("type_error.string", "pooling"),
            ("type_error.bool", "truncate"),
            ("type_error", "input"),
        ],
    ),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_bad_body_is_refused_with_every_problem_in_order(
    fleet: Server, body: Any, expected: list[tuple[str, str]]
) -> None:
    assert problems(fleet.post(body)) == expected


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"model": "nope", "input": "x"}, "value is not a valid enum member for this endpoint"),
    (TINY | {"dimensions": 8}, "dimensions must be between 48 and 48"),
    (TINY | {"encoding_format": "hex"}, "value is not a valid enum member; permitted: 'float', 'base64'"),
    (
        PP | {"encoding_format": "base64"},
        "value is not a valid enum member; permitted: 'base64_int8', 'base64_binary', 'float'",
    ),
    (
        PP | {"dimensions": 12, "encoding_format": "base64_binary"},
        "dimensions must be divisible by 8 for base64_binary",
    ),
    (TINY | {"pooling": "max"}, "value is not a valid enum member; permitted: 'mean', 'cls', 'last'"),
    ({"model": "a/b", "input": "x", "pooling": "cls"}, "pooling is fixed to 'cls+mean' by the checkpoint"),
    (TINY | {"text_type": "query"}, "text_type is only supported for instruction embedding models"),
    (MRL | {"prompt_name": "nope"}, "value is not a valid enum member; permitted: 'document', 'query'"),
    (
        MRL | {"input_type": "x"},
        "value is not a valid enum member; "
        "permitted: 'query', 'document', 'search_query', 'search_document', 'passage'",
    ),
    (TINY | {"truncation_direction": "up"}, "value is not a valid enum member; permitted: 'right', 'left'"),
    (TINY | {"input": ["x"] * 513}, "input must contain at most 512 items"),
    (TINY | {"input": long_text(129)}, "input exceeds 128 token limit (counted 129; bound by model positions)"),
    (
        TINY | {"input": [1, 2]},
        "token id arrays are not accepted for this model; send text (LangChain: check_embedding_ctx_length=False)",
    ),
    ({"model": "ids", "input": [2, 9999]}, f"token id must be between 0 and {len(VOCABULARY) - 1}"),
]


@pytest.mark.parametrize(("body", "message"), MESSAGES, ids=[m for _, m in MESSAGES])
def test_messages_are_those_of_the_contract(fleet: Server, body: dict[str, Any], message: str) -> None:
    assert fleet.post(body).json()["error"]["message"] == message


def test_token_ids_take_no_prompt(fleet: Server) -> None:
    reply = fleet.post({"model": "ids", "input": [2, 3], "prompt_name": "query"})
    assert reply.json()["error"]["message"] == "token ids take no prompt; remove prompt_name"


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"user": "someone", "seed": 3, "unknown": {"a": [1]}},
        {"dimensions": 48},
        {"dimensions": 48.0},
        {"dimensions": 4.8e1},
        {"pooling": "mean"},
        {"truncate": True},
        {"truncation_direction": "Left"},
        {"encoding_format": "float"},
    ],
)
def test_a_good_body_is_answered(fleet: Server, extra: dict[str, Any]) -> None:
    reply = fleet.post(TINY | extra)
    assert vectors(reply).shape == (1, 48)
    body = reply.json()
    assert body["object"] == "list" and body["model"] == "tiny" and body["data"][0]["object"] == "embedding"
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_64_levels_of_nesting_are_read(fleet: Server) -> None:
    assert fleet.post(b'{"model":"tiny","input":"x","deep":' + b"[" * 63 + b"]" * 63 + b"}").status == 200


def test_the_last_of_duplicate_keys_counts(fleet: Server) -> None:
    assert fleet.post(b'{"model":"nope","model":"tiny","input":"x"}').status == 200


def test_validation_status_400_sends_the_same_body(serve: Serve, tiny: Path, fleet: Server) -> None:
    server = serve("--model", f"tiny={tiny}", "--validation-status", "400")
    body = {"model": "tiny", "input": ["ok", 1, None, ""]}
    reply = server.post(body)
    assert problems(reply, status=400)
    assert reply.body == fleet.post(body).body


def test_model_may_be_left_out_with_one_label(mini: Server) -> None:
    assert mini.post({"input": "x"}).json()["model"] == "mini"


def test_base64_holds_the_float_answer(fleet: Server) -> None:
    body = {"model": "tiny", "input": list(TEXTS)}
    floats = vectors(fleet.post(body))
    encoded = [entry["embedding"] for entry in fleet.post(body | {"encoding_format": "base64"}).json()["data"]]
    decoded = np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in encoded])
    assert decoded.shape == (len(TEXTS), 48)
    assert np.abs(decoded - floats).max() <= 1e-6


def test_perplexity_formats_agree_with_each_other(fleet: Server) -> None:
    def ask(**extra: Any) -> Any:
        return fleet.post({"model": "pp", "input": "the tide", **extra}).json()["data"][0]["embedding"]

    quantised = np.frombuffer(base64.b64decode(ask()), np.int8)
    assert quantised.shape == (16,)
    assert ask(encoding_format="base64_int8") == ask()
    assert ask(encoding_format="float") == (quantised / 128).tolist()
    bits = np.unpackbits(
        np.frombuffer(base64.b64decode(ask(encoding_format="base64_binary")), np.uint8), bitorder="little"
    )
    assert (bits[np.abs(quantised) > 0] == (quantised[np.abs(quantised) > 0] > 0)).all()
    assert len(base64.b64decode(ask(dimensions=12))) == 12


def test_512_texts_of_mixed_length_come_back_in_order_and_equal_to_their_solo_runs(
    fleet: Server, tiny: Path, cache_dir: Path
) -> None:
    random = np.random.default_rng(5)
    texts = [long_text(int(n)) for n in random.integers(3, 129, 512)]
    found = vectors(fleet.post({"model": "tiny", "input": texts}))
    with SentenceEncoder(tiny, cache_dir=cache_dir) as encoder:
        alone = np.stack([encoder.encode(text) for text in texts[::16]])
    assert np.abs(found[::16] - alone).max() < 5e-6


def test_dimensions_are_cut_and_scaled_again(fleet: Server) -> None:
    full = vectors(fleet.post(MRL))
    cut = vectors(fleet.post(MRL | {"dimensions": 16.0}))
    assert cut.shape == (1, 16) and abs(np.linalg.norm(cut) - 1) < 1e-6
    assert np.abs(cut - full[:, :16] / np.linalg.norm(full[:, :16])).max() < 1e-6


def test_pooling_of_a_request_is_honoured(fleet: Server) -> None:
    body = {"model": "tiny", "input": "the tide falls"}
    mean, cls, last = (vectors(fleet.post(body | {"pooling": mode})) for mode in ("mean", "cls", "last"))
    both = vectors(fleet.post({"model": "a/b", "input": "the tide falls"}))[0]
    assert np.abs(cls - mean).max() > 1e-3 and np.abs(last - cls).max() > 1e-3
    assert both.shape == (96,)
    assert np.abs(both[:48] / np.linalg.norm(both[:48]) - cls[0]).max() < 5e-6


def test_text_type_input_type_and_the_typed_prompt_give_one_vector(fleet: Server) -> None:
    answers = [
        fleet.post({"model": "mrl", "input": "falls", "text_type": "query"}),
        fleet.post({"model": "mrl", "input": "falls", "input_type": "search_query"}),
        fleet.post({"model": "mrl", "input": "falls", "prompt_name": "query"}),
        fleet.post({"model": "mrl", "input": "the tide: falls"}),
    ]
    assert len({reply.json()["usage"]["prompt_tokens"] for reply in answers}) == 1
    assert np.abs(np.diff([vectors(reply)[0] for reply in answers], axis=0)).max() < 5e-6
    passage = vectors(fleet.post({"model": "mrl", "input": "falls", "input_type": "passage"}))
    typed = vectors(fleet.post({"model": "mrl", "input": "a boat: falls"}))
    assert np.abs(passage - typed).max() < 5e-6


def test_token_ids_are_used_as_given_where_they_are_accepted(fleet: Server) -> None:
    text = fleet.post({"model": "tiny", "input": "the tide"})
    ids = fleet.post({"model": "ids", "input": [[2, 5, 13, 3]]})
    assert fleet.post({"model": "ids", "input": [2, 5, 13, 3]}).json()["usage"]["prompt_tokens"] == 4
    assert np.abs(vectors(ids) - vectors(text)).max() < 5e-6
    bare = fleet.post({"model": "ids", "input": [[5, 13]]})
    assert bare.json()["usage"]["prompt_tokens"] == 2, "no specials are put around them"


def test_an_over_long_text_is_cut_on_request_as_by_the_tokenizers_library(
    fleet: Server, tiny: Path, cache_dir: Path
) -> None:
    text = long_text(300)
    right = fleet.post({"model": "tiny", "input": text, "truncate": True})
    left = fleet.post({"model": "tiny", "input": text, "truncate": True, "truncation_direction": "left"})
    assert right.headers["x-truncated"] == left.headers["x-truncated"] == "1"
    assert right.json()["usage"]["prompt_tokens"] == 128
    words = text.split()
    with SentenceEncoder(tiny, cache_dir=cache_dir) as encoder:
        expected = encoder.encode([" ".join(words[:126]), " ".join(words[-126:])])
    assert np.abs(np.concatenate([vectors(right), vectors(left)]) - expected).max() < 5e-6
    assert "x-truncated" not in fleet.post(TINY).headers


def test_auto_truncate_cuts_unless_the_request_says_no(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--auto-truncate")
    assert server.post({"input": long_text(300)}).headers["x-truncated"] == "1"
    assert problems(server.post({"input": long_text(300), "truncate": False}))


@pytest.mark.parametrize(
    ("flags", "option", "limit", "binder"),
    [
        (["--max-seq", "64"], "", 64, "--max-seq"),
        ([], ":max_seq=32", 32, "--max-seq"),
        (["--max-batch-tokens", "64"], "", 64, "--max-batch-tokens"),
    ],
)
def test_a_refused_length_names_the_cap_the_count_and_what_binds_it(
    serve: Serve, tiny: Path, flags: list[str], option: str, limit: int, binder: str
) -> None:
    server = serve("--model", f"tiny={tiny}{option}", *flags)
    reply = server.post({"input": long_text(100)})
    message = f"input exceeds {limit} token limit (counted 100; bound by {binder})"
    assert reply.json()["error"]["message"] == message
    assert server.get("/health").json()["models"][0]["max_tokens"] == limit


def test_rows_and_request_tokens_are_limited_by_flag(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--rows", "32", "--max-request-tokens", "900")
    reply = server.post({"input": ["x"] * 33})
    assert reply.json()["error"]["message"] == "input must contain at most 32 items (bound by --rows 32)"
    assert server.post({"input": [long_text(100)] * 9}).status == 200
    reply = server.post({"input": [long_text(100)] * 8 + [long_text(101)]})
    limit = "request exceeds the request token limit (counted 901; bound by --max-request-tokens 900)"
    assert reply.json()["error"]["message"] == limit
    assert reply.json()["error"]["param"] == "input"


def test_minilm_refuses_513_tokens_with_the_cap_the_count_and_what_binds_it(mini: Server) -> None:
    words = " ".join(["tide"] * 511)
    reply = mini.post({"input": words})
    assert problems(reply) == [("value_error.context_length", "input")]
    assert reply.json()["error"]["message"] == "input exceeds 512 token limit (counted 513; bound by model positions)"
    assert mini.post({"input": words.removesuffix(" tide")}).json()["usage"]["prompt_tokens"] == 512


@pytest.mark.parametrize(
    ("text", "tokens"), [(" ", 2), ("\u200d", 2), ("\U0001f469\u200d\U0001f52c lab", 4), ("hello [MASK] x", 5)]
)
def test_odd_texts_have_the_token_counts_of_the_contract(mini: Server, text: str, tokens: int) -> None:
    assert mini.post({"input": text}).json()["usage"]["prompt_tokens"] == tokens


def test_a_text_is_not_cut_at_nul(mini: Server) -> None:
    with_nul, before = vectors(mini.post({"input": ["ab\u0000cd", "ab"]}))
    assert np.abs(with_nul - before).max() > 1e-3


def test_the_contracts_own_example_has_its_vectors(mini: Server) -> None:
    body = {"model": "mini", "input": ["Low water falls at 06:40.", "Ferries skip the ebb sailing."]}
    reply = mini.post(body)
    expected = [[0.0533422232, 0.0568895414, 0.100355744], [0.0729435831, 0.0933400765, 0.0427120589]]
    assert np.abs(vectors(reply)[:, :3] - expected).max() < 1e-6
    assert reply.json()["usage"] == {"prompt_tokens": 19, "total_tokens": 19}
    assert np.allclose(np.linalg.norm(vectors(reply), axis=1), 1, atol=1e-6)
