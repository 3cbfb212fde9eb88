"""One text as the engine sees it: token ids, and what makes its vectors of the tokens' states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One pooled vector of a text: the weights of the tokens from `start` on; those of all others are 0."""

    start: int
    weights: Floats  # [weighted tokens]

    @property
    def span(self) -> slice:
        """The tokens that have a weight."""
        return slice(self.start, self.start + len(self.weights))

    def pool(self, tokens: Floats) -> Floats:
        """[tokens, dim] -> [dim]."""
        pooled: Floats = self.weights @ tokens[self.span]
        return pooled

    def key(self) -> bytes:
        """Identify the slot among those of one text."""
        return b"%d %d " % (self.start, len(self.weights)) + self.weights.tobytes()


class Reduction(Protocol):
    """What becomes of a text's token vectors, where the graph returns those. Its repr tells it from others."""

    def __call__(self, ids: Ids, tokens: Floats) -> Floats:
        """[tokens] and [tokens, dim] -> what the request is given."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One text to encode. Several slots (concatenated poolings) come back as one vector, joined in order.

    Without slots every token's vector comes back, through `reduce`. The last `unseen` tokens are seen by none.
    """

    ids: Ids  # [tokens]
    slots: tuple[Slot, ...]
    token_types: Ids | None = None  # [tokens], where a pair's second text is told apart
    reduce: Reduction | None = None
    unseen: int = 0

    @property
    def length(self) -> int:
        """Tokens, specials included."""
        return len(self.ids)

    def key(self) -> bytes:
        """Identify the sequence: two with equal keys have equal vectors."""
        types = b"" if self.token_types is None else self.token_types.tobytes()
        rest = b"" if self.slots else repr((self.reduce, self.unseen)).encode()
        return b"".join((self.ids.tobytes(), types, rest, *(slot.key() for slot in self.slots)))

    def finish(self, vectors: Floats) -> Floats:
        """Turn the graph's vectors of this text, [slots or tokens, dim], into what the request is given.

        It shares no memory with them: they are part of a whole step's.
        """
        return vectors.flatten() if self.reduce is None else self.reduce(self.ids, vectors)


def _one(index: int) -> Slot:
    return Slot(index, np.ones(1, np.float32))


def _ramp(n: int, skip: int) -> Slot:
    ramp = np.arange(skip + 1, n + 1, dtype=np.float32)
    ramp /= ramp.sum(dtype=np.float32)
    return Slot(skip, ramp)


def _flat(n: int, skip: int, weight: float) -> Slot:
    return Slot(skip, np.full(n - skip, weight, np.float32))


# Pooling is a weighted sum of token states: (tokens, leading tokens left out) -> weights. Formulas are those
# of sentence-transformers' Pooling module: weighted_mean weighs token i (from 1) by i over the sum of all i.
POOLINGS: Mapping[str, Callable[[int, int], Slot]] = MappingProxyType(
    {
        "cls": lambda n, skip: _one(skip),
        "mean": lambda n, skip: _flat(n, skip, 1 / (n - skip)),
        "mean_sqrt_len": lambda n, skip: _flat(n, skip, (n - skip) ** -0.5),
        "weighted_mean": _ramp,
        "last": lambda n, skip: _one(n - 1),
    }
)


@dataclass(frozen=True)
class PoolTokens:
    """Pool token vectors on the host, for poolings that are no weighted sum: `max`, alone or beside others."""

    modes: tuple[str, ...]
    skip: int

    def __call__(self, ids: Ids, tokens: Floats) -> Floats:
        """[tokens, dim] -> [modes * dim]."""
        return np.concatenate(
            [
                tokens[self.skip :].max(axis=0) if mode == "max" else POOLINGS[mode](len(ids), self.skip).pool(tokens)
                for mode in self.modes
            ]
        )


def make_sequence(ids: Ids, poolings: tuple[str, ...], skip: int = 0, token_types: Ids | None = None) -> Sequence:
    """Make the sequence of one text, or of a pair.

    `skip` is how many leading tokens (a prompt's) take no part in pooling; at least one token always does.
    """
    skip = min(skip, len(ids) - 1)
    if "max" in poolings:
        return Sequence(ids, (), token_types, PoolTokens(poolings, skip))
    return Sequence(ids, tuple(POOLINGS[mode](len(ids), skip) for mode in poolings), token_types)


def make_document(chunks: list[Ids], separator: int) -> Sequence:
    """Make the sequence of a document's chunks, one separator between neighbours; each gives the mean of its tokens."""
    lengths = np.array([len(chunk) for chunk in chunks])
    ends = np.cumsum(lengths + 1) - 1  # where each chunk's separator stands
    ids = np.full(ends[-1], separator, np.int32)
    slots = []
    for chunk, length, end in zip(chunks, lengths, ends, strict=True):
        ids[end - length : end] = chunk
        slots.append(_flat(int(end), int(end - length), 1 / length))
    return Sequence(ids, tuple(slots))
