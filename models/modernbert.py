"""ModernBERT: rotary positions, gated MLP, local windows between global layers."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="modernbert",
    model_types=("modernbert",),
    architectures=("ModernBertModel", "ModernBertForMaskedLM"),
)
