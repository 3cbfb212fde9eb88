"""Read what a checkpoint directory says about its model. Reads no weights.

The order in which files are asked is the table of spec/families.md section 1: the first that speaks wins.
Both generations of sentence-transformers files are understood: boolean `pooling_mode_*` keys and the newer
`pooling_mode`, older and newer module paths, `max_seq_length` and `model_max_length`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ffwd_ort.errors import AdmissionError, CheckpointError

# Our name of each pooling, by the names sentence-transformers has used for it. The order is the one in
# which its older files concatenate several.
POOLING_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "cls_token": "cls",
        "cls": "cls",
        "max_tokens": "max",
        "max": "max",
        "mean_tokens": "mean",
        "mean": "mean",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean_tokens": "weighted_mean",
        "weightedmean": "weighted_mean",
        "lasttoken": "last",
    }
)
KNOWN_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
NO_LIMIT = 1_000_000  # tokenizer_config.json writes 1e30 for "no limit"


@dataclass(frozen=True)
class PoolingConfig:
    """Which poolings are concatenated, in order, and whether prompt tokens take part."""

    modes: tuple[str, ...]
    include_prompt: bool = True


@dataclass(frozen=True)
class DenseModule:
    """One Dense module after pooling: its measures, the class name of its activation, its weights."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str
    weights: Path


@dataclass(frozen=True)
class Checkpoint:
    """What one directory says. `normalize` and `pooling` are None where the files are silent."""

    path: Path
    config: Mapping[str, Any]
    model_type: str
    architectures: tuple[str, ...]
    is_causal: bool | None
    pooling: PoolingConfig | None
    normalize: bool | None
    dense_modules: tuple[DenseModule, ...]
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    trained_length: int | None
    lowercase: bool
    append_eos: bool | None
    eos_token: str | None
    tokenizer_config: Mapping[str, Any]
    matryoshka_dims: tuple[int, ...] | None
    tokenizer_file: Path
    weight_files: tuple[Path, ...]
    read_files: tuple[Path, ...]

    def integer(self, *keys: str) -> int:
        """Return a positive integer of config.json, under the first of these keys that it has.

        Raises CheckpointError if it is missing or no positive integer.
        """
        key = next((key for key in keys if self.config.get(key) is not None), keys[0])
        value = self.config.get(key)
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


