"""Qwen2's graph: the decoder with biases on queries, keys and values."""

from functools import partial

from ffwd_ort_exporters.decoder import DecoderStyle, DecoderTrunk
from ffwd_ort_exporters.native import native_exporter

EXPORTER = native_exporter("qwen2", partial(DecoderTrunk, style=DecoderStyle(qkv_bias=True)))
