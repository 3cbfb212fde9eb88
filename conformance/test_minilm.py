"""all-MiniLM-L6-v2: the vectors sentence-transformers gives, alone and in any company."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, distance
from ffwd_ort_conformance.references import encode, sentence_transformer, token_ids

CAP = 512


@pytest.fixture(scope="module")
def encoder(minilm: Path, cache_dir: Path) -> Iterator[SentenceEncoder]:
    with SentenceEncoder(minilm, provider="cpu", cache_dir=cache_dir) as encoder:
        yield encoder


def test_token_ids_equal_the_references_on_every_hard_string(encoder: SentenceEncoder, minilm: Path) -> None:
    mine = [text.ids.tolist() for text in encoder.model.tokenizer.encode(HARD_STRINGS)]
    assert mine == token_ids(minilm, HARD_STRINGS)


def test_hard_strings_have_the_references_vectors(encoder: SentenceEncoder, minilm: Path) -> None:
    reference = encode(sentence_transformer(minilm, CAP), HARD_STRINGS)
    found = distance(encoder.encode(HARD_STRINGS, truncate=True), reference)
    assert found.conforms, str(found)


def test_perlfaq_passages_have_the_references_vectors_in_any_company(
    encoder: SentenceEncoder, minilm: Path, perlfaq: list[str], reference_passages: Callable[[Path], np.ndarray]
) -> None:
    reference = reference_passages(minilm)
    batched = encoder.encode(perlfaq, truncate=True)
    found = distance(batched, reference)
    print(f"perlfaq, {len(perlfaq)} passages: {found}")
    assert found.conforms, str(found)

    some = list(range(0, len(perlfaq), 5))
    alone = np.stack([encoder.encode(perlfaq[i], truncate=True) for i in some])
    assert np.abs(alone - batched[some]).max() <= MAX_INVARIANCE
    order = np.random.default_rng(3).permutation(len(perlfaq))
    shuffled = encoder.encode([perlfaq[i] for i in order], truncate=True)
    assert np.abs(shuffled - batched[order]).max() <= MAX_INVARIANCE


def test_another_step_size_changes_no_vector(
    encoder: SentenceEncoder, minilm: Path, cache_dir: Path, perlfaq: list[str]
) -> None:
    texts = [*perlfaq[:40], *HARD_STRINGS]
    expected = encoder.encode(texts, truncate=True)
    with SentenceEncoder(minilm, provider="cpu", cache_dir=cache_dir, step_tokens=4096, threads=1) as other:
        assert np.abs(other.encode(texts, truncate=True) - expected).max() <= MAX_INVARIANCE


def test_the_numpy_evaluator_gives_the_same_vectors(encoder: SentenceEncoder, minilm: Path, cache_dir: Path) -> None:
    texts = ["What is Perl?", "Low water falls at 06:40.", "?", HARD_STRINGS[7]]
    with SentenceEncoder(minilm, provider="numpy", cache_dir=cache_dir) as slow:
        assert slow.provider == "numpy"
        assert np.abs(slow.encode(texts) - encoder.encode(texts)).max() <= MAX_BACKEND
