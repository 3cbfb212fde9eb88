"""The bars of spec/families.md section 4, and how far two sets of vectors are from each other."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffwd_ort import l2_normalize

MIN_COSINE = 0.999999
MAX_DIFFERENCE = 2e-5  # of normalised vectors, against the reference
MAX_INVARIANCE = 5e-6  # alone, batched, packed, padded, in another order
MAX_SCORE = 1e-4  # logits and MaxSim, times max(1, |reference|)
MAX_BACKEND = 1e-5  # ONNX Runtime against the NumPy evaluator


@dataclass(frozen=True)
class Distance:
    """The worst of a set of pairs: the largest absolute difference of unit vectors, the smallest cosine."""

    difference: float
    cosine: float

    def __str__(self) -> str:
        return f"max abs diff {self.difference:.1e}, min cosine {self.cosine:.7f}"

    @property
    def conforms(self) -> bool:
        """Whether these are the reference's vectors."""
        return self.difference <= MAX_DIFFERENCE and self.cosine >= MIN_COSINE


def distance(mine: npt.ArrayLike, reference: npt.ArrayLike) -> Distance:
    """Compare two sets of vectors [n, dim] row by row, each scaled to unit length."""
    a, b = (l2_normalize(rows).astype(np.float64) for rows in (mine, reference))
    cosine = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return Distance(float(np.abs(a - b).max()), float(cosine.min()))
