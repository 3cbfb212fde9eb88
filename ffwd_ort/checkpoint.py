"""Read what a checkpoint directory says about its model. Reads no weights.

The order in which files are asked is the table of spec/families.md section 1: the first that speaks wins.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ffwd_ort.errors import CheckpointError
from ffwd_ort.files import Files
from ffwd_ort.late import LateRecipe, read_late
from ffwd_ort.modules import (
    SENTENCE,
    TOKENS,
    DenseModule,
    PoolingConfig,
    folders,
    read_dense,
    read_modules,
    read_normalize,
    read_pooling,
    read_prompts,
    scores_tokens,
)

# In the order in which they are looked for.
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "spiece.model",
)
NO_LIMIT = 1_000_000  # tokenizer_config.json writes 1e30 for "no limit"


@dataclass(frozen=True)
class Checkpoint:
    """What one directory says. `normalize`, `pooling` and `late` are None where the files are silent.

    `scores_tokens`: its modules make a vector of every token, for late interaction.
    """

    path: Path
    config: Mapping[str, Any]
    model_type: str
    architectures: tuple[str, ...]
    is_causal: bool | None
    pooling: PoolingConfig | None
    normalize: bool | None
    dense_modules: tuple[DenseModule, ...]
    scores_tokens: bool
    late: LateRecipe | None
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    trained_length: int | None
    lowercase: bool
    append_eos: bool | None
    tokenizer_config: Mapping[str, Any]
    matryoshka_dims: tuple[int, ...] | None
    tokenizer_file: Path
    weight_files: tuple[Path, ...]
    read_files: tuple[Path, ...]

    def integer(self, *keys: str, default: int | None = None) -> int:
        """Return a positive integer of config.json, under the first of these keys that it has.

        Raises CheckpointError if it is missing, and there is no default, or no positive integer.
        """
        key = next((key for key in keys if self.config.get(key) is not None), keys[0])
        value = default if self.config.get(key) is None else self.config[key]
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{self.path / 'config.json'}: {key} is {value!r}; a positive integer is needed")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number of config.json that is not negative; raise CheckpointError if it is anything else."""
        value = self.config.get(key, default)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise CheckpointError(f"{self.path / 'config.json'}: {key} is {value!r}; a number is needed")
        return float(value)

    @property
    def pad_id(self) -> int:
        """Return the padding token's id; 0 where none is named: padding is never looked at, any row will do."""
        pad = self.config.get("pad_token_id")
        if pad is None:
            return 0
        if type(pad) is not int or not 0 <= pad < self.integer("vocab_size"):
            raise CheckpointError(f"{self.path / 'config.json'}: pad_token_id is {pad!r}; an id is needed")
        return pad

    def token(self, name: str) -> str | None:
        """Return a token of tokenizer_config.json, which writes its text, or an object around it."""
        given = self.tokenizer_config.get(name)
        text = given.get("content") if isinstance(given, dict) else given
        return text if isinstance(text, str) else None

    @property
    def is_cross_encoder(self) -> bool:
        """Whether its architecture scores a pair of texts."""
        return any(name.endswith("ForSequenceClassification") for name in self.architectures)

    @property
    def labels(self) -> int:
        """Return how many labels a classifier has; transformers takes two where config.json is silent."""
        named = self.config.get("id2label")
        count = len(named) if isinstance(named, dict) else self.config.get("num_labels")
        return count if type(count) is int else 2


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint directory.

    Raises CheckpointError for missing or damaged files, naming the file, and AdmissionError for modules
    that nothing here can compute.
    """
    # A hub snapshot is links into blobs/: resolve the directory, never the files in it.
    path = path.resolve()
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory")
    files = Files(path)
    modules = read_modules(files)
    trunk = next(iter(folders(modules, "Transformer")), "")
    trunk_files = Files(path / trunk)
    if not trunk_files.has("config.json"):
        raise CheckpointError(f"{trunk_files.root} has no config.json, so it is not a checkpoint directory")
    config = trunk_files.object("config.json")
    tokenizer_config = trunk_files.object("tokenizer_config.json")
    sentence_config = trunk_files.object("sentence_bert_config.json")
    prompts, default_prompt = read_prompts(files)
    late = read_late(files, modules, sentence_config)
    tokens = late is not None or scores_tokens(files, modules)
    works_on = TOKENS if tokens else SENTENCE
    checkpoint = Checkpoint(
        path=path,
        config=MappingProxyType(config),
        model_type=str(config.get("model_type") or ""),
        architectures=_architectures(config, trunk_files.root / "config.json"),
        is_causal=config["is_causal"] if isinstance(config.get("is_causal"), bool) else None,
        pooling=read_pooling(files, modules, works_on),
        normalize=read_normalize(files, modules, works_on),
        dense_modules=read_dense(files, modules, works_on),
        scores_tokens=tokens,
        late=late,
        prompts=MappingProxyType(prompts),
        default_prompt_name=default_prompt,
        trained_length=(late and late.document_length) or _trained_length(sentence_config, tokenizer_config),
        lowercase=bool(sentence_config.get("do_lower_case", False)),
        append_eos=_flag(tokenizer_config, "add_eos_token", trunk_files.root / "tokenizer_config.json"),
        tokenizer_config=MappingProxyType(tokenizer_config),
        matryoshka_dims=_matryoshka(config, trunk_files.root / "config.json"),
        tokenizer_file=_tokenizer(trunk_files),
        weight_files=_weights(trunk_files),
        read_files=(),
    )
    return Checkpoint(**{**vars(checkpoint), "read_files": (*files.read, *trunk_files.read)})


def _flag(config: dict[str, Any], key: str, where: Path) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {value!r}; true or false is needed")
    return value


def _architectures(config: dict[str, Any], where: Path) -> tuple[str, ...]:
    given = config.get("architectures") or ()
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise CheckpointError(f"{where}: architectures is {given!r}; a list of names is needed")
    return tuple(given)


def _trained_length(sentence_config: dict[str, Any], tokenizer_config: dict[str, Any]) -> int | None:
    for value in (sentence_config.get("max_seq_length"), tokenizer_config.get("model_max_length")):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < NO_LIMIT:
            return int(value)
    return None


def _matryoshka(config: dict[str, Any], where: Path) -> tuple[int, ...] | None:
    """Return the declared dims, () where only `is_matryoshka` says so, None where nothing does."""
    dims = config.get("matryoshka_dimensions") or []
    if not isinstance(dims, list) or not all(type(d) is int and d > 0 for d in dims):
        raise CheckpointError(f"{where}: matryoshka_dimensions is {dims!r}; a list of positive integers is needed")
    if dims:
        return tuple(sorted(dims))
    return () if config.get("is_matryoshka") is True else None


def _tokenizer(files: Files) -> Path:
    """Return tokenizer.json, else the first vocabulary that there is."""
    name = next((name for name in TOKENIZERS if files.has(name)), None)
    if name is None:
        raise CheckpointError(f"{files.root} has none of {', '.join(TOKENIZERS)}, so it has no tokenizer")
    if name == "vocab.json":
        if not files.has("merges.txt"):
            raise CheckpointError(f"{files.root} has vocab.json without merges.txt")
        files.read.append(files.root / "merges.txt")
    return files.root / name


def _weights(files: Files) -> tuple[Path, ...]:
    """Return the safetensors files, one or many; pickled weights are never read."""
    single = files.root / "model.safetensors"
    if single.is_file():
        return (single,)
    if not files.has("model.safetensors.index.json"):
        pickled = sorted(p.name for p in files.root.glob("*.bin"))
        hint = f"; {pickled[0]} is a pickle, which is never loaded: convert it to safetensors" if pickled else ""
        raise CheckpointError(f"{files.root} has no model.safetensors and no model.safetensors.index.json{hint}")
    where = files.root / "model.safetensors.index.json"
    index = files.json("model.safetensors.index.json")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where} has no weight_map")
    names = sorted({str(v) for v in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{where}: the shard {name!r} lies outside the checkpoint's folder")
        if not (files.root / name).is_file():
            raise CheckpointError(f"{files.root / name} is missing, though model.safetensors.index.json names it")
    return tuple(files.root / name for name in names)
