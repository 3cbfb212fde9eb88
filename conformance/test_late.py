"""Late interaction: token vectors and MaxSim of sentence-transformers' MultiVectorEncoder."""

import string
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import LateInteractionEncoder, l2_normalize
from ffwd_ort.engine.maxsim import maxsim
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, MAX_SCORE, distance
from ffwd_ort_conformance.references import encode_tokens, hidden_states, late_encoder
from ffwd_ort_conformance.tiny import TEXTS
from ffwd_ort_conformance.tiny_late import write_colbert, write_pplx_late

QUERIES = [*TEXTS, *HARD_STRINGS[:12], " ".join(TEXTS)]  # the last is longer than query_length
DOCUMENTS = [*TEXTS, "!", "?! ...", " ".join(TEXTS), *HARD_STRINGS]


LAYOUTS = {
    "pylate": {},
    "attended": {"attend_to_expansion_tokens": True},
    "unexpanded": {"do_query_expansion": False},
    "skips-nothing": {"skiplist_words": []},
    "unknown-markers": {"query_prefix": "query: ", "document_prefix": "text: "},
    "prompts": {"prompts": {"query": "[Q] tide: ", "document": "[D] "}},
}


def check(encoder: LateInteractionEncoder, queries: list[np.ndarray], documents: list[np.ndarray]) -> None:
    """Hold an encoder to the bars: vectors, scores, and alone = batched."""
    mine = encoder.encode_queries(QUERIES), encoder.encode_documents(DOCUMENTS, truncate=True)
    for found, expected in zip([*mine[0], *mine[1]], [*queries, *documents], strict=True):
        assert found.shape == expected.shape
        if len(found):
            apart = distance(found, expected)
            assert apart.conforms, str(apart)
    for query, expected in zip(QUERIES, queries, strict=True):
        scores = np.array([_maxsim(expected, document) for document in documents])
        found_scores = encoder.score(query, DOCUMENTS, truncate=True)
        assert (np.abs(found_scores - scores) <= MAX_SCORE * np.maximum(1, np.abs(scores))).all()
    alone = [encoder.encode_documents([text], truncate=True)[0] for text in DOCUMENTS]
    assert max(np.abs(a - b).max() for a, b in zip(alone, mine[1], strict=True) if len(a)) <= MAX_INVARIANCE


def _maxsim(query: np.ndarray, document: np.ndarray) -> float:
    """Score in float64, as the formula says."""
    return float((query.astype(np.float64) @ document.astype(np.float64).T).max(axis=1).sum()) if len(document) else 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_and_scores_equal_sentence_transformers(layout: str, tmp_path: Path, cache_dir: Path) -> None:
    folder = write_colbert(tmp_path / "tiny", **LAYOUTS[layout])
    model = late_encoder(folder, 160)
    queries, documents = encode_tokens(model, QUERIES, query=True), encode_tokens(model, DOCUMENTS, query=False)
    with LateInteractionEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        check(encoder, queries, documents)
        few = encoder.encode_queries(QUERIES[:4])
    with LateInteractionEncoder(folder, provider="numpy", cache_dir=cache_dir, step_tokens=256) as slow:
        for a, b in zip(slow.encode_queries(QUERIES[:4]), few, strict=True):
            assert np.abs(a - b).max() <= MAX_BACKEND


def test_a_folder_that_sentence_transformers_saved_is_read(tmp_path: Path, cache_dir: Path) -> None:
    model = late_encoder(write_colbert(tmp_path / "tiny"), 160)
    model.save_pretrained(str(tmp_path / "saved"))
    queries, documents = encode_tokens(model, QUERIES, query=True), encode_tokens(model, DOCUMENTS, query=False)
    with LateInteractionEncoder(tmp_path / "saved", provider="cpu", cache_dir=cache_dir) as encoder:
        check(encoder, queries, documents)


def test_pplx_late_equals_transformers_under_a_full_mask(tmp_path: Path, cache_dir: Path) -> None:
    """Not the authors' code: transformers' Qwen3 with a full mask, and the layout of spec/families.md by hand."""
    from safetensors.numpy import load_file

    folder = write_pplx_late(tmp_path / "tiny")
    projection = load_file(folder / "1_Dense/model.safetensors")["linear.weight"]
    with LateInteractionEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        tokenizer = encoder.model.tokenizer
        ids = {name: tokenizer.encode([name])[0].ids[0] for name in ("[Q] ", "[D] ", "[MASK]")}
        punctuation = {int(i) for mark in string.punctuation for i in tokenizer.encode([mark])[0].ids}

        def lay_out(text: str, marker: str, length: int) -> list[int]:
            own = tokenizer.encode([text])[0].ids.tolist()
            laid = [own[0], ids[marker], *own[1:]]
            return laid + [ids["[MASK]"]] * (length - len(laid))

        cap = encoder.model.cap.tokens
        texts = [text for text in DOCUMENTS if len(lay_out(text, "[D] ", 0)) <= cap]
        laid = [lay_out(text, "[D] ", 0) for text in texts]
        states = hidden_states(folder, laid, both_ways_as="qwen3")
        expected = [
            l2_normalize(s @ projection.T)[[i not in punctuation for i in own]]
            for s, own in zip(states, laid, strict=True)
        ]
        mine = encoder.encode_documents(texts)
        for found, wanted in zip(mine, expected, strict=True):
            assert found.shape == wanted.shape and distance(found, wanted).conforms
        query = l2_normalize(
            hidden_states(folder, [lay_out("kelp", "[Q] ", 32)], both_ways_as="qwen3")[0] @ projection.T
        )
        (found,) = encoder.encode_queries(["kelp"])
        assert found.shape == (32, projection.shape[0]) and distance(found, query).conforms
        scores = encoder.score("kelp", texts)
        assert np.abs(scores - maxsim(query, expected)).max() <= MAX_SCORE * 32
