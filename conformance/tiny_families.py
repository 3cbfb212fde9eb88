"""Tiny random checkpoints of the families beside BERT."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from ffwd_ort_conformance.tiny import (
    Draw,
    Tiny,
    TinyBert,
    bert_tensors,
    write_bert,
    write_json,
    write_modules,
    write_tokenizer,
    write_weights,
)
from ffwd_ort_conformance.tiny_tokenizers import write_byte_bpe, write_unigram

ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class TinyRoberta(TinyBert):
    """A tiny RoBERTa, or XLM-RoBERTa: its positions start two rows into the table."""

    model_type: str = "roberta"


def write_roberta(folder: Path, tiny: TinyRoberta = TinyRoberta()) -> Path:
    """Write a sentence-transformers folder around a random RoBERTa; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if tiny.model_type == "roberta":
        vocabulary = write_byte_bpe(folder, ROBERTA_SPECIALS, around=("<s>", "</s>"))
    else:
        vocabulary = write_unigram(folder)
    architectures = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel", "camembert": "CamembertModel"}
    config = {
        "architectures": [architectures[tiny.model_type]],
        "model_type": tiny.model_type,
        "hidden_act": tiny.hidden_act,
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": tiny.positions,
        "num_attention_heads": tiny.heads,
        "num_hidden_layers": tiny.layers,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "type_vocab_size": 1,
        "vocab_size": vocabulary,
    }
    write_json(folder / "config.json", config)
    write_modules(folder, tiny)
    write_weights(folder, bert_tensors(tiny, vocabulary, types=1), tiny)
    return folder


@dataclass(frozen=True)
class TinyDecoder(Tiny):
    """A tiny decoder of the Llama and Qwen kind. `config` adds to config.json, or replaces what is there."""

    model_type: str = "qwen3"
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 20
    qkv_bias: bool = False
    head_norms: bool = False
    append_eos: bool | None = None
    markers: tuple[str, ...] = ()  # special tokens besides the family's
    pooling: tuple[str, ...] = ("lasttoken",)
    config: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {
    "qwen3": "Qwen3Model",
    "qwen2": "Qwen2Model",
    "llama": "LlamaModel",
    "mistral": "MistralModel",
    "bidirectional_pplx_qwen3": "PPLXQwen3Model",
}


def write_decoder(folder: Path, tiny: TinyDecoder = TinyDecoder()) -> Path:
    """Write a sentence-transformers folder around a random decoder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_byte_bpe(
        folder,
        (*QWEN_SPECIALS, *tiny.markers),
        qwen=tiny.model_type.startswith("qwen"),
        eos="<|endoftext|>",
        append_eos=tiny.append_eos,
    )
    config = {
        "architectures": [ARCHITECTURES[tiny.model_type]],
        "model_type": tiny.model_type,
        "attention_bias": False,
        "head_dim": tiny.head_width,
        "hidden_act": "silu",
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "max_position_embeddings": tiny.positions,
        "num_attention_heads": tiny.heads,
        "num_hidden_layers": tiny.layers,
        "num_key_value_heads": tiny.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": vocabulary,
        **tiny.config,
    }
    write_json(folder / "config.json", config)
    write_modules(folder, tiny)
    write_weights(folder, decoder_tensors(tiny, vocabulary), tiny)
    return folder


def decoder_tensors(tiny: TinyDecoder, vocabulary: int) -> dict[str, Any]:
    """Draw every tensor of the trunk, under the names of a whole language model."""
    draw = Draw(tiny.seed)
    draw("model.embed_tokens.weight", vocabulary, tiny.hidden, scale=1.0)
    for i in range(tiny.layers):
        layer = f"model.layers.{i}"
        draw.norm(f"{layer}.input_layernorm", tiny.hidden, bias=False)
        for part, heads in (("q", tiny.heads), ("k", tiny.kv_heads), ("v", tiny.kv_heads)):
            draw.linear(f"{layer}.self_attn.{part}_proj", heads * tiny.head_width, tiny.hidden, bias=tiny.qkv_bias)
        draw.linear(f"{layer}.self_attn.o_proj", tiny.hidden, tiny.heads * tiny.head_width, bias=False)
        if tiny.head_norms:
            draw.norm(f"{layer}.self_attn.q_norm", tiny.head_width, bias=False)
            draw.norm(f"{layer}.self_attn.k_norm", tiny.head_width, bias=False)
        draw.norm(f"{layer}.post_attention_layernorm", tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.gate_proj", tiny.intermediate, tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.up_proj", tiny.intermediate, tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.down_proj", tiny.hidden, tiny.intermediate, bias=False)
    draw.norm("model.norm", tiny.hidden, bias=False)
    return draw.tensors


@dataclass(frozen=True)
class TinyEncoder(Tiny):
    """A tiny encoder of another family than BERT. `config` adds to config.json, or replaces what is there."""

    model_type: str = "distilbert"
    config: dict[str, Any] = field(default_factory=dict)


def write_encoder(folder: Path, tiny: TinyEncoder) -> Path:
    """Write a sentence-transformers folder around a random encoder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    make_config, draw = ENCODERS[tiny.model_type]
    if tiny.model_type == "mpnet":
        vocabulary = write_byte_bpe(folder, ROBERTA_SPECIALS, around=("<s>", "</s>"))
    else:
        vocabulary = write_tokenizer(folder)
    write_json(folder / "config.json", {"vocab_size": vocabulary, **make_config(tiny), **tiny.config})
    write_modules(folder, tiny)
    write_weights(folder, draw(tiny, vocabulary), tiny)
    return folder


