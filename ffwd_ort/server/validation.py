"""Bodies of /v1/embeddings to typed requests: every problem of a phase at once (http.md section 4.4).

Three phases, each run only when the one before is clean: the body as JSON (fields.py), its fields, its tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffwd_ort.config import POOLING
from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.tokenization import Encoded
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.families import EMBEDDING
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import (
    MISSING,
    RequestRules,
    is_integer,
    kept,
    permitted,
    read_boolean,
    read_dimensions,
    read_direction,
    read_enum,
    read_format,
    read_model,
    too_many,
)
from ffwd_ort.server.tally import Tally, over_request_limit

MAX_INPUTS = 512
# Fields of TEI's /embed that mean the same here; `inputs` and `normalize` are looked at apart.
TEI_FIELDS = ("model", "dimensions", "prompt_name", "truncate", "truncation_direction", "normalize")
TEXT_TYPES: Mapping[str, Mapping[str, str]] = {
    "text_type": {"query": "query", "document": "document"},
    "input_type": {
        "query": "query",
        "document": "document",
        "search_query": "query",
        "search_document": "document",
        "passage": "document",
    },
}
TOKEN_IDS_REFUSED = (
    "token id arrays are not accepted for this model; send text (LangChain: check_embedding_ctx_length=False)"
)


@dataclass(frozen=True)
class EmbeddingsRequest:
    """A body of /v1/embeddings that passed the field phase. Exactly one of `texts` and `token_ids` is set."""

    model: ServedModel
    texts: list[str] | None
    token_ids: list[list[int]] | None
    bare: bool
    encoding_format: str
    dimensions: int | None
    pooling: str | None
    prompt: str
    truncate: bool
    direction: str
    name: str = "input"  # of the field, as the client calls it


def serves(model: ServedModel) -> bool:
    """Tell whether a label makes one vector per text."""
    return model.kind == EMBEDDING


# --- fields -------------------------------------------------------------------------------------------


def embeddings_request(
    body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules
) -> EmbeddingsRequest:
    """Check the fields of /v1/embeddings; raise Invalid with every problem, in the order of the fields."""
    return _read(body, models, rules, "input")


def embed_request(body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules) -> EmbeddingsRequest:
    """Check the fields of TEI's /embed, where null in an optional field means that it is not given."""
    given = {name: body[name] for name in TEI_FIELDS if body.get(name) is not None}
    if "inputs" in body:
        given["inputs"] = body["inputs"]
    return _read(given | {"encoding_format": "float"}, models, rules, "inputs")


def _read(
    body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules, name: str
) -> EmbeddingsRequest:
    problems: list[Problem] = []
    model = read_model(body, models, serves, problems)
    encoding_format = read_format(body, model, problems)
    dimensions = read_dimensions(body, model, encoding_format, problems)
    pooling = _pooling(body, model, problems)
    gives_ids = model is not None and model.accepts_token_ids and _are_token_ids(body.get(name))
    text_type = None if gives_ids else read_text_type(body, model, problems)
    prompt_name = None if gives_ids else read_prompt_name(body, model, problems)
    truncate = read_boolean(body, "truncate", problems)
    direction = read_direction(body, problems)
    if gives_ids:
        problems += [
            Problem((name,), f"token ids take no prompt; remove {field}", "value_error.conflict")
            for field in ("text_type", "input_type", "prompt_name")
            if field in body
        ]
    if name == "inputs":
        _check_normalize(body, model, problems)
    cuts = rules.auto_truncate if truncate is None else truncate
    keep = kept(model.cap.tokens if cuts and model else None, direction)
    texts, token_ids = read_input(body, model, rules, problems, name, keep)
    if problems or model is None:
        raise Invalid(problems)
    return EmbeddingsRequest(
        model=model,
        texts=texts,
        token_ids=token_ids,
        bare=isinstance(body[name], str) or (token_ids is not None and not isinstance(body[name][0], list)),
        encoding_format=encoding_format,
        dimensions=dimensions,
        pooling=pooling,
        prompt=model.prompt_for(text_type, prompt_name),
        truncate=cuts,
        direction=direction,
        name=name,
    )


