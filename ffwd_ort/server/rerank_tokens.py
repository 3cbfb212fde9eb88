"""The texts of a rerank request as the engine's sequences, every length checked (http.md sections 5 and 9)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ffwd_ort.engine import sequences
from ffwd_ort.engine.scoring import LOGIT, SCORERS
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import RequestRules, over_request_limit
from ffwd_ort.server.rerank_fields import RerankRequest

QUERY = ("query",)


@dataclass(frozen=True)
class RerankWork:
    """What the engine encodes, what its vectors come to, and what the answer says of tokens and of texts cut."""

    sequences: list[sequences.Sequence]
    score: Callable[[Sequence[Floats]], Floats]
    query_tokens: int
    total_tokens: int
    cut: int


def rerank_tokens(request: RerankRequest, rules: RequestRules) -> RerankWork:
    """Tokenise a request's texts and check every length; raise Invalid with every problem."""
    return (_pairs if request.model.scorer == LOGIT else _texts)(request, rules)


def _pairs(request: RerankRequest, rules: RequestRules) -> RerankWork:
    """Make one sequence of the query and each document."""
    model = request.model
    try:
        pairs = model.tokenizer.encode_pairs(
            request.query,
            request.documents,
            max_length=model.cap.tokens if request.truncate else None,
            max_document=request.max_tokens_per_doc,
            direction=request.direction,
        )
    except TokenizationFailed as error:
        where = QUERY if error.args[0] is None else (request.name, error.args[0])
        raise Invalid([_failed(where)]) from None
    ends = model.tokenizer.pair_specials - model.tokenizer.specials
    least = pairs[0].query + 1 + ends  # with one document token
    if least > model.cap.tokens:
        raise Invalid([_too_long(request, QUERY, least)])
    lengths = [len(pair.ids) for pair in pairs]
    problems = _long_documents(request, lengths, [pair.counted for pair in pairs])
    _check(problems, request.name, sum(lengths), rules)
    return RerankWork(
        sequences=model.pair_sequences(pairs),
        score=lambda vectors: np.stack(vectors)[:, 0],
        query_tokens=pairs[0].query * len(pairs),
        total_tokens=sum(lengths),
        cut=sum(pair.truncated for pair in pairs),
    )


def _texts(request: RerankRequest, rules: RequestRules) -> RerankWork:
    """Make a sequence of the query, and one of each document."""
    model, cap = request.model, request.model.cap.tokens
    scorer = SCORERS[model.scorer or ""]
    most = cap if request.truncate else None
    most_of_document = most
    if request.max_tokens_per_doc is not None:
        most_of_document = min(cap, max(request.max_tokens_per_doc, scorer.least(model)))
    where: tuple[str, ...] = QUERY
    try:
        (query,) = scorer.encode(model, [request.query], query=True, max_length=most, direction=request.direction)
        where = (request.name,)
        documents = scorer.encode(
            model, request.documents, query=False, max_length=most_of_document, direction=request.direction
        )
    except TokenizationFailed as error:
        raise Invalid([_failed(where if where == QUERY else (*where, error.args[0]))]) from None
    problems = [_too_long(request, QUERY, query.counted)] if len(query.ids) > cap else []
    problems += _long_documents(request, [len(text.ids) for text in documents], [text.counted for text in documents])
    made = scorer.sequences(model, query, documents)
    total = sum(sequence.length for sequence in made)
    _check(problems, request.name, total, rules)
    return RerankWork(
        sequences=made,
        score=scorer.score,
        query_tokens=made[0].length,
        total_tokens=total,
        cut=sum(text.truncated for text in (query, *documents)),
    )


def _long_documents(request: RerankRequest, lengths: list[int], counted: list[int]) -> list[Problem]:
    cap = request.model.cap.tokens
    return [_too_long(request, (request.name, index), counted[index]) for index, n in enumerate(lengths) if n > cap]


def _too_long(request: RerankRequest, where: tuple[str | int, ...], counted: int) -> Problem:
    cap = request.model.cap
    name = "query" if where == QUERY else "document"
    message = f"{name} exceeds {cap.tokens} token limit (counted {counted}; bound by {cap.bound_by})"
    return Problem(where, message, "value_error.context_length")


def _failed(where: tuple[str | int, ...]) -> Problem:
    return Problem(where, "tokenization failed", "value_error.tokenization")


def _check(problems: list[Problem], name: str, total: int, rules: RequestRules) -> None:
    """Raise Invalid with the problems, that of the whole request first among the documents'."""
    over = over_request_limit(name, total, rules)
    if over is not None:
        queries = [problem for problem in problems if problem.loc == QUERY]
        problems = [*queries, over, *(problem for problem in problems if problem.loc != QUERY)]
    if problems:
        raise Invalid(problems)
