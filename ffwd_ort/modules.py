"""What sentence-transformers' modules.json says of a checkpoint: pooling, Dense modules, normalisation.

Both generations of its files are understood: boolean `pooling_mode_*` keys and the newer `pooling_mode`,
older and newer module paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ffwd_ort.errors import AdmissionError, CheckpointError
from ffwd_ort.files import Files

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
# In the order in which they must stand; a late-interaction model has no Pooling, and a mask instead.
KNOWN_MODULES = ("Transformer", "Pooling", "Dense", "MultiVectorMask", "Normalize")
SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"  # what a module works on


@dataclass(frozen=True)
class PoolingConfig:
    """Which poolings are concatenated, in order, and whether prompt tokens take part."""

    modes: tuple[str, ...]
    include_prompt: bool = True


@dataclass(frozen=True)
class DenseModule:
    """One Dense module, after pooling or on every token: measures, the class name of its activation, weights."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str
    weights: Path


@dataclass(frozen=True)
class Module:
    """One entry of modules.json: the last part of its class name, and its folder."""

    kind: str
    folder: str


def read_modules(files: Files) -> tuple[Module, ...] | None:
    """Read modules.json in its order; None where there is none."""
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
            known = ", ".join(KNOWN_MODULES)
            raise AdmissionError(f"{where} names the module {module.get('type')!r}; understood are {known}")
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise CheckpointError(f"{where}: the module path {folder!r} leaves the checkpoint's folder")
        modules.append(Module(kind, folder))
    return tuple(modules)


def folders(modules: Sequence[Module] | None, kind: str) -> list[str]:
    """List the folders of the modules of one kind."""
    return [module.folder for module in modules or () if module.kind == kind]


def scores_tokens(files: Files, modules: Sequence[Module] | None) -> bool:
    """Tell whether the modules make a vector of every token, for late interaction."""
    if folders(modules, "MultiVectorMask"):
        return True
    dense = folders(modules, "Dense")
    on_tokens = any(files.object(f"{folder}/config.json").get("module_input_name") == TOKENS for folder in dense)
    return on_tokens or (bool(dense) and not folders(modules, "Pooling"))


def read_normalize(files: Files, modules: Sequence[Module] | None, wanted: str) -> bool | None:
    """Tell whether a module scales vectors to unit length; None where there is no modules.json.

    `wanted` is what it must work on. Raises AdmissionError for one that works on something else.
    """
    if modules is None:
        return None
    found = folders(modules, "Normalize")
    for folder in found:
        name = str(Path(folder) / "config.json")
        given = files.object(name).get("module_input_name", SENTENCE)
        if given != wanted:
            raise AdmissionError(f"{files.root / name} normalises {given!r}; only {wanted!r} is understood here")
    return bool(found)


def read_pooling(files: Files, modules: Sequence[Module] | None, wanted: str) -> PoolingConfig | None:
    """Read the Pooling module, or the folder it usually has; None where there is neither.

    Where the other modules work on tokens (`wanted`), a folder that modules.json does not name is a leftover.
    """
    found = folders(modules, "Pooling")
    if len(found) > 1:
        raise AdmissionError(f"{files.root / 'modules.json'} has {len(found)} Pooling modules; one is understood")
    name = str(Path(found[0] if found else "1_Pooling") / "config.json")
    if not files.has(name) or (wanted == TOKENS and not found):
        if found:
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


def read_dense(files: Files, modules: Sequence[Module] | None, wanted: str) -> tuple[DenseModule, ...]:
    """Read the Dense modules in their order; `wanted` is what they must work on."""
    kinds = [module.kind for module in modules or ()]
    where = files.root / "modules.json"
    if kinds and kinds != sorted(kinds, key=KNOWN_MODULES.index):
        raise AdmissionError(f"{where} has the order {', '.join(kinds)}; understood is {', '.join(KNOWN_MODULES)}")
    found = []
    for folder in folders(modules, "Dense"):
        config = files.object(f"{folder}/config.json")
        given = config.get("module_input_name", wanted)
        if given != wanted or config.get("use_residual"):
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


def read_prompts(files: Files) -> tuple[dict[str, str], str | None]:
    """Read the prompts by name, and the name of the one that is used when none is asked for."""
    config = files.object("config_sentence_transformers.json")
    where = files.root / "config_sentence_transformers.json"
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(v, str) for v in prompts.values()):
        raise CheckpointError(f"{where}: prompts must map names to texts")
    default = config.get("default_prompt_name")
    if default is not None and default not in list(prompts):  # a list, since a damaged name may be unhashable
        raise CheckpointError(f"{where}: default_prompt_name is {default!r}, which is not among its prompts")
    return prompts, default
