"""RoBERTa's graph is BERT's: what differs is how positions are counted, and that is not in the graph."""

from ffwd_ort_exporters.bert import BertTrunk
from ffwd_ort_exporters.native import native_exporter

EXPORTER = native_exporter("roberta", BertTrunk)
