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
from ffwd_ort.server.fields import RequestRules
from ffwd_ort.server.rerank_fields import RerankRequest
from ffwd_ort.server.tally import Tally, too_long

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
    model, cap = request.model, request.model.cap
    tally = Tally(rules, cap, request.name, "document")
    pairs: list[EncodedPair] = []
    ends = model.tokenizer.pair_specials - model.tokenizer.specials
    for pair in _failures(request.name, _encoded_pairs(request)):
        least = pair.query + 1 + ends  # with one document token
        if least > cap.tokens:
            raise Invalid([too_long(QUERY, "query", least, cap, at_least=pair.query_at_least)])
        pairs.append(pair)
        if not tally.add((request.name, len(pairs) - 1), len(pair.ids), pair.counted, pair.at_least):
            break
    tally.check()
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
    model, cap = request.model, request.model.cap
    tally = Tally(rules, cap, request.name, "document")
    scorer = SCORERS[model.scorer or ""]
    most = cap.tokens if request.truncate else None
    if request.max_tokens_per_doc is not None:
        most = min(cap.tokens, max(request.max_tokens_per_doc, scorer.least(model)))
    most_of_query = cap.tokens if request.cuts_query else None
    direction = request.direction
    (query,) = _failures(
        "query",
        scorer.encode(model, [request.query], query=True, max_length=most_of_query, direction=direction),
        bare=True,
    )
    documents: list[Encoded] = []
    for text in _failures(
        request.name, scorer.encode(model, request.documents, query=False, max_length=most, direction=direction)
    ):
        documents.append(text)
        if not tally.add((request.name, len(documents) - 1), len(text.ids), text.counted, text.at_least):
            break
    made = scorer.sequences(model, query, documents)
    tally.total += made[0].length
    long_query = len(query.ids) > cap.tokens
    tally.check(*([too_long(QUERY, "query", query.counted, cap, at_least=query.at_least)] if long_query else []))
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
