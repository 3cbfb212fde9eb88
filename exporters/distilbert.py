"""DistilBERT's graph. Attribute names are the checkpoint's."""

from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort_exporters.attention import Attend, Tokens
from ffwd_ort_exporters.blocks import (
    LayerNorm,
    Linear,
    WordsAndPositions,
    activation,
    check_activation,
)
from ffwd_ort_exporters.heads import Classifier
from ffwd_ort_exporters.native import Trunk, native_exporter

EPSILON = 1e-12


class DistilBertTrunk(Trunk):
    """Embeddings and a stack of post-layer-norm blocks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.sizes = Sizes(
            layers=checkpoint.integer("n_layers"),
            hidden=checkpoint.integer("dim"),
            heads=checkpoint.integer("n_heads"),
            intermediate=checkpoint.integer("hidden_dim"),
            vocabulary=checkpoint.integer("vocab_size"),
        )
        positions = checkpoint.integer("max_position_embeddings")
        self.embeddings = WordsAndPositions(self.sizes.vocabulary, positions, self.sizes.hidden, EPSILON)
        self.transformer = Transformer(self.sizes, check_activation(checkpoint.config.get("activation", "gelu")))

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        x = self.embeddings(op, tokens.input_ids, tokens.position_ids)
        return self.transformer(op, x, Attend(op, tokens))


class Transformer(nn.Module):
    """The stack."""

    def __init__(self, sizes: Sizes, act: str) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(sizes, act) for _ in range(sizes.layers)])

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        for layer in self.layer:
            x = layer(op, x, attend)
        return x


class Layer(nn.Module):
    """Attention, then the MLP; each is added to its input and normalised."""

    def __init__(self, sizes: Sizes, act: str) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes)
        self.sa_layer_norm = LayerNorm(sizes.hidden, EPSILON)
        self.ffn = MLP(sizes, act)
        self.output_layer_norm = LayerNorm(sizes.hidden, EPSILON)

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        x = self.sa_layer_norm(op, op.Add(self.attention(op, x, attend), x))
        return self.output_layer_norm(op, op.Add(self.ffn(op, x), x))


class SelfAttention(nn.Module):
    """Self-attention with its output projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.qkv = Linear(sizes.hidden, 3 * sizes.hidden, "q_lin", "k_lin", "v_lin")
        self.out_lin = Linear(sizes.hidden, sizes.hidden)
        self.heads = sizes.heads

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.qkv(op, x), axis=2, num_outputs=3, _outputs=3)
        return self.out_lin(op, attend(op, q, k, v, self.heads, self.heads))


class MLP(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, sizes: Sizes, act: str) -> None:
        super().__init__()
        self.lin1 = Linear(sizes.hidden, sizes.intermediate)
        self.lin2 = Linear(sizes.intermediate, sizes.hidden)
        self.act = act

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        return self.lin2(op, activation(op, self.act, self.lin1(op, x)))


def distilbert_classifier(hidden: int) -> Classifier:
    """Make the head of DistilBertForSequenceClassification."""
    return Classifier(hidden, ("pre_classifier", "classifier"), "Relu")


EXPORTER = native_exporter("distilbert", DistilBertTrunk, distilbert_classifier, prefix="distilbert.")
