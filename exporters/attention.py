"""Attention in its two forms: several texts a row under a mask, and one long text a row without one.

The packed form keeps rows * heads * seq * seq scores, 4.6 GB for 8192 tokens and 16 heads. The long form keeps
none of them (flash kernels of ONNX Runtime), or those of a window's neighbours. An `If` on the input `packed`
chooses, around attention alone, so that both forms share every weight. spec/graph-notes.md has the traps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

SMALLEST_BLOCK = 64  # tokens of a window's block: shorter ones are all overhead
CONTRIB = {"_domain": "com.microsoft", "_version": 1}


@dataclass(frozen=True)
class Tokens:
    """The graph's inputs that say what the tokens are: int32 [rows, seq] each; `packed` is a bool, or no choice."""

    input_ids: ir.Value
    position_ids: ir.Value
    segment_ids: ir.Value
    token_type_ids: ir.Value | None = None
    packed: ir.Value | None = None


class Attend:
    """Attention over the tokens that a layer sees; made once a graph for all layers that see alike.

    With `causal`, a token sees none after it; with `reach`, none further away than that many positions.
    """

    def __init__(self, op: Any, tokens: Tokens, *, causal: bool = False, reach: int | None = None) -> None:
        self._packed, self._causal, self._reach = tokens.packed, causal, reach
        where = tokens.position_ids if causal or reach is not None else None

        def mask(op: Any) -> ir.Value:
            return segment_mask(op, tokens.segment_ids, where, causal=causal, reach=reach)

        if tokens.packed is None:
            self._mask = mask(op)
            return
        self._length = op.Shape(tokens.input_ids, start=1, end=2)  # int64 [1], in the long form the text's
        self._block = max(reach or 0, SMALLEST_BLOCK)
        self._mask = choose(op, tokens.packed, mask, self._other_mask, ir.DataType.BOOL)

    def __call__(
        self, op: Any, q: ir.Value, k: ir.Value, v: ir.Value, heads: int, kv_heads: int, scale: float | None = None
    ) -> ir.Value:
        """Attend: [rows, seq, heads * width] and kv_heads likewise -> [rows, seq, heads * width]."""

        def packed(op: Any) -> ir.Value:
            return attention(op, q, k, v, self._mask, heads, kv_heads, scale)

        def long(op: Any) -> ir.Value:
            return self._long(op, q, k, v, heads, kv_heads, {} if scale is None else {"scale": scale})

        if self._packed is None:
            return packed(op)
        out = choose(op, self._packed, packed, long, ir.DataType.FLOAT)
        out.shape = q.shape  # inference stops at an If with a contrib op in it
        return out

    def _long(self, op: Any, q: ir.Value, k: ir.Value, v: ir.Value, heads: int, kv_heads: int, scale: Any) -> ir.Value:
        """One text, as long as the row."""
        if self._causal:
            last = op.Cast(op.Sub(self._length, op.Constant(value_ints=[1])), to=ir.DataType.INT32)
            total = op.Cast(op.Squeeze(self._length), to=ir.DataType.INT32)
            # Measured: with all three outputs declared this is a flash kernel, with one it keeps seq * seq scores.
            out, _, _ = op.GroupQueryAttention(
                *(q, k, v, None, None, last, total),
                num_heads=heads,
                kv_num_heads=kv_heads,
                local_window_size=-1 if self._reach is None else self._reach + 1,  # the token itself counts
                do_rotary=0,
                **scale,
                **CONTRIB,
                _outputs=3,
            )
            return out
        if self._reach is not None:
            return self._neighbours(op, q, k, v, heads, kv_heads, scale)
        k, v = repeat_heads(op, k, kv_heads, heads), repeat_heads(op, v, kv_heads, heads)
        return op.MultiHeadAttention(q, k, v, num_heads=heads, **scale, **CONTRIB)

    def _neighbours(self, op: Any, q: Any, k: Any, v: Any, heads: int, kv_heads: int, scale: Any) -> ir.Value:
        """Cut the text into blocks; a block sees itself and the one to either side. There is no flash kernel for it."""
        block = self._block
        whole = self._rest(op)  # int64 [1]: padding to a whole number of blocks
        zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[block])
        after = op.Concat(zero, zero, zero, zero, whole, zero, axis=0)
        around = op.Concat(zero, one, zero, zero, op.Add(whole, one), zero, axis=0)
        blocks = op.Reshape(op.Pad(q, after), [-1, block, _width(q)])

        def beside(x: Any) -> ir.Value:
            cut = op.Reshape(op.Pad(x, around), [-1, block, _width(x)])
            far = op.Constant(value_ints=[2**31])
            parts = [
                op.Slice(cut, op.Constant(value_ints=[i]), far if i == 2 else op.Constant(value_ints=[i - 2]), zero)
                for i in range(3)
            ]
            return op.Concat(*parts, axis=1)

        out = attention(op, blocks, beside(k), beside(v), self._mask, heads, kv_heads, **scale)
        joined = op.Reshape(out, [1, -1, _width(q)])
        return op.Slice(joined, zero, self._length, op.Constant(value_ints=[1]))

    def _rest(self, op: Any) -> ir.Value:
        size = op.Constant(value_ints=[self._block])
        return op.Mod(op.Neg(self._length), size)  # the sign of the divisor, as in Python

    def _other_mask(self, op: Any) -> ir.Value:
        """Make the long form's mask: of neighbours' blocks [blocks, 1, block, 3 * block], or nothing."""
        if not span(self._causal, self._reach):
            return op.Constant(value=ir.Tensor(np.ones((1, 1, 1, 1), np.bool_)))
        block, reach = self._block, self._reach or 0
        query, key = np.arange(block)[:, None], np.arange(3 * block)[None, :] - block
        near = op.Constant(value=ir.Tensor((np.abs(query - key) <= reach)[None, None]))
        offsets = op.Constant(value=ir.Tensor(key[None, None].astype(np.int64)))
        size = op.Constant(value_int=block)
        starts = op.Range(op.Constant(value_int=0), op.Squeeze(op.Add(self._length, self._rest(op))), size)
        places = op.Add(op.Unsqueeze(starts, [1, 2, 3]), offsets)  # of each key in the text: [blocks, 1, 1, 3 * block]
        inside = op.And(op.GreaterOrEqual(places, op.Constant(value_int=0)), op.Less(places, self._length))
        return op.And(near, inside)


