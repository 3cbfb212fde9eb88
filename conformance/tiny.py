"""Tiny checkpoints with random weights, written with NumPy alone: the same bytes on every machine.

Weights are scaled so that activations are neither dead nor saturated, and every parameter matters: biases
and norms are random too. `RandomState` streams are frozen by NumPy's own promise.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "is",
    "it",
    "tide",
    "water",
    "low",
    "high",
    "falls",
    "rises",
    "ferry",
    "boat",
    "sail",
    "bar",
    "buoy",
    "port",
    "pilot",
    "east",
    "west",
    "kelp",
    "season",
    "may",
    "opens",
    "ebb",
    "flow",
    "light",
    "house",
    "keep",
    "red",
    "green",
    "stone",
    "sand",
    "rock",
    "bay",
]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PIECES = [*LETTERS, *".,:;!?'\"-()", *(f"##{letter}" for letter in LETTERS)]
POOLING_KEYS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
VOCABULARY = tuple(dict.fromkeys([*SPECIALS, *WORDS, *PIECES]))  # "a" is a word and a letter
TEXTS = (
    "The tide falls.",
    "Low water is at 06:40 in the bay, and the ferry keeps to the east of the bar.",
    "kelp",
    "?",
    "A pilot keeps the red buoy to port; the green light is on the rock.",
    "zzz qqq unknownwordhere 123",
)


@dataclass(frozen=True)
class Tiny:
    """What every tiny checkpoint can vary in: its size, how its weights are stored, its sentence-transformers files."""

    layers: int = 3
    hidden: int = 48
    heads: int = 3
    intermediate: int = 80
    positions: int = 128
    seed: int = 7
    shards: int = 1
    dtype: str = "float32"  # or float16, bfloat16
    pooling: tuple[str, ...] = ("mean_tokens",)  # as the older keys name them, without `pooling_mode_`
    new_pooling_keys: bool = False
    normalize: bool = True
    include_prompt: bool = True
    dense: tuple[tuple[int, str], ...] = ()  # (outputs, activation) of each Dense module
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None


@dataclass(frozen=True)
class TinyBert(Tiny):
    """A tiny BERT."""

    hidden_act: str = "gelu"
    old_names: bool = False  # LayerNorm.gamma and beta, under `bert.`
    markers: tuple[str, ...] = ()  # special tokens besides BERT's


def write_bert(folder: Path, tiny: TinyBert = TinyBert()) -> Path:
    """Write a sentence-transformers folder around a random BERT; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, tiny.markers)
    write_json(
        folder / "config.json",
        {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_act": tiny.hidden_act,
            "hidden_size": tiny.hidden,
            "intermediate_size": tiny.intermediate,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": tiny.positions,
            "num_attention_heads": tiny.heads,
            "num_hidden_layers": tiny.layers,
            "pad_token_id": 0,
            "type_vocab_size": 2,
            "vocab_size": vocabulary,
        },
    )
    write_modules(folder, tiny)
    write_weights(folder, bert_tensors(tiny, vocabulary), tiny)
    return folder


def write_tokenizer(folder: Path, markers: Sequence[str] = ()) -> int:
    """Write a real WordPiece tokenizer of a hundred-odd words; returns its size. It pads and truncates: a trap."""
    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ids = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    tokenizer.add_special_tokens([*SPECIALS, *markers])
    tokenizer.enable_padding(length=24)
    tokenizer.enable_truncation(24)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "model_max_length": 64,
            "do_lower_case": True,
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "mask_token": "[MASK]",
        },
    )
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    return tokenizer.get_vocab_size()


def write_modules(folder: Path, tiny: Tiny) -> None:
    """Write modules.json and what it names."""
    kinds = ["Transformer", "Pooling", *("Dense" for _ in tiny.dense), *(["Normalize"] if tiny.normalize else [])]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    config: dict[str, Any] = {"word_embedding_dimension": tiny.hidden, "include_prompt": tiny.include_prompt}
    if tiny.new_pooling_keys:
        newer = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "weightedmean_tokens": "weightedmean"}
        short = [newer.get(mode, mode) for mode in tiny.pooling]
        config = {"embedding_dimension": tiny.hidden, "include_prompt": tiny.include_prompt}
        config["pooling_mode"] = short[0] if len(short) == 1 else short
    else:
        config |= {f"pooling_mode_{mode}": mode in tiny.pooling for mode in POOLING_KEYS}
    write_json(folder / "1_Pooling" / "config.json", config)
    write_dense(folder, tiny)
    if tiny.prompts:
        prompts = {"prompts": dict(tiny.prompts), "default_prompt_name": tiny.default_prompt}
        write_json(folder / "config_sentence_transformers.json", prompts)


