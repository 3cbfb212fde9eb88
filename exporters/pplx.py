"""pplx's graph: Qwen3's, with attention both ways."""

from functools import partial

from ffwd_ort_exporters.decoder import DecoderStyle, DecoderTrunk
from ffwd_ort_exporters.native import native_exporter

EXPORTER = native_exporter("pplx", partial(DecoderTrunk, style=DecoderStyle(causal=False, head_norms=True)))
