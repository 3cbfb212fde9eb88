"""BERT: bidirectional, learned positions from 0, post-layer-norm (MiniLM, bge, E5, GTE, Arctic and kin)."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="bert",
    model_types=("bert",),
    architectures=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    pooling="mean",
    normalize=False,
    rerankers=("BertForSequenceClassification",),
)
