"""BERT's graph. Attribute names are the checkpoint's."""

from typing import Any

import onnx_ir as ir
from onnxscript import nn

from ffwd_ort.bundle import Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError
from ffwd_ort_exporters.attention import Attend, Tokens
from ffwd_ort_exporters.blocks import (
    Embedding,
    LayerNorm,
    Linear,
    activation,
    check_activation,
)
from ffwd_ort_exporters.heads import Classifier
from ffwd_ort_exporters.native import Trunk, native_exporter


class BertTrunk(Trunk):
    """Embeddings and a stack of post-layer-norm blocks."""

    token_types = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config = checkpoint.config
        kind = config.get("position_embedding_type", "absolute")
        if kind != "absolute":
            raise AdmissionError(f"position_embedding_type is {kind!r}; only 'absolute' is computed here")
        for key in ("is_causal", "is_decoder", "add_cross_attention"):
            if config.get(key):
                raise AdmissionError(f"{key} is {config[key]!r}; only an encoder that sees both ways is computed here")
        self.sizes = bert_sizes(checkpoint)
        act = check_activation(config.get("hidden_act", "gelu"))
        epsilon = checkpoint.number("layer_norm_eps", 1e-12)
        self.embeddings = Embeddings(checkpoint, self.sizes, epsilon)
        self.encoder = Encoder(self.sizes, epsilon, act)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        return self.encoder(op, self.embeddings(op, tokens), Attend(op, tokens))


def bert_sizes(checkpoint: Checkpoint) -> Sizes:
    """Read the measures as BERT's config.json names them."""
    sizes = Sizes(
        layers=checkpoint.integer("num_hidden_layers"),
        hidden=checkpoint.integer("hidden_size"),
        heads=checkpoint.integer("num_attention_heads"),
        intermediate=checkpoint.integer("intermediate_size"),
        vocabulary=checkpoint.integer("vocab_size"),
    )
    if sizes.hidden % sizes.heads:
        raise AdmissionError(f"hidden_size {sizes.hidden} is no multiple of {sizes.heads} heads")
    return sizes


class Embeddings(nn.Module):
    """Word, position and token type (0 where a text stands alone), normalised."""

    def __init__(self, checkpoint: Checkpoint, sizes: Sizes, epsilon: float) -> None:
        super().__init__()
        self.word_embeddings = Embedding(sizes.vocabulary, sizes.hidden)
        self.position_embeddings = Embedding(checkpoint.integer("max_position_embeddings"), sizes.hidden)
        self.token_type_embeddings = Embedding(checkpoint.integer("type_vocab_size"), sizes.hidden)
        self.LayerNorm = LayerNorm(sizes.hidden, epsilon)

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> [rows, seq, hidden]."""
        types = op.Constant(value_int=0) if tokens.token_type_ids is None else tokens.token_type_ids
        words = op.Add(self.word_embeddings(op, tokens.input_ids), self.token_type_embeddings(op, types))
        return self.LayerNorm(op, op.Add(words, self.position_embeddings(op, tokens.position_ids)))


class Encoder(nn.Module):
    """The stack; each layer attends alike."""

    def __init__(self, sizes: Sizes, epsilon: float, act: str) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(Attention(sizes, epsilon), sizes, epsilon, act) for _ in range(sizes.layers)])

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        for layer in self.layer:
            x = layer(op, x, attend)
        return x


class Layer(nn.Module):
    """Attention, then the MLP; each is added to its input and normalised."""

    def __init__(self, attention: nn.Module, sizes: Sizes, epsilon: float, act: str) -> None:
        super().__init__()
        self.attention = attention
        self.intermediate = Intermediate(sizes, act)
        self.output = Output(sizes.intermediate, sizes.hidden, epsilon)

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        x = self.attention(op, x, attend)
        return self.output(op, self.intermediate(op, x), x)


class Attention(nn.Module):
    """Self-attention with its output projection."""

    def __init__(self, sizes: Sizes, epsilon: float) -> None:
        super().__init__()
        self.self = SelfAttention(sizes)
        self.output = Output(sizes.hidden, sizes.hidden, epsilon)

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        return self.output(op, self.self(op, x, attend), x)


class SelfAttention(nn.Module):
    """query, key and value in one matrix, then attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.qkv = Linear(sizes.hidden, 3 * sizes.hidden, "query", "key", "value")
        self.heads = sizes.heads

    def forward(self, op: Any, x: ir.Value, attend: Attend) -> ir.Value:
        """[rows, seq, hidden] -> the same."""
        q, k, v = op.Split(self.qkv(op, x), axis=2, num_outputs=3, _outputs=3)
        return attend(op, q, k, v, self.heads, self.heads)


class Intermediate(nn.Module):
    """The MLP's first half."""

    def __init__(self, sizes: Sizes, act: str) -> None:
        super().__init__()
        self.dense = Linear(sizes.hidden, sizes.intermediate)
        self.act = act

    def forward(self, op: Any, x: ir.Value) -> ir.Value:
        """[rows, seq, hidden] -> [rows, seq, intermediate]."""
        return activation(op, self.act, self.dense(op, x))


class Output(nn.Module):
    """A projection, the residual and the norm."""

    def __init__(self, inputs: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.dense = Linear(inputs, hidden)
        self.LayerNorm = LayerNorm(hidden, epsilon)

    def forward(self, op: Any, x: ir.Value, residual: ir.Value) -> ir.Value:
        """[rows, seq, inputs] and [rows, seq, hidden] -> [rows, seq, hidden]."""
        return self.LayerNorm(op, op.Add(self.dense(op, x), residual))


def bert_classifier(hidden: int) -> Classifier:
    """Make the head of BertForSequenceClassification."""
    return Classifier(hidden, ("pooler.dense", "classifier"), "Tanh")


EXPORTER = native_exporter("bert", BertTrunk, bert_classifier, prefix="bert.")
