"""MPNet (all-mpnet-base-v2): learned positions from 2, and a relative bias shared by all layers."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="mpnet",
    model_types=("mpnet",),
    architectures=("MPNetModel", "MPNetForMaskedLM"),
    pad_positions=True,
)
