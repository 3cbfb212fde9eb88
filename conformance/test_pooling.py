"""Pooling that is no weighted sum: the maximum over a text's tokens, alone and beside others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, distance
from ffwd_ort_conformance.references import encode, sentence_transformer
from ffwd_ort_conformance.tiny import POOLING_KEYS, TEXTS, TinyBert, long_text, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder

SAMPLE = [*TEXTS, " ".join(TEXTS), *HARD_STRINGS]
PROMPTS = (("query", "the tide: "), ("document", "a boat: "))
MAX, BOTH = ("max_tokens",), ("mean_tokens", "max_tokens")

VARIANTS: dict[str, dict[str, Any]] = {
    "max": {"pooling": MAX},
    "max-unscaled": {"pooling": MAX, "normalize": False},
    "mean-and-max": {"pooling": BOTH},
    "mean-and-max-in-the-files-order": {"pooling": BOTH, "new_pooling_keys": True},
    "all-six": {"pooling": POOLING_KEYS},
    "max-prompt": {"pooling": MAX, "prompts": PROMPTS},
    "max-prompt-left-out": {"pooling": MAX, "prompts": PROMPTS, "include_prompt": False},
    "mean-and-max-prompt-left-out": {"pooling": BOTH, "prompts": PROMPTS, "include_prompt": False},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_equal_sentence_transformers(name: str, tmp_path: Path, cache_dir: Path) -> None:
    tiny = TinyBert(**VARIANTS[name])
    folder = write_bert(tmp_path / "tiny", tiny)
    asked: dict[str, Any] = {"prompt_name": "query"} if tiny.prompts else {}
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        cap = encoder.model.cap.tokens
        # A text that is cut to nothing but its prompt is no case of this file.
        texts = [text for text in SAMPLE if len(encoder.model.tokenizer.encode([text])[0].ids) <= cap - 8]
        batched = encoder.encode(texts, **asked)
        assert batched.shape == (len(texts), tiny.hidden * len(tiny.pooling))
        found = distance(batched, encode(sentence_transformer(folder, cap), texts, **asked))
        assert found.conforms, str(found)
        alone = np.stack([encoder.encode(text, **asked) for text in texts])
        assert np.abs(alone - batched).max() <= MAX_INVARIANCE
    with SentenceEncoder(folder, provider="numpy", cache_dir=cache_dir, step_tokens=256) as slow:
        assert np.abs(slow.encode(texts[:8], **asked) - batched[:8]).max() <= MAX_BACKEND


def test_a_family_seen_from_the_left_and_a_long_text_have_their_maximum_too(tmp_path: Path, cache_dir: Path) -> None:
    """The text of 1500 tokens goes through the long form of attention."""
    tiny = TinyDecoder(head_norms=True, head_width=24, positions=2048, pooling=("lasttoken", "max_tokens"))
    folder = write_decoder(tmp_path / "tiny", tiny)
    texts = [*TEXTS, long_text(1500)]
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        ends = [text + "<|endoftext|>" for text in texts]  # transformers 5 leaves the terminal out
        found = distance(encoder.encode(texts), encode(sentence_transformer(folder, 2048), ends))
    assert found.conforms, str(found)
