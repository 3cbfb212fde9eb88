"""Gemma3's graph. Attribute names are the checkpoint's; norms store their weight less one."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError
from ffwd_ort_exporters.attention import Attend, Tokens, can_be_long, span
from ffwd_ort_exporters.blocks import Embedding, Linear, RMSNorm
from ffwd_ort_exporters.decoder import GatedMLP, Shape
from ffwd_ort_exporters.layer_kinds import GLOBAL, LOCAL, read_kinds, read_rotary
from ffwd_ort_exporters.native import Trunk, native_exporter
from ffwd_ort_exporters.rotary import Rotary, Rotation


class Gemma3Trunk(Trunk):
    """Scaled embeddings, the stack, the last norm."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config = checkpoint.config
        shape = Shape.read(checkpoint, act_key="hidden_activation", act="gelu_pytorch_tanh")
        self.sizes = shape.sizes
        positions = checkpoint.integer("max_position_embeddings")
        self.causal = not config.get("use_bidirectional_attention", False)
        every = checkpoint.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
        self.kinds = read_kinds(checkpoint, shape.sizes.layers, lambda i: LOCAL if (i + 1) % every else GLOBAL)
        # An encoder sees as many tokens to either side as half the window; a decoder the window behind it.
        window = checkpoint.integer("sliding_window")
        self.reach = window - 1 if self.causal else window // 2
        self.has_long_form = can_be_long(self.causal, shape.head_width)
        self.span = span(self.causal, self.reach)
        scalar = checkpoint.number("query_pre_attn_scalar", shape.head_width)
        if not scalar:
            raise AdmissionError("query_pre_attn_scalar is 0; a positive number is needed")
        self.embed_tokens = Embedding(shape.sizes.vocabulary, shape.sizes.hidden)
        self.layers = nn.ModuleList([Layer(shape, scalar**-0.5) for _ in range(shape.sizes.layers)])
        self.norm = norm(shape.sizes.hidden, shape)
        wide = read_rotary(config, GLOBAL, "rope_theta", 1_000_000.0)
        near = read_rotary(config, LOCAL, "rope_local_base_freq", 10_000.0, scales=False)
        self.global_rotary = Rotary(*wide, shape.head_width, positions)
        self.local_rotary = Rotary(*near, shape.head_width, positions)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        attends = {
            GLOBAL: Attend(op, tokens, causal=self.causal),
            LOCAL: Attend(op, tokens, causal=self.causal, reach=self.reach),
        }
        places = tokens.position_ids
        rotations = {GLOBAL: self.global_rotary(op, places), LOCAL: self.local_rotary(op, places)}
        scale = op.Constant(value=ir.Tensor(np.array(math.sqrt(self.sizes.hidden), np.float32)))
        x = op.Mul(self.embed_tokens(op, tokens.input_ids), scale)
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            x = layer(op, x, attends[kind], rotations[kind])
        return self.norm(op, x)


def norm(width: int, shape: Shape) -> RMSNorm:
    """Make a norm whose stored weight lacks one."""
    return RMSNorm(width, shape.epsilon, plus=1.0)


class Layer(nn.Module):
    """Attention and MLP, each normalised before and after."""

    def __init__(self, shape: Shape, scale: float) -> None:
        super().__init__()
        hidden = shape.sizes.hidden
        self.input_layernorm = norm(hidden, shape)
        self.self_attn = SelfAttention(shape, scale)
        self.post_attention_layernorm = norm(hidden, shape)
        self.pre_feedforward_layernorm = norm(hidden, shape)
        self.mlp = GatedMLP(hidden, shape.sizes.intermediate, shape.act)
        self.post_feedforward_layernorm = norm(hidden, shape)

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        attended = self.self_attn(op, self.input_layernorm(op, x), attend, rotation)
        x = op.Add(x, self.post_attention_layernorm(op, attended))
        inner = self.mlp(op, self.pre_feedforward_layernorm(op, x))
        return op.Add(x, self.post_feedforward_layernorm(op, inner))


class SelfAttention(nn.Module):
    """Grouped heads with a norm on each head's query and key, and a scale of its own."""

    def __init__(self, shape: Shape, scale: float) -> None:
        super().__init__()
        hidden, width = shape.sizes.hidden, shape.head_width
        self.heads, self.kv_heads, self.width, self.scale = shape.sizes.heads, shape.kv_heads, width, scale
        self.each = [self.heads * width, self.kv_heads * width, self.kv_heads * width]
        self.qkv = Linear(hidden, sum(self.each), "q_proj", "k_proj", "v_proj", bias=False, each=self.each)
        self.o_proj = Linear(self.heads * width, hidden, bias=False)
        self.q_norm, self.k_norm = norm(width, shape), norm(width, shape)

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.qkv(op, x), self.each, axis=2, _outputs=3)
        q = rotation(op, self.q_norm.by_head(op, q, self.heads, self.width), self.heads)
        k = rotation(op, self.k_norm.by_head(op, k, self.kv_heads, self.width), self.kv_heads)
        return self.o_proj(op, attend(op, q, k, v, self.heads, self.kv_heads, self.scale))


EXPORTER = native_exporter("gemma3", Gemma3Trunk)
