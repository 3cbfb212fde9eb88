"""Scores of a query and documents that are encoded apart: by cosine of their vectors, or by MaxSim of their tokens."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ffwd_ort.bundle import Late
from ffwd_ort.engine.maxsim import document_sequence, mark, maxsim, query_sequence
from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.sequences import Floats, Sequence
from ffwd_ort.engine.tokenization import Encoded
from ffwd_ort.engine.vectors import l2_normalize

LOGIT, MAXSIM, COSINE = "logit", "maxsim", "cosine"


class Scorer(Protocol):
    """How texts are laid out, and what their vectors come to."""

    def least(self, model: ServedModel) -> int:
        """Return the tokens of a text of one token: with less room nothing of it would be left."""

    def encode(
        self,
        model: ServedModel,
        texts: Seq[str],
        *,
        query: bool,
        max_length: int | None,
        direction: str,
        enough: int | None = None,
    ) -> Iterator[Encoded]:
        """Tokenise queries, or documents, and cut them to `max_length`; raises TokenizationFailed.

        A text is not looked at beyond the label's cap, or `enough` tokens.
        """

    def sequences(self, model: ServedModel, query: Encoded, documents: Seq[Encoded]) -> list[Sequence]:
        """Make the engine's sequences: the query's first."""

    def score(self, vectors: Seq[Floats]) -> Floats:
        """Score the documents, from what the engine made of those sequences: float32 [documents]."""


class Cosine:
    """The cosine of two pooled vectors; each side gets its prompt, if the label has one."""

    def least(self, model: ServedModel) -> int:
        """Return one token, the special ones and the prompt's."""
        return model.tokenizer.specials + model.tokenizer.prompt_tokens(_prompt(model, False)) + 1

    def encode(
        self,
        model: ServedModel,
        texts: Seq[str],
        *,
        query: bool,
        max_length: int | None,
        direction: str,
        enough: int | None = None,
    ) -> Iterator[Encoded]:
        """Tokenise as for vectors."""
        enough = model.cap.tokens if enough is None else enough
        options: dict[str, Any] = {"max_length": max_length, "direction": direction, "enough": enough}
        return model.tokenizer.encode_each(texts, prompt=_prompt(model, query), **options)

    def sequences(self, model: ServedModel, query: Encoded, documents: Seq[Encoded]) -> list[Sequence]:
        """Pool each as the label does."""
        return [
            *model.sequences([query], prompt=_prompt(model, True)),
            *model.sequences(list(documents), prompt=_prompt(model, False)),
        ]

    def score(self, vectors: Seq[Floats]) -> Floats:
        """Compute the cosines, in [-1, 1]."""
        unit = l2_normalize(np.stack(vectors))
        # Row by row: a matrix product rounds its last rows differently, and equal documents would differ.
        cosines: Floats = np.clip((unit[1:] * unit[0]).sum(axis=1, dtype=np.float32), -1, 1)
        return cosines


class MaxSim:
    """Late interaction."""

    def least(self, model: ServedModel) -> int:
        """Return one token, the special ones, a marker and the prompt's."""
        return model.tokenizer.specials + model.tokenizer.prompt_tokens(_prompt(model, False)) + 2

    def encode(
        self,
        model: ServedModel,
        texts: Seq[str],
        *,
        query: bool,
        max_length: int | None,
        direction: str,
        enough: int | None = None,
    ) -> Iterator[Encoded]:
        """Tokenise and put the marker in."""
        late = _late(model)
        marker = late.query_marker if query else late.document_marker
        extra = marker is not None
        room = None if max_length is None else max_length - extra
        enough = model.cap.tokens if enough is None else enough
        options: dict[str, Any] = {"max_length": room, "direction": direction, "enough": enough}
        for text in model.tokenizer.encode_each(texts, prompt=_prompt(model, query), **options):
            yield Encoded(mark(text.ids, marker), text.counted + extra, text.at_least)

    def sequences(self, model: ServedModel, query: Encoded, documents: Seq[Encoded]) -> list[Sequence]:
        """Pad the query; ask for every token."""
        late, normalize = _late(model), model.normalize
        return [
            query_sequence(query.ids, late, normalize),
            *(document_sequence(text.ids, late, normalize) for text in documents),
        ]

    def score(self, vectors: Seq[Floats]) -> Floats:
        """Compute MaxSim."""
        return maxsim(vectors[0], vectors[1:])


def _prompt(model: ServedModel, query: bool) -> str:
    late = model.manifest.late
    before = "" if late is None else late.query_text if query else late.document_text
    return before + model.prompt_for("query" if query else "document", None)


def _late(model: ServedModel) -> Late:
    late = model.manifest.late
    assert late is not None  # labels of this kind have it
    return late


# By a label's scorer; pairs (LOGIT) are tokenised together and need none of this.
SCORERS: Mapping[str, Scorer] = MappingProxyType({COSINE: Cosine(), MAXSIM: MaxSim()})
