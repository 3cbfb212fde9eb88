"""Rotary positions: tables of cosines and sines for every scaling in use, and their application.

Formulas are those of transformers' modeling_rope_utils, in float32 and in the same order of operations: at
position 30,000 the rounding of an angle alone is 2e-3.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.errors import AdmissionError

Floats = npt.NDArray[np.float32]


def _number(scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a positive number of a scaling; raise AdmissionError if it is anything else, or not there."""
    value = scaling.get(key)
    value = default if value is None or value == 0 else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        kind = scaling.get("rope_type", "default")
        raise AdmissionError(f"rotary scaling {kind!r}: {key} is {value!r}; a positive number is needed")
    return float(value)


def plain_frequencies(base: float, width: int) -> Floats:
    """Return the inverse frequency of each pair of a head's values: base ** (-2i / width)."""
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1.0) / np.power(np.float32(base), exponents)).astype(np.float32)


def _linear(base: float, width: int, scaling: Mapping[str, Any], positions: int) -> tuple[Floats, float]:
    return plain_frequencies(base, width) / np.float32(_number(scaling, "factor")), 1.0


def _plain(base: float, width: int, scaling: Mapping[str, Any], positions: int) -> tuple[Floats, float]:
    # Dynamic NTK scaling begins beyond max_position_embeddings, which is where texts end here.
    return plain_frequencies(base, width), 1.0


def _llama3(base: float, width: int, scaling: Mapping[str, Any], positions: int) -> tuple[Floats, float]:
    frequencies = plain_frequencies(base, width)
    factor, low, high = (_number(scaling, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = _number(scaling, "original_max_position_embeddings")
    wavelengths = np.float32(2 * math.pi) / frequencies
    smooth = (np.float32(trained) / wavelengths - np.float32(low)) / np.float32(high - low)
    slow = np.where(wavelengths > trained / low, frequencies / np.float32(factor), frequencies)
    between = (1 - smooth) * slow / np.float32(factor) + smooth * slow
    middle = ~(wavelengths < trained / high) & ~(wavelengths > trained / low)
    return np.where(middle, between, slow).astype(np.float32), 1.0


def _yarn(base: float, width: int, scaling: Mapping[str, Any], positions: int) -> tuple[Floats, float]:
    trained = _number(scaling, "original_max_position_embeddings", positions)
    factor = _number(scaling, "factor", positions / trained)

    def magnitude(scale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    def dimension(rotations: float) -> float:
        return width * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        usual = magnitude(_number(scaling, "mscale")) / magnitude(_number(scaling, "mscale_all_dim"))
    else:
        usual = magnitude()
    attention = _number(scaling, "attention_factor", usual)
    low, high = dimension(_number(scaling, "beta_fast", 32)), dimension(_number(scaling, "beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 if low == high else 0
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    powers = np.power(np.float32(base), np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
    extrapolated, interpolated = np.float32(1) / powers, np.float32(1) / (np.float32(factor) * powers)
    kept = 1 - ramp
    return (interpolated * (1 - kept) + extrapolated * kept).astype(np.float32), attention


Scaling = Callable[[float, int, Mapping[str, Any], int], tuple[Floats, float]]
SCALINGS: dict[str, Scaling] = {
    "default": _plain,
    "dynamic": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def scaling_of(config: Mapping[str, Any], default_base: float = 10_000.0) -> tuple[float, Mapping[str, Any]]:
    """Read the base and the scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.

    Raises AdmissionError for a scaling that cannot be applied: ignoring it would give wrong vectors.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise AdmissionError(f"rope_parameters is {given!r}; an object is understood")
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise AdmissionError(f"rotary scaling {kind!r} cannot be applied here; there are {', '.join(SCALINGS)}")
    if given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise AdmissionError("partial_rotary_factor other than 1 cannot be applied here")
    settled = {"rope_theta": config.get("rope_theta", default_base), **given, "rope_type": kind}
    return _number(settled, "rope_theta"), settled


def tables(base: float, scaling: Mapping[str, Any], width: int, positions: int) -> tuple[Floats, Floats]:
    """Return cosines and sines, each float32 [positions, width / 2]."""
    frequencies, factor = SCALINGS[scaling["rope_type"]](base, width, scaling, positions)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)


class Rotary(nn.Module):
    """The tables of one base, called once, outside the layers, so that they stand in the graph once."""

    def __init__(self, base: float, scaling: Mapping[str, Any], width: int, positions: int) -> None:
        super().__init__()
        cosines, sines = tables(base, scaling, width, positions)
        self.cos = nn.Parameter(cosines.shape, data=ir.Tensor(cosines))
        self.sin = nn.Parameter(sines.shape, data=ir.Tensor(sines))

    def forward(self, op: Any, position_ids: ir.Value) -> "Rotation":
        """Int32 [rows, seq] -> what rotates queries and keys at these positions."""
        return Rotation(self.cos, self.sin, op.Cast(position_ids, to=ir.DataType.INT64))


@dataclass(frozen=True)
class Rotation:
    """Cosines, sines [positions, width / 2] and the positions [rows, seq] int64 of a step."""

    cos: ir.Value
    sin: ir.Value
    positions: ir.Value

    def __call__(self, op: Any, x: ir.Value, heads: int) -> ir.Value:
        """[rows, seq, heads * width] -> the same."""
        return op.RotaryEmbedding(x, self.cos, self.sin, self.positions, num_heads=heads)
