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
    too_many,
)

MAX_DOCUMENTS = 1000


@dataclass(frozen=True)
class RerankRequest:
    """A body of /v1/rerank that passed the field phase. `given` are the documents as they were sent."""

    model: ServedModel
    query: str
    documents: list[str]
    given: list[Any]
    top_n: int | None
    return_documents: bool
    max_tokens_per_doc: int | None
    raw_scores: bool
    truncate: bool
    direction: str


def rerank_request(body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules) -> RerankRequest:
    """Check the fields of /v1/rerank; raise Invalid with every problem, in the order of the fields."""
    problems: list[Problem] = []
    model = read_model(body, models, lambda model: model.scorer is not None, problems)
    query = _query(body, problems)
    documents = _documents(body, model, rules, problems)
    top_n = _top_n(body, problems)
    return_documents = read_boolean(body, "return_documents", problems)
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
        given=body["documents"],
        top_n=top_n,
        return_documents=bool(return_documents),
        max_tokens_per_doc=most,
        raw_scores=raw_scores is not False,
        truncate=most is not None or (rules.auto_truncate if truncate is None else truncate),
        direction=direction,
    )


def _query(body: Mapping[str, Any], problems: list[Problem]) -> str:
    value = body.get("query", MISSING)
    where = ("query",)
    if value is MISSING:
        problems.append(Problem(where, "field required", "missing"))
    elif not isinstance(value, str):
        problems.append(Problem(where, "query must be a string", "type_error.string"))
    elif not value:
        problems.append(Problem(where, "query must not be empty", "value_error.empty"))
    else:
        return value
    return ""


def _documents(
    body: Mapping[str, Any], model: ServedModel | None, rules: RequestRules, problems: list[Problem]
) -> list[str]:
    value = body.get("documents", MISSING)
    where = ("documents",)
    # Where texts are encoded apart, the query takes one of the rows.
    apart = model is not None and model.scorer != LOGIT
    most = min(MAX_DOCUMENTS, rules.rows - apart if rules.rows else MAX_DOCUMENTS)
    if value is MISSING:
        problems.append(Problem(where, "field required", "missing"))
    elif not isinstance(value, list):
        problems.append(Problem(where, "documents must be an array of strings", "type_error.array"))
    elif not value:
        problems.append(Problem(where, "documents must contain at least 1 item", "value_error.list.min_items"))
    elif len(value) > most:
        bound_by = f"bound by --rows {rules.rows}{', query included' if apart else ''}" if most < MAX_DOCUMENTS else ""
        problems.append(too_many("documents", len(value), most, bound_by))
    else:
        return [_document(index, item, problems) for index, item in enumerate(value)]
    return []


def _document(index: int, item: Any, problems: list[Problem]) -> str:
    """Read a document: a string, or an object whose `text` is one."""
    where: tuple[str | int, ...] = ("documents", index)
    text = item
    if isinstance(item, dict):
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
