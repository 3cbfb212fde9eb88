"""One text as the engine sees it: token ids, and the token weights that make its vector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One pooled vector of a text: the weight of each of its tokens."""

    weights: Floats  # [tokens]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One text to encode. Several slots (concatenated poolings) come back as one vector, joined in order."""

    ids: Ids  # [tokens]
    slots: tuple[Slot, ...]
    token_types: Ids | None = None  # [tokens], where a pair's second text is told apart

    @property
    def length(self) -> int:
        """Tokens, specials included."""
        return len(self.ids)

    def key(self) -> bytes:
        """Identify the sequence: two with equal keys have equal vectors."""
        types = b"" if self.token_types is None else self.token_types.tobytes()
        return b"".join((self.ids.tobytes(), types, *(slot.weights.tobytes() for slot in self.slots)))


def _one(n: int, index: int) -> Floats:
    weights = np.zeros(n, np.float32)
    weights[index] = 1
    return weights


def _ramp(n: int, skip: int) -> Floats:
    ramp = np.arange(1, n + 1, dtype=np.float32)
    ramp[:skip] = 0
    ramp /= ramp.sum(dtype=np.float32)
    return ramp


def _flat(n: int, skip: int, weight: float) -> Floats:
    weights = np.full(n, weight, np.float32)
    weights[:skip] = 0
    return weights


# Pooling is a weighted sum of token states: (tokens, leading tokens left out) -> weights. Formulas are those
# of sentence-transformers' Pooling module: weighted_mean weighs token i (from 1) by i over the sum of all i.
POOLINGS: Mapping[str, Callable[[int, int], Floats]] = MappingProxyType(
    {
        "cls": lambda n, skip: _one(n, skip),
        "mean": lambda n, skip: _flat(n, skip, 1 / (n - skip)),
        "mean_sqrt_len": lambda n, skip: _flat(n, skip, (n - skip) ** -0.5),
        "weighted_mean": _ramp,
        "last": lambda n, skip: _one(n, n - 1),
    }
)


def make_sequence(ids: Ids, poolings: tuple[str, ...], skip: int = 0, token_types: Ids | None = None) -> Sequence:
    """Make the sequence of one text, or of a pair.

    `skip` is how many leading tokens (a prompt's) take no part in pooling; at least one token always does.
    """
    skip = min(skip, len(ids) - 1)
    return Sequence(ids, tuple(Slot(POOLINGS[mode](len(ids), skip)) for mode in poolings), token_types)
