"""Long texts: the long form of attention gives what the packed form, transformers and NumPy give."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.levels import MAX_BACKEND, distance
from ffwd_ort_conformance.references import encode, sentence_transformer
from ffwd_ort_conformance.tiny import TinyBert, long_text, write_bert
from ffwd_ort_conformance.tiny_families import (
    TinyDecoder,
    TinyEncoder,
    TinyGemma3,
    write_decoder,
    write_encoder,
    write_gemma3,
)

POSITIONS = 4096
TEXTS = ["kelp", long_text(900), long_text(1025), long_text(1400), long_text(3000)]
# Every kind of attention: both ways, causal, a causal window, a window both ways beside global layers.
WRITE: dict[str, Callable[[Path], Path]] = {
    "bert": lambda folder: write_bert(folder, TinyBert(positions=POSITIONS)),
    "modernbert": lambda folder: write_encoder(
        folder, TinyEncoder(model_type="modernbert", layers=7, heads=4, positions=POSITIONS)
    ),
    "nomic": lambda folder: write_encoder(folder, TinyEncoder(model_type="nomic_bert", heads=4, positions=POSITIONS)),
    "qwen3": lambda folder: write_decoder(
        folder, TinyDecoder(head_norms=True, append_eos=False, head_width=24, positions=POSITIONS)
    ),
    "mistral": lambda folder: write_decoder(
        folder,
        TinyDecoder(model_type="mistral", head_width=24, positions=POSITIONS, config={"sliding_window": 70}),
    ),
    "gemma3": lambda folder: write_gemma3(folder, TinyGemma3(positions=POSITIONS)),
    "gemma3-causal": lambda folder: write_gemma3(
        folder, TinyGemma3(positions=POSITIONS, both_ways=False, head_width=24)
    ),
}


@pytest.mark.parametrize("family", WRITE)
def test_long_texts_equal_the_reference(family: str, tmp_path: Path, cache_dir: Path) -> None:
    folder = WRITE[family](tmp_path / "tiny")
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        assert "packed" in encoder.model.manifest.inputs
        mine = encoder.encode(TEXTS)
        cap = encoder.model.cap.tokens
    found = distance(mine, encode(sentence_transformer(folder, cap), TEXTS))
    assert found.conforms, str(found)
    with SentenceEncoder(folder, provider="numpy", cache_dir=cache_dir) as slow:
        assert np.abs(slow.encode(TEXTS[2:4]) - mine[2:4]).max() <= MAX_BACKEND


# A causal model whose heads no flash kernel takes keeps to the packed form, and says so in its manifest.
def test_heads_that_no_kernel_takes_are_packed(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_decoder(
        tmp_path / "tiny", TinyDecoder(head_norms=True, append_eos=False, head_width=20, positions=POSITIONS)
    )
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        assert "packed" not in encoder.model.manifest.inputs
        mine = encoder.encode(TEXTS[3:4])
    assert distance(mine, encode(sentence_transformer(folder, POSITIONS), TEXTS[3:4])).conforms