def _check_normalize(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> None:
    """Refuse another scaling than the label's: it belongs to the model, and ignoring the field would be worse."""
    value = read_boolean(body, "normalize", problems)
    if value is not None and model is not None and value != model.normalize:
        fixed = f"normalize is fixed to {str(model.normalize).lower()} by the model"
        problems.append(Problem(("normalize",), fixed, "value_error.contract"))


def _pooling(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> str | None:
    value = read_enum(body, "pooling", POOLING, problems)
    own = None if model is None else "+".join(model.manifest.pooling)
    if value is not None and model is not None and model.manifest.fixed_pooling and value != own:
        problems.append(Problem(("pooling",), f"pooling is fixed to {own!r} by the checkpoint", "value_error.contract"))
    return value


def read_text_type(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> str | None:
    chosen = None
    for name, values in TEXT_TYPES.items():
        if name not in body:
            continue
        if model is not None and not model.routes_text_types:
            only = f"{name} is only supported for instruction embedding models"
            problems.append(Problem((name,), only, "extra_fields"))
            continue
        value = read_enum(body, name, tuple(values), problems)
        if name == "text_type" and value is not None and "input_type" in body:
            alias = "text_type and input_type are aliases; provide only one"
            problems.append(Problem((name,), alias, "value_error.conflict"))
        chosen = chosen or (values[value] if value is not None else None)
    return chosen


def read_prompt_name(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> str | None:
    value = body.get("prompt_name", MISSING)
    if value is MISSING:
        return None
    where = ("prompt_name",)
    if not isinstance(value, str):
        problems.append(Problem(where, "prompt_name must be a string", "type_error.string"))
        return None
    if model is not None and not model.names_prompts:
        only = "prompt_name is only supported for models with prompts"
        problems.append(Problem(where, only, "extra_fields"))
    elif model is not None and value not in model.prompts:
        problems.append(Problem(where, permitted(sorted(model.prompts)), "enum"))
    elif "text_type" in body or "input_type" in body:
        both = "prompt_name and text_type both select a prompt; provide only one"
        problems.append(Problem(where, both, "value_error.conflict"))
    else:
        return value
    return None


def read_input(
    body: Mapping[str, Any],
    model: ServedModel | None,
    rules: RequestRules,
    problems: list[Problem],
    name: str,
    keep: slice | None,
) -> tuple[list[str] | None, list[list[int]] | None]:
    """Read texts, or token ids where route and label accept them, from the field that the client calls `name`.

    `keep` is what a cut will leave of ids; None where the route takes none.
    """
    value = body.get(name, MISSING)
    where = (name,)
    if value is MISSING:
        problems.append(Problem(where, "field required", "missing"))
    elif isinstance(value, str):
        if value:
            return [value], None
        problems.append(Problem(where, f"{name} must not be empty", "value_error.empty"))
    elif not isinstance(value, list):
        problems.append(Problem(where, f"{name} must be a string or an array of strings", "type_error"))
    elif not value:
        problems.append(Problem(where, f"{name} must contain at least 1 item", "value_error.list.min_items"))
    elif keep is None and _are_token_ids(value):
        problems.append(Problem(where, TOKEN_IDS_REFUSED, "type_error.token_ids"))
    elif is_integer(value[0]) and _are_token_ids(value):
        return None, _token_ids(model, [value], [(name,)], keep or slice(None), rules, problems)
    elif (problem := _too_many(name, len(value), rules)) is not None:
        problems.append(problem)
    elif _are_token_ids(value):
        return None, _token_ids(
            model, value, [(name, i) for i in range(len(value))], keep or slice(None), rules, problems
        )
    else:
        before = len(problems)
        for index, item in enumerate(value):
            if not isinstance(item, str):
                problems.append(Problem((name, index), "input item must be a string", "type_error.string"))
            elif not item:
                problems.append(Problem((name, index), "input item must not be empty", "value_error.empty"))
        return (value, None) if len(problems) == before else (None, None)
    return None, None


def _are_token_ids(value: Any) -> bool:
    """Tell whether `input` is one list of ids, or a list of such lists."""
    if not isinstance(value, list) or not value:
        return False
    if is_integer(value[0]):
        return all(map(is_integer, value))
    return all(isinstance(item, list) and all(map(is_integer, item)) for item in value)


def _too_many(name: str, count: int, rules: RequestRules) -> Problem | None:
    most = min(MAX_INPUTS, rules.rows or MAX_INPUTS)
    bound_by = f"bound by --rows {rules.rows}" if most < MAX_INPUTS else ""
    return too_many(name, most, bound_by) if count > most else None


def _token_ids(
    model: ServedModel | None,
    lists: list[list[Any]],
    places: Sequence[tuple[str | int, ...]],
    keep: slice,
    rules: RequestRules,
    problems: list[Problem],
) -> list[list[int]] | None:
    """Check lists of ids, as far as a cut will leave them; `places` say where each of them stands in the body."""
    if model is None:
        return None
    name = str(places[0][0])
    if not model.accepts_token_ids:
        problems.append(Problem((name,), TOKEN_IDS_REFUSED, "type_error.token_ids"))
        return None
    spans = [range(*keep.indices(len(ids))) for ids in lists]
    # Before each id is looked at: millions of them would make as many problems.
    over = over_request_limit(name, sum(map(len, spans)), rules.max_request_tokens)
    if over is not None:
        problems.append(over)
        return None
    before = len(problems)
    between = f"token id must be between 0 and {model.vocabulary - 1}"
    for where, ids, span in zip(places, lists, spans, strict=True):
        if not ids:
            problems.append(Problem(where, "input item must not be empty", "value_error.empty"))
        problems += [
            Problem((*where, j), between, "value_error.token_id") for j in span if not 0 <= ids[j] < model.vocabulary
        ]
    return lists if len(problems) == before else None


# --- tokens -------------------------------------------------------------------------------------------


def tokens(request: EmbeddingsRequest, rules: RequestRules) -> list[Encoded]:
    """Tokenise a request and check every length; raise Invalid with every problem."""
    tally = Tally(rules, request.model.cap, request.name, "input", counts_refused=False)
    encoded: list[Encoded] = []
    for index, text in enumerate(_tokenised(request)):
        encoded.append(text)
        where = (request.name,) if request.bare else (request.name, index)
        if not tally.add(where, len(text.ids), text.counted, text.at_least):
            break
    tally.check()
    return encoded


def _tokenised(request: EmbeddingsRequest) -> Iterator[Encoded]:
    model = request.model
    if request.token_ids is not None:
        yield from (_given(ids, request) for ids in request.token_ids)
        return
    try:
        yield from model.tokenizer.encode_each(
            request.texts or [],
            prompt=request.prompt,
            max_length=model.cap.tokens if request.truncate else None,
            direction=request.direction,
            enough=model.cap.tokens,
        )
    except TokenizationFailed as error:
        where: tuple[str | int, ...] = (request.name,) if request.bare else (request.name, error.args[0])
        raise Invalid([Problem(where, "tokenization failed", "value_error.tokenization")]) from None


def _given(ids: list[int], request: EmbeddingsRequest) -> Encoded:
    """Take token ids as they are; a cut puts nothing back."""
    keep = kept(request.model.cap.tokens if request.truncate else None, request.direction)
    return Encoded(np.array(ids[keep], np.int32), len(ids))
