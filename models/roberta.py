"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with fairseq's positions, from the pad token's id plus one."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    architectures=(
        "RobertaModel",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "CamembertModel",
        "CamembertForMaskedLM",
    ),
    pad_positions=True,
    rerankers=(
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "CamembertForSequenceClassification",
    ),
    splitting="gpt2",
)
