"""Read safetensors weights by clean names: one file or many shards, F32, F16 or BF16, handed out as float32."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ffwd_ort.errors import CheckpointError

# What wraps a trunk in the files people publish; taken off before names are looked up, and then the family's own.
PREFIXES = ("0.auto_model.", "model.")
RENAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
DTYPES = ("F32", "F16", "BF16")


class Weights:
    """The tensors of a checkpoint under their clean names."""

    def __init__(self, tensors: dict[str, tuple[Any, str, Path]]) -> None:
        self._tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it; raise CheckpointError if there is none or its type is foreign."""
        file, raw, path = self._find(name)
        view = file.get_slice(raw)
        if view.get_dtype() not in DTYPES:
            raise CheckpointError(f"{path}: {raw} has type {view.get_dtype()}; read here are {', '.join(DTYPES)}")
        return tuple(view.get_shape())

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as float32; raise CheckpointError if it holds NaN or infinity."""
        file, raw, path = self._find(name)
        tensor = np.asarray(file.get_tensor(raw)).astype(np.float32, copy=False)
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {raw} holds NaN or infinity")
        return tensor

    def _find(self, name: str) -> tuple[Any, str, Path]:
        try:
            return self._tensors[name]
        except KeyError:
            some = ", ".join(sorted(self._tensors)[:3])
            raise CheckpointError(f"the tensor {name} is missing; the files have {some} and others") from None


@contextmanager
def open_weights(
    paths: Sequence[Path], modules: Mapping[str, Path] = MappingProxyType({}), own_prefix: str = ""
) -> Iterator[Weights]:
    """Open the trunk's shards, and `modules`' files by the prefix of their names: mapped, not read.

    Raises CheckpointError naming the file that is damaged.
    """
    tensors: dict[str, tuple[Any, str, Path]] = {}
    with ExitStack() as stack:
        for prefix, path in [*(("", path) for path in paths), *modules.items()]:
            try:
                file = stack.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is not a sound safetensors file: {error}") from None
            for raw in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                name = prefix + clean_name(raw, own_prefix)
                if name in tensors:
                    raise CheckpointError(f"{path}: {raw} is there twice, also in {tensors[name][2].name}")
                tensors[name] = (file, raw, path)
        yield Weights(tensors)


def clean_name(raw: str, own_prefix: str = "") -> str:
    """Take wrappers' prefixes off a tensor's name and give old layer-norm parameters their present names."""
    for prefix in (*PREFIXES, own_prefix):
        raw = raw.removeprefix(prefix)
    for old, new in RENAMES:
        if raw.endswith(old):
            raw = raw.removesuffix(old) + new
    return raw
