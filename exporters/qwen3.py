"""Qwen3's graph: the decoder with a norm on each head's query and key."""

from functools import partial

from ffwd_ort_exporters.decoder import DecoderStyle, DecoderTrunk
from ffwd_ort_exporters.native import native_exporter

EXPORTER = native_exporter("qwen3", partial(DecoderTrunk, style=DecoderStyle(head_norms=True)))
