"""Checks of bodies and fields that every POST route shares, in the words of http.md section 4.4."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server.errors import Invalid, Problem

MAX_DEPTH = 64
INT32 = range(-(2**31), 2**31)
DIRECTIONS = {"right": "right", "left": "left", "Right": "right", "Left": "left"}
MISSING = object()


@dataclass(frozen=True)
class RequestRules:
    """What the server's flags say about requests."""

    rows: int | None = None
    max_request_tokens: int = 120_000
    auto_truncate: bool = False


def parse_body(raw: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object; raise Invalid with the one problem of the body."""
    if not raw:
        raise Invalid([Problem((), "body required", "missing")])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise Invalid([Problem((), "invalid JSON", "json_invalid")]) from None
    if _deeper_than(body, MAX_DEPTH):
        raise Invalid([Problem((), "invalid JSON", "json_invalid")])
    if not isinstance(body, dict):
        raise Invalid([Problem((), "body must be a JSON object", "type_error.object")])
    return body


def _deeper_than(value: Any, depth: int) -> bool:
    """Tell whether containers nest deeper; level by level, as recursion could not be trusted with it."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
    return bool(level)


def is_integer(value: Any) -> bool:
    """Tell whether a JSON number has an integral value of 32 bits: 8, 8.0 and 1e2 do, true does not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == int(value) and int(value) in INT32


def read_model(
    body: Mapping[str, Any],
    models: Mapping[str, ServedModel],
    serves: Callable[[ServedModel], bool],
    problems: list[Problem],
) -> ServedModel | None:
    """Settle the label: it may be left out where only one serves the route."""
    serving = {label: model for label, model in models.items() if serves(model)}
    if "model" not in body:
        if len(serving) == 1:
            return next(iter(serving.values()))
        problems.append(Problem(("model",), "field required", "missing"))
        return None
    label = body["model"]
    if not isinstance(label, str):
        problems.append(Problem(("model",), "model must be a string", "type_error.string"))
    elif label not in models:
        problems.append(Problem(("model",), "value is not a valid enum member for this endpoint", "enum"))
    elif label not in serving:
        problems.append(Problem(("model",), "model is not available on this endpoint", "enum"))
    else:
        return serving[label]
    return None


def permitted(values: Sequence[str]) -> str:
    """Say which values an enum has."""
    return f"value is not a valid enum member; permitted: {', '.join(map(repr, values))}"


def read_enum(
    body: Mapping[str, Any],
    name: str,
    values: Sequence[str],
    problems: list[Problem],
    *,
    settled: bool = True,
    also: Mapping[str, str] | None = None,
) -> str | None:
    """Read a string with few values; where the label is not settled, only its type is checked."""
    value = body.get(name, MISSING)
    if value is MISSING:
        return None
    if not isinstance(value, str):
        problems.append(Problem((name,), f"{name} must be a string", "type_error.string"))
    elif settled and value not in (also or values):
        problems.append(Problem((name,), permitted(values), "enum"))
    else:
        return value
    return None


def read_format(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> str:
    """Read `encoding_format`; the first of the label's api mode is the default."""
    formats = tuple(CODECS[model.api]) if model else ()
    given = read_enum(body, "encoding_format", formats, problems, settled=model is not None)
    return given or next(iter(formats), "")


def read_dimensions(
    body: Mapping[str, Any], model: ServedModel | None, encoding_format: str, problems: list[Problem]
) -> int | None:
    """Read how many values a vector is cut to; None where the field is absent or wrong."""
    value = body.get("dimensions", MISSING)
    where = ("dimensions",)
    if value is not MISSING and not is_integer(value):
        problems.append(Problem(where, "dimensions must be an integer", "type_error.integer"))
        return None
    if model is None:
        return None
    width = model.dim if value is MISSING else int(value)
    if not model.min_dim <= width <= model.dim:
        between = f"dimensions must be between {model.min_dim} and {model.dim}"
        problems.append(Problem(where, between, "value_error.range"))
    elif encoding_format == "base64_binary" and width % 8:
        problems.append(Problem(where, "dimensions must be divisible by 8 for base64_binary", "value_error.divisible"))
    return None if value is MISSING else width


def read_boolean(body: Mapping[str, Any], name: str, problems: list[Problem]) -> bool | None:
    """Read true or false; None where the field is absent or no boolean."""
    value = body.get(name, MISSING)
    if value is MISSING or isinstance(value, bool):
        return None if value is MISSING else bool(value)
    problems.append(Problem((name,), f"{name} must be a boolean", "type_error.bool"))
    return None


def read_query(body: Mapping[str, Any], problems: list[Problem]) -> str | None:
    """Read `query`, a text; None where it is wrong. Whether it must be there is the caller's to say."""
    value = body["query"]
    where = ("query",)
    if not isinstance(value, str):
        problems.append(Problem(where, "query must be a string", "type_error.string"))
    elif not value:
        problems.append(Problem(where, "query must not be empty", "value_error.empty"))
    else:
        return value
    return None


def kept(tokens: int | None, direction: str) -> slice:
    """Return what a plain cut to that many tokens leaves; None cuts nothing."""
    if tokens is None:
        return slice(None)
    return slice(tokens) if direction == "right" else slice(-tokens, None)


def read_direction(body: Mapping[str, Any], problems: list[Problem]) -> str:
    """Read which end of an over-long text is cut."""
    given = read_enum(body, "truncation_direction", ("right", "left"), problems, also=DIRECTIONS)
    return DIRECTIONS[given or "right"]


def too_many(name: str, most: int, bound_by: str) -> Problem:
    """Say that a list is longer than its limit; `bound_by` names the flag that lowered it, if one did."""
    suffix = f" ({bound_by})" if bound_by else ""
    return Problem((name,), f"{name} must contain at most {most} items{suffix}", "value_error.list.max_items")
