"""RoBERTa's graph is BERT's: what differs is how positions are counted, which is not in it, and the classifier."""

from ffwd_ort_exporters.bert import BertTrunk
from ffwd_ort_exporters.heads import Classifier
from ffwd_ort_exporters.native import native_exporter


class RobertaTrunk(BertTrunk):
    """BERT's, with one token type."""

    token_types = False


def roberta_classifier(hidden: int) -> Classifier:
    """Make the head of RobertaForSequenceClassification."""
    return Classifier(hidden, ("classifier.dense", "classifier.out_proj"), "Tanh")


EXPORTER = native_exporter("roberta", RobertaTrunk, roberta_classifier, prefix="roberta.")
