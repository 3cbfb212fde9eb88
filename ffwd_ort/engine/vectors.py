"""Pooled states to the numbers a client gets: cut, normalise, encode. NumPy in float32."""

import base64

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


def to_base64(vector: Floats) -> str:
    """Encode a vector's little-endian float32 bytes in standard base64, as OpenAI clients decode it."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").data).decode("ascii")