def span(causal: bool, reach: int | None) -> int:
    """Return how many scores a token keeps in the long form, in each head; 0 with a flash kernel."""
    return 0 if causal or reach is None else 3 * max(reach, SMALLEST_BLOCK)


def can_be_long(causal: bool, head_width: int) -> bool:
    """Tell whether there is a long form: GroupQueryAttention takes heads of a multiple of 8."""
    return not causal or head_width % 8 == 0


def _width(x: ir.Value) -> int:
    """Return the last dimension, which is always a number."""
    assert x.shape is not None
    return int(x.shape[-1])  # type: ignore[arg-type]


def choose(
    op: Any, condition: ir.Value, yes: Callable[[Any], ir.Value], no: Callable[[Any], ir.Value], dtype: ir.DataType
) -> ir.Value:
    """Build an If of two branches that see the outer values."""

    def branch(trace: Callable[[Any], ir.Value], name: str) -> ir.Graph:
        def inside(op: Any) -> ir.Value:
            # Names of a branch's values and of the outer graph's must differ: no loader says that they do not.
            op.builder.push_module(name)
            try:
                return trace(op)
            finally:
                op.builder.pop_module()

        return op.builder.subgraph(inside, [], [ir.Value(name=f"{name}_out", type=ir.TensorType(dtype))], name=name)

    out = op.If(condition, then_branch=branch(yes, "packed_form"), else_branch=branch(no, "long_form"))
    out.type = ir.TensorType(dtype)
    return out


def repeat_heads(op: Any, x: ir.Value, kv_heads: int, heads: int) -> ir.Value:
    """Repeat each key or value head for the queries that share it: [rows, seq, kv_heads * width] -> heads * width."""
    if heads == kv_heads:
        return x
    apart = op.Reshape(x, [0, 0, kv_heads, 1, -1])
    return op.Reshape(op.Concat(*[apart] * (heads // kv_heads), axis=3), [0, 0, -1])


def segment_mask(
    op: Any,
    segment_ids: ir.Value,
    position_ids: ir.Value | None = None,
    *,
    causal: bool = False,
    reach: int | None = None,
) -> ir.Value:
    """Let a token see the tokens of its own text: [rows, seq] -> bool [rows, 1, seq, seq].

    With `causal`, not those after it; with `reach`, none further away than that many positions. Padding is
    segment -1, all at one position, and sees padding: no row is masked whole and no softmax is 0/0. A token of
    segment -2 - s sees what a token of s sees, and is seen by none: a query's expansion in ColBERT.
    """
    sees = op.Max(segment_ids, op.Sub(constant(op, -2), segment_ids))
    allowed = op.Equal(op.Unsqueeze(sees, [1, 3]), op.Unsqueeze(segment_ids, [1, 2]))
    if causal or reach is not None:
        ahead = op.Sub(op.Unsqueeze(position_ids, [1, 3]), op.Unsqueeze(position_ids, [1, 2]))  # query - key
        if causal:
            allowed = op.And(allowed, op.GreaterOrEqual(ahead, constant(op, 0)))
        if reach is not None:
            allowed = op.And(allowed, op.LessOrEqual(op.Abs(ahead), constant(op, reach)))
    return allowed


def constant(op: Any, value: int) -> ir.Value:
    """Make an int32 scalar, the type of the graph's inputs."""
    return op.Constant(value=ir.Tensor(np.array(value, np.int32)))


def attention(
    op: Any,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value,
    heads: int,
    kv_heads: int,
    scale: float | None = None,
) -> ir.Value:
    """Multi-head attention: [rows, seq, heads * width] and kv_heads likewise -> [rows, seq, heads * width].

    `scale` is 1 / sqrt(width) unless the family says otherwise. `mask` is bool, or float to be added.
    """
    options = {} if scale is None else {"scale": scale}
    return op.Attention(q, k, v, mask, q_num_heads=heads, kv_num_heads=kv_heads, **options)
