"""Gemma3 as an encoder (EmbeddingGemma): local windows between global layers, mean, two Dense modules, normalised."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="gemma3",
    model_types=("gemma3_text",),
    architectures=("Gemma3TextModel",),
    pooling="mean",
    normalize=True,
    needs_evidence=True,
)
