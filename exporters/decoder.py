"""The pre-norm decoder that the Llama and Qwen families share: RMSNorm, rotary positions, gated MLP, grouped heads."""

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError
from ffwd_ort_exporters.attention import Attend, Tokens, can_be_long, span
from ffwd_ort_exporters.blocks import (
    Embedding,
    Linear,
    RMSNorm,
    activation,
    check_activation,
)
from ffwd_ort_exporters.layer_kinds import GLOBAL, LOCAL, read_kinds
from ffwd_ort_exporters.native import Trunk
from ffwd_ort_exporters.rotary import Rotary, Rotation, scaling_of


@dataclass(frozen=True)
class DecoderStyle:
    """In what the families differ. config.json's `is_causal` wins over `causal`."""

    causal: bool = True
    qkv_bias: bool = False
    head_norms: bool = False


@dataclass(frozen=True)
class Shape:
    """A decoder's measures, as config.json gives them."""

    sizes: Sizes
    kv_heads: int
    head_width: int
    epsilon: float
    act: str
    windows: tuple[int | None, ...]

    @classmethod
    def read(cls, checkpoint: Checkpoint, act_key: str = "hidden_act", act: str = "silu") -> "Shape":
        """Read config.json; raise AdmissionError for what cannot be computed."""
        config = checkpoint.config
        sizes = Sizes(
            layers=checkpoint.integer("num_hidden_layers"),
            hidden=checkpoint.integer("hidden_size"),
            heads=checkpoint.integer("num_attention_heads"),
            intermediate=checkpoint.integer("intermediate_size"),
            vocabulary=checkpoint.integer("vocab_size"),
        )
        kv_heads = checkpoint.integer("num_key_value_heads", default=sizes.heads)
        if sizes.heads % kv_heads:
            raise AdmissionError(f"num_attention_heads {sizes.heads} is no multiple of {kv_heads} key-value heads")
        return cls(
            sizes=sizes,
            kv_heads=kv_heads,
            head_width=checkpoint.integer("head_dim", default=max(1, sizes.hidden // sizes.heads)),
            epsilon=checkpoint.number("rms_norm_eps", 1e-6),
            act=check_activation(config.get(act_key, act)),
            windows=_windows(checkpoint, sizes.layers),
        )


def _windows(checkpoint: Checkpoint, layers: int) -> tuple[int | None, ...]:
    """Return each layer's sliding window in tokens, itself included; None where a layer sees everything."""
    config = checkpoint.config
    # Qwen2 slides from a layer on; Mistral in all of them.
    first = checkpoint.number("max_window_layers", 0) if "use_sliding_window" in config else 0
    kinds = read_kinds(checkpoint, layers, lambda i: LOCAL if i >= first else GLOBAL)
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return (None,) * layers
    window = checkpoint.integer("sliding_window")
    return tuple(window if kind == LOCAL else None for kind in kinds)


class DecoderTrunk(Trunk):
    """Embeddings, the stack, the last norm."""

    def __init__(self, checkpoint: Checkpoint, style: DecoderStyle) -> None:
        super().__init__()
        shape = Shape.read(checkpoint)
        self.sizes = shape.sizes
        self.causal = style.causal if checkpoint.is_causal is None else checkpoint.is_causal
        self.windows = shape.windows
        self.has_long_form = can_be_long(self.causal, shape.head_width)
        self.span = max(span(self.causal, window and window - 1) for window in self.windows)
        base, scaling = scaling_of(checkpoint.config)
        self.embed_tokens = Embedding(shape.sizes.vocabulary, shape.sizes.hidden)
        self.rotary = Rotary(base, scaling, shape.head_width, checkpoint.integer("max_position_embeddings"))
        self.layers = nn.ModuleList([Layer(shape, style) for _ in range(shape.sizes.layers)])
        self.norm = RMSNorm(shape.sizes.hidden, shape.epsilon)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        attends = {
            window: Attend(op, tokens, causal=self.causal, reach=None if window is None else window - 1)
            for window in sorted(set(self.windows), key=lambda w: w or 0)
        }
        rotation = self.rotary(op, tokens.position_ids)
        x = self.embed_tokens(op, tokens.input_ids)
        for layer, window in zip(self.layers, self.windows, strict=True):
            x = layer(op, x, attends[window], rotation)
        return self.norm(op, x)


class Layer(nn.Module):
    """Norm and attention, norm and MLP, each added to what came in."""

    def __init__(self, shape: Shape, style: DecoderStyle) -> None:
        super().__init__()
        hidden = shape.sizes.hidden
        self.input_layernorm = RMSNorm(hidden, shape.epsilon)
        self.self_attn = SelfAttention(shape, style)
        self.post_attention_layernorm = RMSNorm(hidden, shape.epsilon)
        self.mlp = GatedMLP(hidden, shape.sizes.intermediate, shape.act)

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        x = op.Add(x, self.self_attn(op, self.input_layernorm(op, x), attend, rotation))
        return op.Add(x, self.mlp(op, self.post_attention_layernorm(op, x)))


class SelfAttention(nn.Module):
    """Grouped heads with rotary positions; `head_norms` normalises each head's query and key first."""

    def __init__(self, shape: Shape, style: DecoderStyle) -> None:
        super().__init__()
        hidden, width = shape.sizes.hidden, shape.head_width
        self.heads, self.kv_heads, self.width = shape.sizes.heads, shape.kv_heads, width
        self.each = [self.heads * width, self.kv_heads * width, self.kv_heads * width]
        names = ("q_proj", "k_proj", "v_proj")
        self.qkv = Linear(hidden, sum(self.each), *names, bias=style.qkv_bias, each=self.each)
        self.o_proj = Linear(self.heads * width, hidden, bias=False)
        self.q_norm = RMSNorm(width, shape.epsilon) if style.head_norms else None
        self.k_norm = RMSNorm(width, shape.epsilon) if style.head_norms else None

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.qkv(op, x), self.each, axis=2, _outputs=3)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm.by_head(op, q, self.heads, self.width)
            k = self.k_norm.by_head(op, k, self.kv_heads, self.width)
        q, k = rotation(op, q, self.heads), rotation(op, k, self.kv_heads)
        return self.o_proj(op, attend(op, q, k, v, self.heads, self.kv_heads))


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up in one matrix."""

    def __init__(self, hidden: int, intermediate: int, act: str) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * intermediate, "gate_proj", "up_proj", bias=False)
        self.down_proj = Linear(intermediate, hidden, bias=False)
        self.act = act

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        gate, up = op.Split(self.gate_up(op, x), axis=2, num_outputs=2, _outputs=2)
        return self.down_proj(op, op.Mul(activation(op, self.act, gate), up))
