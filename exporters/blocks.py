"""What families' graphs share: parameters that load by name, linear layers, norms, attention, activations.

Modules are named as in the checkpoint, so a parameter's qualified name is its tensor's. Linear weights are
stored transposed, [in, out], and several that read the same input are fused into one matrix.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.errors import AdmissionError, CheckpointError
from ffwd_ort_exporters.weights import Weights

# config.json's `hidden_act`, as one ONNX op and its attributes.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_python": ("Gelu", {"approximate": "none"}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
}


def activation(op: Any, name: str, x: ir.Value) -> ir.Value:
    """Apply the activation that config.json names."""
    operator, attributes = ACTIVATIONS[name]
    return getattr(op, operator)(x, **attributes)


def check_activation(name: Any) -> str:
    """Return the activation's name; raise AdmissionError if there is no op for it."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise AdmissionError(f"hidden_act is {name!r}; there are {', '.join(ACTIVATIONS)}")
    return name


class Weight(nn.Parameter):
    """A parameter that knows which tensors it is made of.

    `sources` are tensor names beside its own module; several of the same shape are joined along the output
    axis, in the checkpoint's [out, in] layout, before `transpose` turns the result into [in, out].
    """

    def __init__(self, shape: Sequence[int], *sources: str, transpose: bool = False) -> None:
        super().__init__(shape)
        self.sources = sources
        self.transpose = transpose

    def tensor_names(self) -> list[str]:
        """Return the full names of its tensors; valid once the module has been called."""
        prefix, dot, _ = str(self.name).rpartition(".")
        return [prefix + dot + source for source in self.sources]

    def bind(self, weights: Weights) -> None:
        """Check its tensors' shapes and have them read when the graph is saved; raise CheckpointError."""
        names = self.tensor_names()
        wanted = tuple(int(d) for d in self.shape or ())
        outputs, *inputs = wanted[::-1] if self.transpose else wanted
        expected = (outputs // len(names), *inputs)
        for name in names:
            if weights.shape(name) != expected:
                raise CheckpointError(
                    f"{name} has shape {list(weights.shape(name))}, config.json makes it {list(expected)}"
                )

        def read() -> ir.Tensor:
            parts = [weights.read(name) for name in names]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return ir.Tensor(np.ascontiguousarray(whole.T if self.transpose else whole))

        self.const_value = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(wanted), name=self.name)


class Linear(nn.Module):
    """y = x W + b. `layers` are the names, beside this module, of linear layers fused into one."""

    def __init__(self, inputs: int, outputs: int, *layers: str, bias: bool = True) -> None:
        super().__init__()
        prefixes = [f"{layer}." for layer in layers] or [""]
        self.weight = Weight([inputs, outputs], *(f"{p}weight" for p in prefixes), transpose=True)
        self.bias = Weight([outputs], *(f"{p}bias" for p in prefixes)) if bias else None

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, inputs] -> […, outputs]."""
        y = op.MatMul(x, self.weight)
        return y if self.bias is None else op.Add(y, self.bias)


class Embedding(nn.Module):
    """A table of rows."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = Weight([rows, width], "weight")

    def forward(self, op: Any, ids: ir.Value) -> ir.Value:
        """[…] of ids -> […, width]."""
        return op.Gather(self.weight, ids, axis=0)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = Weight([width], "weight")
        self.bias = Weight([width], "bias")
        self.epsilon = epsilon

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, width] -> […, width]."""
        return op.LayerNormalization(x, self.weight, self.bias, axis=-1, epsilon=self.epsilon)


def segment_mask(op: Any, segment_ids: ir.Value) -> ir.Value:
    """Let a token see the tokens of its own text: [rows, seq] -> bool [rows, 1, seq, seq].

    Padding is segment -1 and sees padding, so no row is masked whole and no softmax is 0/0.
    """
    queries = op.Unsqueeze(segment_ids, [1, 3])
    keys = op.Unsqueeze(segment_ids, [1, 2])
    return op.Equal(queries, keys)


def attention(op: Any, qkv: ir.Value, mask: ir.Value, heads: int) -> ir.Value:
    """Multi-head attention on fused projections: [rows, seq, 3 * hidden] -> [rows, seq, hidden]."""
    q, k, v = op.Split(qkv, axis=2, num_outputs=3, _outputs=3)
    return op.Attention(q, k, v, mask, q_num_heads=heads, kv_num_heads=heads)


def pool(op: Any, weights: ir.Value, hidden: ir.Value) -> ir.Value:
    """Every linear pooling at once: [rows, slots, seq] by [rows, seq, hidden] -> [rows, slots, hidden]."""
    return op.MatMul(weights, hidden)