def write_dense(folder: Path, tiny: Tiny) -> None:
    """Write the Dense modules: every other one with a bias."""
    inputs = tiny.hidden
    for i, (outputs, activation) in enumerate(tiny.dense):
        draw = Draw(tiny.seed + 100 + i)
        draw.linear("linear", outputs, inputs, bias=i % 2 == 0)
        where = folder / f"{i + 2}_Dense"
        config = {"in_features": inputs, "out_features": outputs, "bias": i % 2 == 0, "activation_function": activation}
        write_json(where / "config.json", config)
        save_file(draw.tensors, where / "model.safetensors", metadata={"format": "pt"})
        inputs = outputs


class Draw:
    """Draws tensors, in the order of the calls."""

    def __init__(self, seed: int) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._random = np.random.RandomState(seed)

    def __call__(self, name: str, *shape: int, scale: float, mean: float = 0.0) -> None:
        self.tensors[name] = (mean + scale * self._random.standard_normal(shape)).astype(np.float32)

    def linear(self, name: str, outputs: int, inputs: int, bias: bool = True) -> None:
        """Draw a linear layer."""
        self(f"{name}.weight", outputs, inputs, scale=1.5 / np.sqrt(inputs))
        if bias:
            self(f"{name}.bias", outputs, scale=0.2)

    def norm(self, name: str, width: int, bias: bool = True) -> None:
        """Draw a norm."""
        self(f"{name}.weight", width, scale=0.2, mean=1.0)
        if bias:
            self(f"{name}.bias", width, scale=0.2)


def bert_tensors(tiny: TinyBert, vocabulary: int, types: int = 2) -> dict[str, np.ndarray]:
    """Draw every tensor of the trunk, in a fixed order."""
    draw = Draw(tiny.seed)
    draw("embeddings.word_embeddings.weight", vocabulary, tiny.hidden, scale=1.0)
    draw("embeddings.position_embeddings.weight", tiny.positions, tiny.hidden, scale=0.5)
    draw("embeddings.token_type_embeddings.weight", types, tiny.hidden, scale=0.5)
    draw.norm("embeddings.LayerNorm", tiny.hidden)
    for i in range(tiny.layers):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            draw.linear(f"{layer}.attention.self.{part}", tiny.hidden, tiny.hidden)
        draw.linear(f"{layer}.attention.output.dense", tiny.hidden, tiny.hidden)
        draw.norm(f"{layer}.attention.output.LayerNorm", tiny.hidden)
        draw.linear(f"{layer}.intermediate.dense", tiny.intermediate, tiny.hidden)
        draw.linear(f"{layer}.output.dense", tiny.hidden, tiny.intermediate)
        draw.norm(f"{layer}.output.LayerNorm", tiny.hidden)
    return draw.tensors


def write_weights(folder: Path, tensors: dict[str, np.ndarray], tiny: Tiny) -> None:
    """Write safetensors, one file or several with their index."""
    dtype = np.dtype(ml_dtypes.bfloat16) if tiny.dtype == "bfloat16" else np.dtype(tiny.dtype)
    renamed = isinstance(tiny, TinyBert) and tiny.old_names
    named = {old_name(name) if renamed else name: t.astype(dtype) for name, t in tensors.items()}
    if tiny.shards == 1:
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{i + 1:05}-of-{tiny.shards:05}.safetensors" for i in range(tiny.shards)]
    weight_map = {name: names[i % tiny.shards] for i, name in enumerate(named)}
    for file in names:
        part = {name: named[name] for name, where in weight_map.items() if where == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def old_name(name: str) -> str:
    """Name a tensor as the first BERT checkpoints did."""
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return f"bert.{name}"


def write_json(path: Path, value: object) -> None:
    """Write JSON, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def long_text(tokens: int, words: Sequence[str] = WORDS) -> str:
    """Make a text of exactly this many tokens, the two special ones included."""
    return " ".join(words[i % len(words)] for i in range(tokens - 2))
