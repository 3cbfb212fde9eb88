"""Bodies of /v1/contextualizedembeddings to typed requests (http.md sections 4.4 and 8)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.sequences import Ids
from ffwd_ort.engine.tokenization import Encoded
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.families import CONTEXTUAL
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import (
    MISSING,
    RequestRules,
    read_boolean,
    read_dimensions,
    read_direction,
    read_format,
    read_model,
)
from ffwd_ort.server.tally import Tally

MAX_DOCUMENTS = 512
MAX_CHUNKS = 16_000


@dataclass(frozen=True)
class ContextualRequest:
    """A body of /v1/contextualizedembeddings that passed the field phase."""

    model: ServedModel
    documents: list[list[str]]
    encoding_format: str
    dimensions: int | None
    truncate: bool
    direction: str


@dataclass(frozen=True)
class Documents:
    """The ids of every document's chunks, and how many documents were cut."""

    chunks: list[list[Ids]]
    cut: int


def serves(model: ServedModel) -> bool:
    """Tell whether a label makes a vector per chunk."""
    return model.kind == CONTEXTUAL


def contextual_request(
    body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules
) -> ContextualRequest:
    """Check the fields; raise Invalid with every problem, in the order of the fields."""
    problems: list[Problem] = []
    model = read_model(body, models, serves, problems)
    encoding_format = read_format(body, model, problems)
    dimensions = read_dimensions(body, model, encoding_format, problems)
    truncate = read_boolean(body, "truncate", problems)
    direction = read_direction(body, problems)
    documents = _documents(body, rules, problems)
    if problems or model is None:
        raise Invalid(problems)
    return ContextualRequest(
        model=model,
        documents=documents,
        encoding_format=encoding_format,
        dimensions=dimensions,
        truncate=rules.auto_truncate if truncate is None else truncate,
        direction=direction,
    )


def _documents(body: Mapping[str, Any], rules: RequestRules, problems: list[Problem]) -> list[list[str]]:
    value = body.get("input", MISSING)
    where = ("input",)
    most = min(MAX_DOCUMENTS, rules.rows or MAX_DOCUMENTS)
    if value is MISSING:
        problems.append(Problem(where, "field required", "missing"))
    elif not isinstance(value, list):
        shape = "input must be an array of document chunk arrays"
        problems.append(Problem(where, shape, "type_error.array"))
    elif not value:
        few = "input must contain at least 1 document"
        problems.append(Problem(where, few, "value_error.list.min_items"))
    elif len(value) > most:
        bound_by = f" (bound by --rows {rules.rows})" if most < MAX_DOCUMENTS else ""
        many = f"input must contain at most {most} documents{bound_by}"
        problems.append(Problem(where, many, "value_error.list.max_items"))
    elif sum(len(document) for document in value if isinstance(document, list)) > MAX_CHUNKS:
        many = f"input must contain at most {MAX_CHUNKS} chunks"
        problems.append(Problem(where, many, "value_error.list.max_items"))
    else:
        for index, document in enumerate(value):
            problems += _document_problems(index, document)
        return value
    return []


def _document_problems(index: int, document: Any) -> list[Problem]:
    where = ("input", index)
    if not isinstance(document, list):
        return [Problem(where, "document must be an array of strings", "type_error.array")]
    if not document:
        return [Problem(where, "document must contain at least 1 chunk", "value_error.list.min_items")]
    problems = []
    for place, chunk in enumerate(document):
        if not isinstance(chunk, str):
            problems.append(Problem((*where, place), "chunk must be a string", "type_error.string"))
        elif not chunk:
            problems.append(Problem((*where, place), "chunk must not be empty", "value_error.empty"))
    return problems


def document_tokens(request: ContextualRequest, rules: RequestRules) -> Documents:
    """Tokenise chunks, cut documents if asked to, and check every length; raise Invalid with every problem."""
    most = request.model.cap.tokens
    tally = Tally(rules, request.model.cap, "input", "document")
    flat = _tokenised(request)
    found: list[list[Ids]] = []
    cut = 0
    for index, document in enumerate(request.documents):
        encoded = list(islice(flat, len(document)))
        chunks = [chunk.ids for chunk in encoded]
        counted = sum(chunk.counted for chunk in encoded) + len(encoded) - 1
        kept = cut_document(chunks, most, request.direction) if request.truncate else None
        cut += kept is not None and document_length(kept) < counted
        chunks = kept or chunks
        found.append(chunks)
        at_least = any(chunk.at_least for chunk in encoded)
        if not tally.add(("input", index), document_length(chunks), counted, at_least):
            break
    tally.check()
    return Documents(found, cut)


def _tokenised(request: ContextualRequest) -> Iterator[Encoded]:
    """Tokenise the chunks of all documents, one after the other."""
    bounds = list(accumulate((len(document) for document in request.documents), initial=0))
    flat = list(chain.from_iterable(request.documents))
    options: dict[str, Any] = {"direction": request.direction, "enough": request.model.cap.tokens}
    try:
        yield from request.model.tokenizer.encode_chunks(flat, **options)
    except TokenizationFailed as error:
        raise Invalid([_failed(error.args[0], bounds)]) from None


def _failed(flat_index: int, bounds: list[int]) -> Problem:
    document = next(i for i, end in enumerate(bounds[1:]) if flat_index < end)
    where = ("input", document, flat_index - bounds[document])
    return Problem(where, "tokenization failed", "value_error.tokenization")


def document_length(chunks: list[Ids]) -> int:
    """Count a document's tokens: its chunks' and one separator between neighbours."""
    return sum(map(len, chunks)) + len(chunks) - 1


def cut_document(chunks: list[Ids], most: int, direction: str) -> list[Ids] | None:
    """Cut the chunk that crosses the limit; None where a chunk would have no token left, as its vector is owed."""
    over = document_length(chunks) - most
    if over <= 0:
        return chunks
    last = chunks[-1] if direction == "right" else chunks[0]
    if over >= len(last):
        return None
    return [*chunks[:-1], last[:-over]] if direction == "right" else [last[over:], *chunks[1:]]
