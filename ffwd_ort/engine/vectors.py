"""Pooled states to the numbers a client gets: cut, normalise, encode. NumPy in float32."""

import base64
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ffwd_ort.engine.sequences import Floats


def l2_normalize(vectors: npt.ArrayLike) -> Floats:
    """Scale each row of [n, dim] to unit length; a zero vector stays zero."""
    array = np.asarray(vectors, np.float32)
    norms = np.sqrt(np.einsum("...d,...d->...", array, array, dtype=np.float32))[..., None]
    unit = np.zeros_like(array)
    np.divide(array, norms, out=unit, where=norms > 0)
    return unit


def finish(pooled: Floats, *, dimensions: int | None, normalize: bool) -> Floats:
    """Turn pooled vectors [n, dim] into a label's: cut to the first `dimensions`, then scale to unit length.

    The order matters: a cut vector of a model that normalises must be normalised again to be a cosine vector.
    """
    cut = pooled if dimensions is None else pooled[:, :dimensions]
    return l2_normalize(cut) if normalize else np.ascontiguousarray(cut)


def sigmoid(logits: Floats) -> Floats:
    """Turn logits into numbers between 0 and 1, in float32; large ones saturate and nothing overflows."""
    small = np.exp(-np.abs(logits.astype(np.float32)))
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)


def to_int8(vectors: Floats) -> npt.NDArray[np.int8]:
    """Quantise as pplx-embed was trained for: tanh(x) * 127 in float32, to nearest, ties to even (http.md 6)."""
    scaled = np.tanh(vectors.astype(np.float32)) * np.float32(127)
    return np.clip(np.rint(scaled), -128, 127).astype(np.int8)


def to_bits(vectors: Floats) -> npt.NDArray[np.uint8]:
    """Keep the signs of [n, dim]: bit i of a row is x[i] >= 0, least significant bit first; dim is divisible by 8."""
    return np.packbits(vectors >= 0, axis=-1, bitorder="little")


def _base64(rows: npt.NDArray[np.generic]) -> list[str]:
    return [base64.b64encode(np.ascontiguousarray(row).data).decode("ascii") for row in rows]


# Encoders of a label's finished vectors [n, dim], by api mode and encoding_format; the first is the default.
CODECS: Mapping[str, Mapping[str, Callable[[Floats], Sequence[Any]]]] = MappingProxyType(
    {
        "openai": {
            "float": list,
            "base64": lambda vectors: _base64(vectors.astype("<f4", copy=False)),
        },
        "perplexity": {
            "base64_int8": lambda vectors: _base64(to_int8(vectors)),
            "base64_binary": lambda vectors: _base64(to_bits(vectors)),
            "float": lambda vectors: list(to_int8(vectors).astype(np.float32) / np.float32(128)),
        },
    }
)
