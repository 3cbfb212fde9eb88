"""DistilBERT: BERT without token types."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="distilbert",
    model_types=("distilbert",),
    architectures=("DistilBertModel", "DistilBertForMaskedLM"),
    rerankers=("DistilBertForSequenceClassification",),
)
