"""Tiny random checkpoints of the families beside BERT."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ffwd_ort_conformance.tiny import (
    Draw,
    Tiny,
    TinyBert,
    bert_tensors,
    write_json,
    write_modules,
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
    pooling: tuple[str, ...] = ("lasttoken",)
    config: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {"qwen3": "Qwen3Model", "qwen2": "Qwen2Model", "llama": "LlamaModel", "mistral": "MistralModel"}


def write_decoder(folder: Path, tiny: TinyDecoder = TinyDecoder()) -> Path:
    """Write a sentence-transformers folder around a random decoder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_byte_bpe(
        folder,
        QWEN_SPECIALS,
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