class _Files:
    """Reads JSON files of the directory and remembers which were read, for the cache key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: list[Path] = []

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def json(self, name: str) -> Any:
        path = self.root / name
        self.read.append(path)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}") from None

    def object(self, name: str) -> dict[str, Any]:
        """Read an object; a file that is not there says nothing."""
        value = self.json(name) if self.has(name) else {}
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.root / name} holds {type(value).__name__}; an object is needed")
        return value


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint directory.

    Raises CheckpointError for missing or damaged files, naming the file, and AdmissionError for modules
    that nothing here can compute.
    """
    # A hub snapshot is links into blobs/: resolve the directory, never the files in it.
    path = path.resolve()
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory")
    files = _Files(path)
    modules = _modules(files)
    trunk = next((m["path"] for m in modules or () if m["kind"] == "Transformer"), "")
    trunk_files = _Files(path / trunk)
    if not trunk_files.has("config.json"):
        raise CheckpointError(f"{trunk_files.root} has no config.json, so it is not a checkpoint directory")
    config = trunk_files.object("config.json")
    tokenizer_config = trunk_files.object("tokenizer_config.json")
    sentence_config = trunk_files.object("sentence_bert_config.json")
    prompts, default_prompt = _prompts(files)
    checkpoint = Checkpoint(
        path=path,
        config=MappingProxyType(config),
        model_type=str(config.get("model_type") or ""),
        architectures=_architectures(config, trunk_files.root / "config.json"),
        is_causal=config["is_causal"] if isinstance(config.get("is_causal"), bool) else None,
        pooling=_pooling(files, modules),
        normalize=_normalize(files, modules),
        dense_modules=_dense(files, modules),
        prompts=MappingProxyType(prompts),
        default_prompt_name=default_prompt,
        trained_length=_trained_length(sentence_config, tokenizer_config),
        lowercase=bool(sentence_config.get("do_lower_case", False)),
        append_eos=_flag(tokenizer_config, "add_eos_token", trunk_files.root / "tokenizer_config.json"),
        eos_token=_token(tokenizer_config.get("eos_token")),
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


def _token(given: Any) -> str | None:
    """Read a token as tokenizer_config.json writes it: its text, or an object around it."""
    text = given.get("content") if isinstance(given, dict) else given
    return text if isinstance(text, str) else None


def _modules(files: _Files) -> list[dict[str, str]] | None:
    """Return [{kind, path}] of modules.json in its order, or None where there is none."""
    if not files.has("modules.json"):
        return None
    listed = files.json("modules.json")
    where = files.root / "modules.json"
    if not isinstance(listed, list) or not all(isinstance(m, dict) for m in listed):
        raise CheckpointError(f"{where} must be a list of objects")
    modules = []
    for module in listed:
        kind = str(module.get("type", "")).rpartition(".")[2]
        folder = str(module.get("path", ""))
        if kind not in KNOWN_MODULES:
            raise AdmissionError(
                f"{where} names the module {module.get('type')!r}; modules understood here: {', '.join(KNOWN_MODULES)}"
            )
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise CheckpointError(f"{where}: the module path {folder!r} leaves the checkpoint's folder")
        modules.append({"kind": kind, "path": folder})
    return modules


def _architectures(config: dict[str, Any], where: Path) -> tuple[str, ...]:
    given = config.get("architectures") or ()
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise CheckpointError(f"{where}: architectures is {given!r}; a list of names is needed")
    return tuple(given)


def _normalize(files: _Files, modules: list[dict[str, str]] | None) -> bool | None:
    """Tell whether a module scales vectors to unit length; None where there is no modules.json."""
    if modules is None:
        return None
    folders = [m["path"] for m in modules if m["kind"] == "Normalize"]
    for folder in folders:
        name = str(Path(folder) / "config.json")
        given = files.object(name).get("module_input_name", "sentence_embedding")
        if given != "sentence_embedding":
            raise AdmissionError(f"{files.root / name} normalises {given!r}; only 'sentence_embedding' is understood")
    return bool(folders)


def _pooling(files: _Files, modules: list[dict[str, str]] | None) -> PoolingConfig | None:
    folders = [m["path"] for m in modules or () if m["kind"] == "Pooling"]
    if len(folders) > 1:
        raise AdmissionError(f"{files.root / 'modules.json'} has {len(folders)} Pooling modules; one is understood")
    name = str(Path(folders[0] if folders else "1_Pooling") / "config.json")
    if not files.has(name):
        if folders:
            raise CheckpointError(f"{files.root / name} is missing, though modules.json names it")
        return None
    config = files.object(name)
    if "pooling_mode" in config:
        given = config["pooling_mode"]
        modes = given if isinstance(given, list) else [given]
    else:
        active = {k.removeprefix("pooling_mode_") for k, v in config.items() if k.startswith("pooling_mode_") and v}
        modes = [m for m in POOLING_NAMES if m in active] + sorted(active - set(POOLING_NAMES))
    unknown = [m for m in modes if not isinstance(m, str) or m not in POOLING_NAMES]
    if unknown or not modes:
        raise AdmissionError(
            f"{files.root / name}: pooling {unknown or modes} is not understood; "
            f"there are {', '.join(sorted(set(POOLING_NAMES.values())))}"
        )
    include = config.get("include_prompt", True)
    if not isinstance(include, bool):
        raise CheckpointError(f"{files.root / name}: include_prompt is {include!r}; true or false is needed")
    return PoolingConfig(tuple(POOLING_NAMES[m] for m in modes), include)


def _dense(files: _Files, modules: list[dict[str, str]] | None) -> tuple[DenseModule, ...]:
    """Read the Dense modules in their order; they must stand between Pooling and Normalize."""
    kinds = [m["kind"] for m in modules or ()]
    where = files.root / "modules.json"
    if kinds and kinds != sorted(kinds, key=KNOWN_MODULES.index):
        raise AdmissionError(f"{where} has the order {', '.join(kinds)}; understood is {', '.join(KNOWN_MODULES)}")
    found = []
    for folder in [m["path"] for m in modules or () if m["kind"] == "Dense"]:
        config = files.object(f"{folder}/config.json")
        given = config.get("module_input_name", "sentence_embedding")
        if given != "sentence_embedding" or config.get("use_residual"):
            raise AdmissionError(
                f"{files.root / folder}: a Dense module of {given!r}, or with a residual, is not understood"
            )
        inputs, outputs = config.get("in_features"), config.get("out_features")
        if type(inputs) is not int or type(outputs) is not int or min(inputs, outputs) < 1:
            raise CheckpointError(f"{files.root / folder}/config.json: in_features and out_features must be positive")
        weights = files.root / folder / "model.safetensors"
        if not weights.is_file():
            raise CheckpointError(f"{weights} is missing, though modules.json names its module")
        activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
        found.append(DenseModule(folder, inputs, outputs, bool(config.get("bias", True)), activation, weights))
    return tuple(found)


def _prompts(files: _Files) -> tuple[dict[str, str], str | None]:
    config = files.object("config_sentence_transformers.json")
    where = files.root / "config_sentence_transformers.json"
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(v, str) for v in prompts.values()):
        raise CheckpointError(f"{where}: prompts must map names to texts")
    default = config.get("default_prompt_name")
    if default is not None and default not in list(prompts):  # a list, since a damaged name may be unhashable
        raise CheckpointError(f"{where}: default_prompt_name is {default!r}, which is not among its prompts")
    return prompts, default


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


def _tokenizer(files: _Files) -> Path:
    """Return tokenizer.json, else the vocabulary it can be made from."""
    for name in ("tokenizer.json", "vocab.txt"):
        if files.has(name):
            return files.root / name
    raise CheckpointError(
        f"{files.root} has neither tokenizer.json nor vocab.txt; checkpoints with only merges.txt or a "
        "sentencepiece model are not available yet"
    )


def _weights(files: _Files) -> tuple[Path, ...]:
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
