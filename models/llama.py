"""Llama and Mistral (E5-Mistral, SFR and kin): plain causal decoders, last token."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="llama",
    model_types=("llama", "mistral"),
    architectures=("LlamaModel", "LlamaForCausalLM", "MistralModel", "MistralForCausalLM"),
    pooling="last",
    needs_evidence=True,
)
