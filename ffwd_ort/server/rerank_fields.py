"""Bodies of /v1/rerank to typed requests (http.md sections 4.4 and 9)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.scoring import LOGIT
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import (
    MISSING,
    RequestRules,
    is_integer,
    read_boolean,
    read_direction,
    read_model,
    read_query,
    too_many,
)

MAX_DOCUMENTS = 1000
# Fields of TEI's /rerank, and ours that it may have besides.
TEI_FIELDS = (
    *("model", "query", "texts", "top_n", "top_k", "return_text", "max_tokens_per_doc"),
    *("raw_scores", "truncate", "truncation_direction"),
)


@dataclass(frozen=True)
class RerankRequest:
    """A body of /v1/rerank that passed the field phase. `given` are the documents as they were sent.

    `name` is what the client calls the list of them. `truncate` is for documents, `cuts_query` for the query.
    """

    model: ServedModel
    query: str
    documents: list[str]
    given: list[Any]
    top_n: int | None
    return_documents: bool
    max_tokens_per_doc: int | None
    raw_scores: bool
    truncate: bool
    cuts_query: bool
    direction: str
    name: str = "documents"


def rerank_request(body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules) -> RerankRequest:
    """Check the fields of /v1/rerank; raise Invalid with every problem, in the order of the fields."""
    return _read(body, models, rules, "documents", [])


def texts_request(body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules) -> RerankRequest:
    """Check the fields of TEI's /rerank, where null in an optional field means that it is not given."""
    required = ("query", "texts")
    given = {name: body[name] for name in TEI_FIELDS if name in body and (body[name] is not None or name in required)}
    return _read(given, models, rules, "texts", [])


def either_request(body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules) -> RerankRequest:
    """Check a body that has `documents`, or TEI's `texts`."""
    if "texts" in body and "documents" in body:
        alternatives = "documents and texts are alternatives; provide only one"
        both = Problem(("documents",), alternatives, "value_error.conflict")
        return _read(body, models, rules, "documents", [both])
    return (texts_request if "texts" in body else rerank_request)(body, models, rules)


def serves(model: ServedModel) -> bool:
    """Tell whether a label scores documents."""
    return model.scorer is not None


def _read(
    body: Mapping[str, Any],
    models: Mapping[str, ServedModel],
    rules: RequestRules,
    name: str,
    problems: list[Problem],
) -> RerankRequest:
    """Read a body's fields; `problems` are those of it that are known."""
    model = read_model(body, models, serves, problems)
    query = _query(body, problems)
    documents = _documents(body, name, model, rules, problems)
    top_n = _top_n(body, problems)
    return_documents = read_boolean(body, "return_text" if name == "texts" else "return_documents", problems)
    most = _positive(body, "max_tokens_per_doc", "max_tokens_per_doc must be at least 1", problems)
    raw_scores = _raw_scores(body, model, problems)
    truncate = read_boolean(body, "truncate", problems)
    direction = read_direction(body, problems)
    if problems or model is None:
        raise Invalid(problems)
    return RerankRequest(
        model=model,
        query=query,
        documents=documents,
        given=body[name],
        top_n=top_n,
        return_documents=bool(return_documents),
        max_tokens_per_doc=most,
        # TEI's clients expect a sigmoid of a cross-encoder, unless they ask for its logit.
        raw_scores=raw_scores is not False if name == "documents" or model.scorer != LOGIT else raw_scores is True,
        truncate=most is not None or (rules.auto_truncate if truncate is None else truncate),
        cuts_query=rules.auto_truncate if truncate is None else truncate,
        direction=direction,
        name=name,
    )


def _query(body: Mapping[str, Any], problems: list[Problem]) -> str:
    if "query" not in body:
        problems.append(Problem(("query",), "field required", "missing"))
        return ""
    return read_query(body, problems) or ""


def _documents(
    body: Mapping[str, Any], name: str, model: ServedModel | None, rules: RequestRules, problems: list[Problem]
) -> list[str]:
    value = body.get(name, MISSING)
    where = (name,)
    # Where texts are encoded apart, the query takes one of the rows.
    apart = model is not None and model.scorer != LOGIT
    most = min(MAX_DOCUMENTS, rules.rows - apart if rules.rows else MAX_DOCUMENTS)
    if value is MISSING:
        problems.append(Problem(where, "field required", "missing"))
    elif not isinstance(value, list):
        problems.append(Problem(where, f"{name} must be an array of strings", "type_error.array"))
    elif not value:
        problems.append(Problem(where, f"{name} must contain at least 1 item", "value_error.list.min_items"))
    elif len(value) > most:
        bound_by = f"bound by --rows {rules.rows}{', query included' if apart else ''}" if most < MAX_DOCUMENTS else ""
        problems.append(too_many(name, most, bound_by))
    else:
        return [_document(name, index, item, problems) for index, item in enumerate(value)]
    return []


def _document(name: str, index: int, item: Any, problems: list[Problem]) -> str:
    """Read a document: a string, or an object whose `text` is one."""
    where: tuple[str | int, ...] = (name, index)
    text = item
    if isinstance(item, dict) and name == "documents":
        where = (*where, "text")
        if "text" not in item:
            problems.append(Problem(where, "field required", "missing"))
            return ""
        text = item["text"]
    if not isinstance(text, str):
        problems.append(Problem(where, "document must be a string", "type_error.string"))
        return ""
    if not text:
        problems.append(Problem(where, "document must not be empty", "value_error.empty"))
    return text


def _top_n(body: Mapping[str, Any], problems: list[Problem]) -> int | None:
    """Read `top_n`, or `top_k`, its alias; more than there are documents means all."""
    if "top_n" in body and "top_k" in body:
        alias = "top_n and top_k are aliases; provide only one"
        problems.append(Problem(("top_n",), alias, "value_error.conflict"))
        return None
    name = "top_k" if "top_k" in body else "top_n"
    return _positive(body, name, "top_n must be between 1 and the number of documents", problems, called="top_n")


def _positive(
    body: Mapping[str, Any], name: str, too_low: str, problems: list[Problem], called: str | None = None
) -> int | None:
    value = body.get(name, MISSING)
    if value is MISSING:
        return None
    if not is_integer(value):
        problems.append(Problem((name,), f"{called or name} must be an integer", "type_error.integer"))
    elif value < 1:
        problems.append(Problem((name,), too_low, "value_error.range"))
    else:
        return int(value)
    return None


def _raw_scores(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> bool | None:
    value = read_boolean(body, "raw_scores", problems)
    if value is False and model is not None and model.scorer != LOGIT:
        only = "raw_scores=false is only supported for cross-encoder models"
        problems.append(Problem(("raw_scores",), only, "extra_fields"))
    return value
