"""The texts of a rerank request as the engine's sequences, every length checked (http.md sections 5 and 9)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ffwd_ort.engine import sequences
from ffwd_ort.engine.scoring import LOGIT, SCORERS
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.engine.tokenization import Encoded, EncodedPair
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import RequestRules, Tally, too_long
from ffwd_ort.server.rerank_fields import RerankRequest

QUERY = ("query",)
Text = TypeVar("Text", Encoded, EncodedPair)


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
    model, cap, tally = request.model, request.model.cap, Tally(rules)
    pairs: list[EncodedPair] = []
    problems: list[Problem] = []
    ends = model.tokenizer.pair_specials - model.tokenizer.specials
    for pair in _failures(request.name, _encoded_pairs(request)):
        least = pair.query + 1 + ends  # with one document token
        if least > cap.tokens:
            raise Invalid([too_long(QUERY, "query", least, cap, at_least=pair.at_least)])
        if len(pair.ids) > cap.tokens:
            where = (request.name, len(pairs))
            problems.append(too_long(where, "document", pair.counted, cap, at_least=pair.at_least))
        pairs.append(pair)
        if not tally.add(len(pair.ids), admitted=True, far=pair.at_least):
            break
    _check([], tally.problem(request.name), problems)
    return RerankWork(
        sequences=model.pair_sequences(pairs),
        score=lambda vectors: np.stack(vectors)[:, 0],
        query_tokens=pairs[0].query * len(pairs),
        total_tokens=tally.total,
        cut=sum(pair.truncated for pair in pairs),
    )


def _encoded_pairs(request: RerankRequest) -> Iterator[EncodedPair]:
    model = request.model
    return model.tokenizer.encode_pairs(
        request.query,
        request.documents,
        max_length=model.cap.tokens if request.truncate else None,
        max_document=request.max_tokens_per_doc,
        direction=request.direction,
        enough=model.cap.tokens,
    )


def _texts(request: RerankRequest, rules: RequestRules) -> RerankWork:
    """Make a sequence of the query, and one of each document."""
    model, cap, tally = request.model, request.model.cap, Tally(rules)
    scorer = SCORERS[model.scorer or ""]
    most = cap.tokens if request.truncate else None
    if request.max_tokens_per_doc is not None:
        most = min(cap.tokens, max(request.max_tokens_per_doc, scorer.least(model)))
    most_of_query = cap.tokens if request.cuts_query else None
    options = {"direction": request.direction}
    (query,) = _failures(
        "query", scorer.encode(model, [request.query], query=True, max_length=most_of_query, **options), bare=True
    )
    problems: list[Problem] = []
    documents: list[Encoded] = []
    for text in _failures(
        request.name, scorer.encode(model, request.documents, query=False, max_length=most, **options)
    ):
        if len(text.ids) > cap.tokens:
            where = (request.name, len(documents))
            problems.append(too_long(where, "document", text.counted, cap, at_least=text.at_least))
        documents.append(text)
        if not tally.add(len(text.ids), admitted=True, far=text.at_least):
            break
    made = scorer.sequences(model, query, documents)
    tally.add(made[0].length, admitted=True)
    long_query = len(query.ids) > cap.tokens
    ours = [too_long(QUERY, "query", query.counted, cap, at_least=query.at_least)] if long_query else []
    _check(ours, tally.problem(request.name), problems)
    return RerankWork(
        sequences=made,
        score=scorer.score,
        query_tokens=made[0].length,
        total_tokens=tally.total,
        cut=sum(text.truncated for text in (query, *documents)),
    )


def _failures(name: str, texts: Iterator[Text], *, bare: bool = False) -> Iterator[Text]:
    """Pass texts on; say of one that cannot be tokenised where it stands."""
    try:
        yield from texts
    except TokenizationFailed as error:
        where = QUERY if error.args[0] is None else (name,) if bare else (name, error.args[0])
        raise Invalid([Problem(where, "tokenization failed", "value_error.tokenization")]) from None


def _check(query: list[Problem], over: Problem | None, documents: list[Problem]) -> None:
    """Raise Invalid with all problems in their order, if there are any."""
    problems = [*query, *([over] if over else []), *documents]
    if problems:
        raise Invalid(problems)
