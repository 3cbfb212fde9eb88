"""What an ELECTRA checkpoint means where its files are silent."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="electra",
    model_types=("electra",),
    architectures=("ElectraModel", "ElectraForPreTraining", "ElectraForMaskedLM"),
)
