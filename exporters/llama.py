"""Llama's and Mistral's graph: the plain decoder."""

from functools import partial

from ffwd_ort_exporters.decoder import DecoderStyle, DecoderTrunk
from ffwd_ort_exporters.native import native_exporter

EXPORTER = native_exporter("llama", partial(DecoderTrunk, style=DecoderStyle()))
