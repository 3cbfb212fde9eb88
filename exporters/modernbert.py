"""ModernBERT's graph. Attribute names are the checkpoint's."""

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort_exporters.attention import Attend, Tokens, span
from ffwd_ort_exporters.bert import bert_sizes
from ffwd_ort_exporters.blocks import (
    Embedding,
    LayerNorm,
    Linear,
    activation,
    check_activation,
)
from ffwd_ort_exporters.layer_kinds import GLOBAL, LOCAL, read_kinds, read_rotary
from ffwd_ort_exporters.native import Trunk, native_exporter
from ffwd_ort_exporters.rotary import Rotary, Rotation


class ModernBertTrunk(Trunk):
    """Embeddings, a stack of pre-norm blocks, the last norm."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config = checkpoint.config
        self.sizes = bert_sizes(checkpoint)
        norm = _norm_style(checkpoint)
        width, positions = self.sizes.hidden // self.sizes.heads, checkpoint.integer("max_position_embeddings")
        every = checkpoint.integer("global_attn_every_n_layers", default=3)
        self.kinds = read_kinds(checkpoint, self.sizes.layers, lambda i: LOCAL if i % every else GLOBAL)
        self.reach = checkpoint.integer("local_attention") // 2  # tokens to either side
        self.span = span(False, self.reach)
        self.embeddings = Embeddings(self.sizes, norm)
        self.layers = nn.ModuleList([Layer(config, self.sizes, norm, first=i == 0) for i in range(self.sizes.layers)])
        self.final_norm = LayerNorm(self.sizes.hidden, **norm)
        wide = read_rotary(config, GLOBAL, "global_rope_theta", 160_000.0)
        near = read_rotary(config, LOCAL, "local_rope_theta", 10_000.0)
        self.global_rotary = Rotary(*wide, width, positions)
        self.local_rotary = Rotary(*near, width, positions)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        seen = {
            GLOBAL: (Attend(op, tokens), self.global_rotary(op, tokens.position_ids)),
            LOCAL: (Attend(op, tokens, reach=self.reach), self.local_rotary(op, tokens.position_ids)),
        }
        x = self.embeddings(op, tokens.input_ids)
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            x = layer(op, x, *seen[kind])
        return self.final_norm(op, x)


def _norm_style(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"epsilon": checkpoint.number("norm_eps", 1e-5), "bias": bool(checkpoint.config.get("norm_bias", False))}


class Embeddings(nn.Module):
    """Tokens, normalised."""

    def __init__(self, sizes: Sizes, norm: dict[str, Any]) -> None:
        super().__init__()
        self.tok_embeddings = Embedding(sizes.vocabulary, sizes.hidden)
        self.norm = LayerNorm(sizes.hidden, **norm)

    def forward(self, op: Any, input_ids: ir.Value) -> ir.Value:
        """Int32 [rows, seq] -> [rows, seq, hidden]."""
        return self.norm(op, self.tok_embeddings(op, input_ids))


class Layer(nn.Module):
    """Norm and attention, norm and MLP; the first layer's input is normalised already."""

    def __init__(self, config: Mapping[str, Any], sizes: Sizes, norm: dict[str, Any], first: bool) -> None:
        super().__init__()
        self.attn_norm = None if first else LayerNorm(sizes.hidden, **norm)
        self.attn = SelfAttention(sizes, bool(config.get("attention_bias", False)))
        self.mlp_norm = LayerNorm(sizes.hidden, **norm)
        act = check_activation(config.get("hidden_activation", "gelu"))
        self.mlp = GatedMLP(sizes, act, bool(config.get("mlp_bias", False)))

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        normed = x if self.attn_norm is None else self.attn_norm(op, x)
        x = op.Add(x, self.attn(op, normed, attend, rotation))
        return op.Add(x, self.mlp(op, self.mlp_norm(op, x)))


class SelfAttention(nn.Module):
    """Self-attention with rotary positions; the checkpoint fuses its projections itself."""

    def __init__(self, sizes: Sizes, bias: bool) -> None:
        super().__init__()
        self.Wqkv = Linear(sizes.hidden, 3 * sizes.hidden, bias=bias)
        self.Wo = Linear(sizes.hidden, sizes.hidden, bias=bias)
        self.heads = sizes.heads

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.Wqkv(op, x), axis=2, num_outputs=3, _outputs=3)
        q, k = rotation(op, q, self.heads), rotation(op, k, self.heads)
        return self.Wo(op, attend(op, q, k, v, self.heads, self.heads))


class GatedMLP(nn.Module):
    """Wo(act(input) * gate), input and gate in one matrix."""

    def __init__(self, sizes: Sizes, act: str, bias: bool) -> None:
        super().__init__()
        self.Wi = Linear(sizes.hidden, 2 * sizes.intermediate, bias=bias)
        self.Wo = Linear(sizes.intermediate, sizes.hidden, bias=bias)
        self.act = act

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        inner, gate = op.Split(self.Wi(op, x), axis=2, num_outputs=2, _outputs=2)
        return self.Wo(op, op.Mul(activation(op, self.act, inner), gate))


EXPORTER = native_exporter("modernbert", ModernBertTrunk)
