"""The same graph on onnx's NumPy evaluator: slow, and written by other people. The truth to compare with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ffwd_ort.bundle import Bundle
from ffwd_ort.engine.sequences import Floats


class ReferenceRunner:
    """Runs a bundle's graph in NumPy (`--provider numpy`)."""

    provider = "numpy"
    execution_providers = ("onnx ReferenceEvaluator",)

    def __init__(self, bundle: Bundle) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(str(bundle.graph), new_ops=_contrib_ops())

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        """Run one step; returns [rows, slots, dim]."""
        output: Floats = self._evaluator.run(None, dict(feeds))[0]
        return output


def attend(
    q: Floats, k: Floats, v: Floats, heads: int, kv_heads: int, scale: float, seen: npt.NDArray[np.bool_]
) -> Floats:
    """Compute attention by its definition: [rows, seq, heads * width]; `seen` [seq, seq] is which key a query sees."""
    rows, seq, _ = q.shape

    def apart(x: Floats, n: int) -> Floats:
        split = x.reshape(rows, seq, n, -1).transpose(0, 2, 1, 3)
        repeated: Floats = np.repeat(split, heads // n, axis=1)
        return repeated

    queries, keys, values = apart(q, heads), apart(k, kv_heads), apart(v, kv_heads)
    scores = queries @ keys.transpose(0, 1, 3, 2) * np.float32(scale or queries.shape[-1] ** -0.5)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Floats = (weights @ values).transpose(0, 2, 1, 3).reshape(q.shape).astype(np.float32)
    return out


def _contrib_ops() -> list[Any]:
    """Define ONNX Runtime's two ops of the long form, as far as our graphs use them: rows that hold one text."""
    from onnx.reference.op_run import OpRun

    class MultiHeadAttention(OpRun):  # type: ignore[misc]
        op_domain = "com.microsoft"

        def _run(self, q: Floats, k: Floats, v: Floats, num_heads: int = 1, scale: float = 0.0) -> tuple[Floats]:
            seen = np.ones((q.shape[1], q.shape[1]), np.bool_)
            return (attend(q, k, v, num_heads, num_heads, scale, seen),)

    class GroupQueryAttention(OpRun):  # type: ignore[misc]
        op_domain = "com.microsoft"

        def _run(
            self,
            q: Floats,
            k: Floats,
            v: Floats,
            past_key: None,
            past_value: None,
            last: npt.NDArray[np.int32],
            total: npt.NDArray[np.int32],
            num_heads: int = 1,
            kv_num_heads: int = 1,
            local_window_size: int = -1,
            do_rotary: int = 0,
            scale: float = 0.0,
        ) -> tuple[Floats, Floats, Floats]:
            ahead = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])[None, :]  # query - key
            seen = (ahead >= 0) & ((ahead < local_window_size) | (local_window_size < 0))
            return attend(q, k, v, num_heads, kv_num_heads, scale, seen), k, v

    return [MultiHeadAttention, GroupQueryAttention]
