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
    "silu": ("", {}),
    "swish": ("", {}),
}


def activation(op: Any, name: str, x: ir.Value) -> ir.Value:
    """Apply the activation that config.json names."""
    operator, attributes = ACTIVATIONS[name]
    if not operator:  # SiLU: opset 23 has no op of its own for it
        return op.Mul(x, op.Sigmoid(x))
    return getattr(op, operator)(x, **attributes)


def check_activation(name: Any) -> str:
    """Return the activation's name; raise AdmissionError if there is no op for it."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise AdmissionError(f"hidden_act is {name!r}; there are {', '.join(ACTIVATIONS)}")
    return name


class Weight(nn.Parameter):
    """A parameter that knows which tensors it is made of.

    `sources` are tensor names within its own module, or beside that module if `fused`; several are joined along
    the output axis, in the checkpoint's [out, in] layout, before `transpose` turns the result into [in, out].
    `outputs` says how many each of them has, where they are not alike. `plus` is added to every value: for
    norms that store their weight less one.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *sources: str,
        transpose: bool = False,
        fused: bool = False,
        outputs: Sequence[int] | None = None,
        plus: float = 0.0,
    ) -> None:
        super().__init__(shape)
        self.sources = sources
        self.fused = fused
        self.transpose = transpose
        self.outputs = outputs
        self.plus = plus

    def tensor_names(self) -> list[str]:
        """Return the full names of its tensors; valid once the module has been called."""
        path = str(self.name).split(".")[: -2 if self.fused else -1]
        return [".".join([*path, source]) for source in self.sources]

    def bind(self, weights: Weights) -> None:
        """Check its tensors' shapes and have them read when the graph is saved; raise CheckpointError."""
        names = self.tensor_names()
        wanted = tuple(int(d) for d in self.shape or ())
        outputs, *inputs = wanted[::-1] if self.transpose else wanted
        each = self.outputs or [outputs // len(names)] * len(names)
        for name, part in zip(names, each, strict=True):
            expected = (part, *inputs)
            if weights.shape(name) != expected:
                raise CheckpointError(
                    f"{name} has shape {list(weights.shape(name))}, config.json makes it {list(expected)}"
                )

        def read() -> ir.Tensor:
            parts = [weights.read(name) for name in names]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            whole = whole + np.float32(self.plus) if self.plus else whole
            return ir.Tensor(np.ascontiguousarray(whole.T if self.transpose else whole))

        self.const_value = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(wanted), name=self.name)


class Linear(nn.Module):
    """y = x W + b. `layers` are the names, beside this module, of linear layers fused into one, of `each` outputs."""

    def __init__(
        self, inputs: int, outputs: int, *layers: str, bias: bool = True, each: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        prefixes, fused = [f"{layer}." for layer in layers] or [""], bool(layers)
        weights, biases = ([prefix + kind for prefix in prefixes] for kind in ("weight", "bias"))
        self.weight = Weight([inputs, outputs], *weights, transpose=True, fused=fused, outputs=each)
        self.bias = Weight([outputs], *biases, fused=fused, outputs=each) if bias else None

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

    def __init__(self, width: int, epsilon: float, bias: bool = True) -> None:
        super().__init__()
        self.weight = Weight([width], "weight")
        self.bias = Weight([width], "bias") if bias else None
        self.epsilon = epsilon

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, width] -> […, width]."""
        return op.LayerNormalization(x, self.weight, self.bias, axis=-1, epsilon=self.epsilon)


class WordsAndPositions(nn.Module):
    """Word and learned position, normalised: BERT's embeddings without token types."""

    def __init__(self, vocabulary: int, positions: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.word_embeddings = Embedding(vocabulary, hidden)
        self.position_embeddings = Embedding(positions, hidden)
        self.LayerNorm = LayerNorm(hidden, epsilon)

    def forward(self, op: Any, input_ids: ir.Value, position_ids: ir.Value) -> ir.Value:
        """Two int32 [rows, seq] -> [rows, seq, hidden]."""
        words = self.word_embeddings(op, input_ids)
        return self.LayerNorm(op, op.Add(words, self.position_embeddings(op, position_ids)))


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last axis; `plus` is 1 where the weight is stored less one."""

    def __init__(self, width: int, epsilon: float, plus: float = 0.0) -> None:
        super().__init__()
        self.weight = Weight([width], "weight", plus=plus)
        self.epsilon = epsilon

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, width] -> […, width]."""
        return op.RMSNormalization(x, self.weight, axis=-1, epsilon=self.epsilon)

    def by_head(self, op: Any, x: ir.Value, heads: int, width: int) -> ir.Value:
        """Normalise each head by itself: [rows, seq, heads * width] -> the same."""
        return op.Reshape(self(op, op.Reshape(x, [0, 0, heads, width])), [0, 0, heads * width])


def pool(op: Any, weights: ir.Value, hidden: ir.Value) -> ir.Value:
    """Every linear pooling at once: [rows, slots, seq] by [rows, seq, hidden] -> [rows, slots, hidden]."""
    return op.MatMul(weights, hidden)
