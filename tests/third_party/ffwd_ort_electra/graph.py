"""ELECTRA's graph: BERT's, with embeddings of a width of their own that are projected to the hidden one."""

from typing import Any

import onnx_ir as ir
from msgspec import structs

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort_exporters.attention import Attend, Tokens
from ffwd_ort_exporters.bert import BertTrunk, Embeddings
from ffwd_ort_exporters.blocks import Linear
from ffwd_ort_exporters.native import native_exporter


class ElectraTrunk(BertTrunk):
    """Attribute names are the checkpoint's: `embeddings`, `embeddings_project`, `encoder`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        width = checkpoint.integer("embedding_size", "hidden_size")
        narrow = structs.replace(self.sizes, hidden=width)
        self.embeddings = Embeddings(checkpoint, narrow, checkpoint.number("layer_norm_eps", 1e-12))
        self.embeddings_project = Linear(width, self.sizes.hidden) if width != self.sizes.hidden else None

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        x = self.embeddings(op, tokens)
        if self.embeddings_project is not None:
            x = self.embeddings_project(op, x)
        return self.encoder(op, x, Attend(op, tokens))


EXPORTER = native_exporter("electra", ElectraTrunk, prefix="electra.")