def distilbert_config(tiny: TinyEncoder) -> dict[str, Any]:
    """Name DistilBERT's measures."""
    return {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        "activation": "gelu",
        "dim": tiny.hidden,
        "hidden_dim": tiny.intermediate,
        "max_position_embeddings": tiny.positions,
        "n_heads": tiny.heads,
        "n_layers": tiny.layers,
        "pad_token_id": 0,
    }


def distilbert_tensors(tiny: TinyEncoder, vocabulary: int) -> dict[str, Any]:
    """Draw DistilBERT's tensors."""
    draw = Draw(tiny.seed)
    draw("distilbert.embeddings.word_embeddings.weight", vocabulary, tiny.hidden, scale=1.0)
    draw("distilbert.embeddings.position_embeddings.weight", tiny.positions, tiny.hidden, scale=0.5)
    draw.norm("distilbert.embeddings.LayerNorm", tiny.hidden)
    for i in range(tiny.layers):
        layer = f"distilbert.transformer.layer.{i}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            draw.linear(f"{layer}.attention.{part}", tiny.hidden, tiny.hidden)
        draw.norm(f"{layer}.sa_layer_norm", tiny.hidden)
        draw.linear(f"{layer}.ffn.lin1", tiny.intermediate, tiny.hidden)
        draw.linear(f"{layer}.ffn.lin2", tiny.hidden, tiny.intermediate)
        draw.norm(f"{layer}.output_layer_norm", tiny.hidden)
    return draw.tensors


def bert_like_config(tiny: TinyEncoder) -> dict[str, Any]:
    """Name the measures as BERT does."""
    return {
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "max_position_embeddings": tiny.positions,
        "num_attention_heads": tiny.heads,
        "num_hidden_layers": tiny.layers,
    }


def mpnet_config(tiny: TinyEncoder) -> dict[str, Any]:
    """Name MPNet's measures."""
    names = {"architectures": ["MPNetModel"], "model_type": "mpnet", "hidden_act": "gelu", "layer_norm_eps": 1e-5}
    return bert_like_config(tiny) | names | {"pad_token_id": 1, "relative_attention_num_buckets": 32}


