"""Qwen2, with GTE-Qwen2 (whose config.json says `is_causal: false`)."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="qwen2",
    model_types=("qwen2",),
    architectures=("Qwen2Model", "Qwen2ForCausalLM"),
    pooling="mean",
    needs_evidence=True,
    splitting="qwen2",
)
