"""Which layers of a stack see a whole text and which only a window of it, and each kind's rotary positions."""

from collections.abc import Callable, Mapping
from typing import Any

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError
from ffwd_ort_exporters.rotary import scaling_of

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def read_kinds(checkpoint: Checkpoint, layers: int, otherwise: Callable[[int], str]) -> tuple[str, ...]:
    """Return the kind of every layer: `layer_types` of config.json, or by its place where there are none.

    Raises AdmissionError for a kind that cannot be computed: taking it for another would give wrong vectors.
    """
    given = checkpoint.config.get("layer_types")
    if given is None:
        return tuple(otherwise(i) for i in range(layers))
    if not isinstance(given, list) or len(given) != layers:
        raise AdmissionError(f"layer_types is {given!r}; a list of {layers} kinds is needed, one for each layer")
    wrong = next((kind for kind in given if kind not in (GLOBAL, LOCAL)), None)
    if wrong is not None:
        raise AdmissionError(f"layer_types has {wrong!r}; there are {GLOBAL} and {LOCAL}")
    return tuple(given)


def read_rotary(
    config: Mapping[str, Any], kind: str, key: str, default: float, *, scales: bool = True
) -> tuple[float, Mapping[str, Any]]:
    """Return the base and scaling of one kind of layer, from `rope_parameters` or from keys that are older.

    Those are `key` for the base and, if it `scales`, rope_scaling. Raises AdmissionError as scaling_of does.
    """
    parameters = config.get("rope_parameters") or {}
    given = (parameters.get(kind) if isinstance(parameters, dict) else parameters) or {}
    if not given and scales:
        given = config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise AdmissionError(f"rope_parameters is {given!r}; an object is understood")
    return scaling_of({"rope_parameters": {"rope_theta": config.get(key, default)} | given})