def mpnet_tensors(tiny: TinyEncoder, vocabulary: int) -> dict[str, Any]:
    """Draw MPNet's tensors."""
    draw = Draw(tiny.seed)
    draw("embeddings.word_embeddings.weight", vocabulary, tiny.hidden, scale=1.0)
    draw("embeddings.position_embeddings.weight", tiny.positions, tiny.hidden, scale=0.5)
    draw.norm("embeddings.LayerNorm", tiny.hidden)
    for i in range(tiny.layers):
        layer = f"encoder.layer.{i}"
        for part in ("q", "k", "v", "o"):
            draw.linear(f"{layer}.attention.attn.{part}", tiny.hidden, tiny.hidden)
        draw.norm(f"{layer}.attention.LayerNorm", tiny.hidden)
        draw.linear(f"{layer}.intermediate.dense", tiny.intermediate, tiny.hidden)
        draw.linear(f"{layer}.output.dense", tiny.hidden, tiny.intermediate)
        draw.norm(f"{layer}.output.LayerNorm", tiny.hidden)
    draw("encoder.relative_attention_bias.weight", 32, tiny.heads, scale=1.0)
    return draw.tensors


def modernbert_config(tiny: TinyEncoder) -> dict[str, Any]:
    """Name ModernBERT's measures, as its authors' files do."""
    names = {"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_activation": "gelu"}
    windows = {"global_attn_every_n_layers": 3, "local_attention": 8}
    bases = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    return bert_like_config(tiny) | names | windows | bases | ids | {"norm_eps": 1e-5, "norm_bias": False}


def modernbert_tensors(tiny: TinyEncoder, vocabulary: int) -> dict[str, Any]:
    """Draw ModernBERT's tensors."""
    draw = Draw(tiny.seed)
    draw("model.embeddings.tok_embeddings.weight", vocabulary, tiny.hidden, scale=1.0)
    draw.norm("model.embeddings.norm", tiny.hidden, bias=False)
    for i in range(tiny.layers):
        layer = f"model.layers.{i}"
        if i:
            draw.norm(f"{layer}.attn_norm", tiny.hidden, bias=False)
        draw.linear(f"{layer}.attn.Wqkv", 3 * tiny.hidden, tiny.hidden, bias=False)
        draw.linear(f"{layer}.attn.Wo", tiny.hidden, tiny.hidden, bias=False)
        draw.norm(f"{layer}.mlp_norm", tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.Wi", 2 * tiny.intermediate, tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.Wo", tiny.hidden, tiny.intermediate, bias=False)
    draw.norm("model.final_norm", tiny.hidden, bias=False)
    return draw.tensors


def nomic_config(tiny: TinyEncoder) -> dict[str, Any]:
    """Name Nomic BERT's measures, as transformers does."""
    names = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_act": "silu"}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
    return bert_like_config(tiny) | names | rope | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0}


