"""What follows the trunk: Dense modules, or a cross-encoder's classifier."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.errors import AdmissionError
from ffwd_ort.modules import DenseModule
from ffwd_ort_exporters.blocks import Linear

# torch.nn's activation modules, by the name sentence-transformers' Dense writes, as one ONNX op.
DENSE_ACTIVATIONS = {"Identity": None, "Tanh": "Tanh", "ReLU": "Relu", "GELU": "Gelu", "Sigmoid": "Sigmoid"}


class DenseHead(nn.Module):
    """sentence-transformers' Dense modules, after pooling or on every token; with none it changes nothing."""

    def __init__(self, modules: Sequence[DenseModule]) -> None:
        super().__init__("dense")
        self.acts = [check_dense_activation(module) for module in modules]
        for i, module in enumerate(modules):
            setattr(self, str(i), DenseLayer(module))
        self.width = modules[-1].out_features if modules else None

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, hidden] -> […, width]."""
        for i, act in enumerate(self.acts):
            x = getattr(self, str(i))(op, x)
            x = x if act is None else getattr(op, act)(x)
        return x


class DenseLayer(nn.Module):
    """One Dense module's linear layer, under the name its file has."""

    def __init__(self, module: DenseModule) -> None:
        super().__init__()
        self.linear = Linear(module.in_features, module.out_features, bias=module.bias)

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[…, in] -> […, out]."""
        return self.linear(op, x)


def check_dense_activation(module: DenseModule) -> str | None:
    """Return the op of a Dense module's activation; raise AdmissionError if there is none for it."""
    if module.activation not in DENSE_ACTIVATIONS:
        known = ", ".join(DENSE_ACTIVATIONS)
        raise AdmissionError(f"{module.folder}: activation_function is {module.activation!r}; there are {known}")
    return DENSE_ACTIVATIONS[module.activation]


class Classifier(nn.Module):
    """Two linear layers with an activation between, from the pooled token's state to one logit.

    `names` are the layers' in the checkpoint: `pooler.dense` and `classifier` for BERT.
    """

    width = 1

    def __init__(self, hidden: int, names: tuple[str, str], act: str) -> None:
        super().__init__()
        self.names, self.act = names, act
        for name, outputs in zip(names, (hidden, self.width), strict=True):
            setattr(self, name, Linear(hidden, outputs))

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, slots, hidden] -> [rows, slots, 1]."""
        first, second = (getattr(self, name) for name in self.names)
        return second(op, getattr(op, self.act)(first(op, x)))
