"""MPNet's graph. Attribute names are the checkpoint's; the block around attention is BERT's."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort_exporters.attention import Tokens, attention, segment_mask
from ffwd_ort_exporters.bert import Layer, bert_sizes
from ffwd_ort_exporters.blocks import (
    Embedding,
    LayerNorm,
    Linear,
    WordsAndPositions,
    check_activation,
)
from ffwd_ort_exporters.native import Trunk, native_exporter

FARTHEST = 128  # distances beyond this share a bucket


class MPNetTrunk(Trunk):
    """Embeddings and a stack of post-layer-norm blocks under one relative bias."""

    has_long_form = False  # no flash kernel adds a bias of every pair of tokens

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.sizes = bert_sizes(checkpoint)
        epsilon = checkpoint.number("layer_norm_eps", 1e-12)
        act = check_activation(checkpoint.config.get("hidden_act", "gelu"))
        positions = checkpoint.integer("max_position_embeddings")
        self.embeddings = WordsAndPositions(self.sizes.vocabulary, positions, self.sizes.hidden, epsilon)
        buckets = checkpoint.config.get("relative_attention_num_buckets", 32)
        self.encoder = Encoder(self.sizes, epsilon, act, int(buckets))

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        x = self.embeddings(op, tokens.input_ids, tokens.position_ids)
        mask = segment_mask(op, tokens.segment_ids)
        return self.encoder(op, x, mask, op.Shape(tokens.input_ids, start=1, end=2))


class Encoder(nn.Module):
    """The stack, and the bias that every layer adds to its scores."""

    def __init__(self, sizes: Sizes, epsilon: float, act: str, buckets: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(Attention(sizes, epsilon), sizes, epsilon, act) for _ in range(sizes.layers)])
        self.relative_attention_bias = Embedding(buckets, sizes.heads)
        self.buckets = bucket_table(buckets)

    def forward(self, op: Any, x: ir.Value, mask: ir.Value, seq: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same; `seq` is int64 [1]."""
        scores = op.Where(mask, self._bias(op, seq), op.Constant(value_float=float("-inf")))
        for layer in self.layer:
            x = layer(op, x, scores)
        return x

    def _bias(self, op: Any, seq: ir.Value) -> ir.Value:
        """Return float [1, heads, seq, seq]. Within a text, distances in the row are those in the text."""
        places = op.Range(op.Constant(value_int=0), op.Squeeze(seq), op.Constant(value_int=1))
        ahead = op.Sub(op.Unsqueeze(places, [0]), op.Unsqueeze(places, [1]))  # key - query
        near = op.Clip(ahead, op.Constant(value_int=-FARTHEST), op.Constant(value_int=FARTHEST))
        table = op.Constant(value=ir.Tensor(self.buckets))
        bucket = op.Gather(table, op.Add(near, op.Constant(value_int=FARTHEST)))
        return op.Unsqueeze(op.Transpose(self.relative_attention_bias(op, bucket), perm=[2, 0, 1]), [0])


def bucket_table(buckets: int) -> np.ndarray:
    """Return the bucket of each distance from -128 to 128 (T5's rule: half of them exact, half logarithmic)."""
    ahead = np.arange(-FARTHEST, FARTHEST + 1)
    half = buckets // 2
    exact = half // 2
    distance = np.abs(ahead)
    with np.errstate(divide="ignore"):
        steps = np.log(distance.astype(np.float32) / np.float32(exact)) / np.float32(math.log(FARTHEST / exact))
    large = exact + np.where(distance > 0, steps * np.float32(half - exact), 0).astype(np.int64)
    return np.where(ahead > 0, half, 0) + np.where(distance < exact, distance, np.minimum(large, half - 1))


class Attention(nn.Module):
    """Self-attention, the residual and the norm."""

    def __init__(self, sizes: Sizes, epsilon: float) -> None:
        super().__init__()
        self.attn = SelfAttention(sizes)
        self.LayerNorm = LayerNorm(sizes.hidden, epsilon)

    def forward(self, op: Any, x: ir.Value, scores: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        return self.LayerNorm(op, op.Add(self.attn(op, x, scores), x))


class SelfAttention(nn.Module):
    """Self-attention with its output projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.qkv = Linear(sizes.hidden, 3 * sizes.hidden, "q", "k", "v")
        self.o = Linear(sizes.hidden, sizes.hidden)
        self.heads = sizes.heads

    def forward(self, op: Any, x: ir.Value, scores: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.qkv(op, x), axis=2, num_outputs=3, _outputs=3)
        return self.o(op, attention(op, q, k, v, scores, self.heads, self.heads))


EXPORTER = native_exporter("mpnet", MPNetTrunk, prefix="mpnet.")
