"""Cross-encoders: the logits of transformers, for pairs as its own tokenizer writes them."""

from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import CrossEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_SCORE
from ffwd_ort_conformance.references import CrossReference
from ffwd_ort_conformance.tiny import TEXTS
from ffwd_ort_conformance.tiny_families import write_cross_encoder

QUERIES = (TEXTS[0], "kelp", HARD_STRINGS[4], "hello [SEP] x </s> y")
DOCUMENTS = [*TEXTS, " ".join(TEXTS * 4), *HARD_STRINGS[:20]]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_ids_and_logits_equal_transformers(family: str, tmp_path: Path, cache_dir: Path) -> None:
    folder = write_cross_encoder(tmp_path / "tiny", family)
    reference = CrossReference(folder)
    with CrossEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        cap = encoder.model.cap.tokens
        for query in QUERIES:
            pairs = encoder.model.tokenizer.encode_pairs(query, DOCUMENTS, max_length=cap)
            expected = [reference.score(query, document, cap) for document in DOCUMENTS]
            assert [pair.ids.tolist() for pair in pairs] == [ids for ids, _ in expected]
            scores = np.array([score for _, score in expected])
            found = encoder.score(query, DOCUMENTS, truncate=True)
            assert (np.abs(found - scores) <= MAX_SCORE * np.maximum(1, np.abs(scores))).all()
            alone = np.concatenate([encoder.score(query, [text], truncate=True) for text in DOCUMENTS])
            assert np.abs(alone - found).max() <= 2e-5