def nomic_tensors(tiny: TinyEncoder, vocabulary: int) -> dict[str, Any]:
    """Draw Nomic BERT's tensors, under its authors' names."""
    draw = Draw(tiny.seed)
    draw("embeddings.word_embeddings.weight", vocabulary, tiny.hidden, scale=1.0)
    draw("embeddings.token_type_embeddings.weight", 2, tiny.hidden, scale=0.5)
    draw.norm("emb_ln", tiny.hidden)
    for i in range(tiny.layers):
        layer = f"encoder.layers.{i}"
        draw.linear(f"{layer}.attn.Wqkv", 3 * tiny.hidden, tiny.hidden, bias=False)
        draw.linear(f"{layer}.attn.out_proj", tiny.hidden, tiny.hidden, bias=False)
        draw.norm(f"{layer}.norm1", tiny.hidden)
        for part in ("fc11", "fc12"):
            draw.linear(f"{layer}.mlp.{part}", tiny.intermediate, tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.fc2", tiny.hidden, tiny.intermediate, bias=False)
        draw.norm(f"{layer}.norm2", tiny.hidden)
    return draw.tensors


ENCODERS = {
    "distilbert": (distilbert_config, distilbert_tensors),
    "mpnet": (mpnet_config, mpnet_tensors),
    "modernbert": (modernbert_config, modernbert_tensors),
    "nomic_bert": (nomic_config, nomic_tensors),
}


@dataclass(frozen=True)
class TinyGemma3(TinyDecoder):
    """A tiny EmbeddingGemma: seen both ways through windows, two Dense modules."""

    model_type: str = "gemma3_text"
    layers: int = 7
    pooling: tuple[str, ...] = ("mean_tokens",)
    dense: tuple[tuple[int, str], ...] = (
        (60, "torch.nn.modules.linear.Identity"),
        (36, "torch.nn.modules.activation.Tanh"),
    )
    both_ways: bool = True


def write_gemma3(folder: Path, tiny: TinyGemma3 = TinyGemma3()) -> Path:
    """Write a sentence-transformers folder around a random Gemma3; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_byte_bpe(folder, ROBERTA_SPECIALS, around=("<s>", "</s>"))
    config = {
        "architectures": ["Gemma3TextModel"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "head_dim": tiny.head_width,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "max_position_embeddings": tiny.positions,
        "num_attention_heads": tiny.heads,
        "num_hidden_layers": tiny.layers,
        "num_key_value_heads": tiny.kv_heads,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "query_pre_attn_scalar": 30,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "use_bidirectional_attention": tiny.both_ways,
        "vocab_size": vocabulary,
    }
    write_json(folder / "config.json", config)
    write_modules(folder, tiny)
    write_weights(folder, gemma3_tensors(tiny, vocabulary), tiny)
    return folder


def gemma3_tensors(tiny: TinyGemma3, vocabulary: int) -> dict[str, Any]:
    """Draw every tensor of the trunk; norms' weights lie around 0, as they are stored less one."""
    draw = Draw(tiny.seed)
    draw("embed_tokens.weight", vocabulary, tiny.hidden, scale=0.3)
    for i in range(tiny.layers):
        layer = f"layers.{i}"
        for part in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            draw(f"{layer}.{part}_layernorm.weight", tiny.hidden, scale=0.2)
        for part, heads in (("q", tiny.heads), ("k", tiny.kv_heads), ("v", tiny.kv_heads)):
            draw.linear(f"{layer}.self_attn.{part}_proj", heads * tiny.head_width, tiny.hidden, bias=False)
            if part != "v":
                draw(f"{layer}.self_attn.{part}_norm.weight", tiny.head_width, scale=0.2)
        draw.linear(f"{layer}.self_attn.o_proj", tiny.hidden, tiny.heads * tiny.head_width, bias=False)
        for part in ("gate", "up"):
            draw.linear(f"{layer}.mlp.{part}_proj", tiny.intermediate, tiny.hidden, bias=False)
        draw.linear(f"{layer}.mlp.down_proj", tiny.hidden, tiny.intermediate, bias=False)
    draw("norm.weight", tiny.hidden, scale=0.2)
    return draw.tensors


def make_cross_encoder(folder: Path, architecture: str, layers: tuple[str, str], tiny: Tiny) -> Path:
    """Turn a tiny encoder's folder into a cross-encoder's: no sentence-transformers files, one label."""
    config = json.loads((folder / "config.json").read_text()) | {
        "architectures": [architecture],
        "id2label": {"0": "L"},
    }
    write_json(folder / "config.json", config)
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    tensors = load_file(folder / "model.safetensors")
    draw = Draw(tiny.seed + 50)
    draw.linear(layers[0], tiny.hidden, tiny.hidden)
    draw.linear(layers[1], 1, tiny.hidden)
    save_file(tensors | draw.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_cross_encoder(folder: Path, family: str) -> Path:
    """Write a random cross-encoder of a family; returns the folder."""
    if family == "bert":
        tiny = TinyBert(old_names=False, seed=21)
        names = ("bert.pooler.dense", "classifier")
        return make_cross_encoder(write_bert(folder, tiny), "BertForSequenceClassification", names, tiny)
    if family == "distilbert":
        encoder = TinyEncoder(seed=22)
        names = ("pre_classifier", "classifier")
        return make_cross_encoder(write_encoder(folder, encoder), "DistilBertForSequenceClassification", names, encoder)
    roberta = TinyRoberta(seed=23, model_type=family)
    architecture = {"roberta": "RobertaForSequenceClassification", "xlm-roberta": "XLMRobertaForSequenceClassification"}
    names = ("classifier.dense", "classifier.out_proj")
    return make_cross_encoder(write_roberta(folder, roberta), architecture[family], names, roberta)
