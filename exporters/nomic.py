"""Nomic BERT's graph. Attribute names are those of its authors' checkpoints."""

from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError
from ffwd_ort_exporters.attention import Attend, Tokens
from ffwd_ort_exporters.blocks import Embedding, LayerNorm, Linear, activation
from ffwd_ort_exporters.native import Trunk, native_exporter
from ffwd_ort_exporters.rotary import Rotary, Rotation, scaling_of


class NomicTrunk(Trunk):
    """Embeddings and a stack of post-layer-norm blocks. config.json is its authors' or transformers'."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config = checkpoint.config
        for key, only in {"prenorm": False, "qkv_proj_bias": False, "rotary_emb_fraction": 1.0}.items():
            if config.get(key, only) != only:
                raise AdmissionError(f"{key} is {config[key]!r}; only {only} is computed here")
        act = config.get("activation_function", config.get("hidden_act", "swiglu"))
        if act not in ("swiglu", "silu"):
            raise AdmissionError(f"activation_function is {act!r}; only 'swiglu' is computed here")
        self.sizes = Sizes(
            layers=checkpoint.integer("num_hidden_layers", "n_layer"),
            hidden=checkpoint.integer("hidden_size", "n_embd"),
            heads=checkpoint.integer("num_attention_heads", "n_head"),
            intermediate=checkpoint.integer("intermediate_size", "n_inner"),
            vocabulary=checkpoint.integer("vocab_size"),
        )
        epsilon = checkpoint.number("layer_norm_eps", checkpoint.number("layer_norm_epsilon", 1e-12))
        positions = checkpoint.integer("max_position_embeddings", "n_positions")
        base, scaling = scaling_of(config, checkpoint.number("rotary_emb_base", 1000.0))
        self.embeddings = Embeddings(self.sizes, checkpoint.integer("type_vocab_size"))
        self.emb_ln = LayerNorm(self.sizes.hidden, epsilon)
        self.encoder = Encoder(self.sizes, epsilon)
        self.rotary = Rotary(base, scaling, self.sizes.hidden // self.sizes.heads, positions)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        x = self.emb_ln(op, self.embeddings(op, tokens.input_ids))
        return self.encoder(op, x, Attend(op, tokens), self.rotary(op, tokens.position_ids))


class Embeddings(nn.Module):
    """Word and token type (always 0)."""

    def __init__(self, sizes: Sizes, types: int) -> None:
        super().__init__()
        self.word_embeddings = Embedding(sizes.vocabulary, sizes.hidden)
        self.token_type_embeddings = Embedding(types, sizes.hidden)

    def forward(self, op: Any, input_ids: ir.Value) -> ir.Value:
        """Int32 [rows, seq] -> [rows, seq, hidden]."""
        first_type = self.token_type_embeddings(op, op.Constant(value_int=0))
        return op.Add(self.word_embeddings(op, input_ids), first_type)


class Encoder(nn.Module):
    """The stack."""

    def __init__(self, sizes: Sizes, epsilon: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(sizes, epsilon) for _ in range(sizes.layers)])

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        for layer in self.layers:
            x = layer(op, x, attend, rotation)
        return x


class Layer(nn.Module):
    """Attention, then the MLP; each is added to its input and normalised."""

    def __init__(self, sizes: Sizes, epsilon: float) -> None:
        super().__init__()
        self.attn = SelfAttention(sizes)
        self.norm1 = LayerNorm(sizes.hidden, epsilon)
        self.mlp = GatedMLP(sizes)
        self.norm2 = LayerNorm(sizes.hidden, epsilon)

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        x = self.norm1(op, op.Add(self.attn(op, x, attend, rotation), x))
        return self.norm2(op, op.Add(self.mlp(op, x), x))


class SelfAttention(nn.Module):
    """Self-attention with rotary positions; the checkpoint fuses its projections itself."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.Wqkv = Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.out_proj = Linear(sizes.hidden, sizes.hidden, bias=False)
        self.heads = sizes.heads

    def forward(self, op: Any, x: ir.Value, attend: Attend, rotation: Rotation) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.Wqkv(op, x), axis=2, num_outputs=3, _outputs=3)
        q, k = rotation(op, q, self.heads), rotation(op, k, self.heads)
        return self.out_proj(op, attend(op, q, k, v, self.heads, self.heads))


class GatedMLP(nn.Module):
    """fc2(fc11(x) * silu(fc12(x))), fc11 and fc12 in one matrix."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up_gate = Linear(sizes.hidden, 2 * sizes.intermediate, "fc11", "fc12", bias=False)
        self.fc2 = Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        up, gate = op.Split(self.up_gate(op, x), axis=2, num_outputs=2, _outputs=2)
        return self.fc2(op, op.Mul(up, activation(op, "silu", gate)))


EXPORTER = native_exporter("nomic", NomicTrunk)
