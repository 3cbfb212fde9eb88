"""Real weights: bge, a cross-encoder and ColBERT's trunk against their references, and retrieval with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import CrossEncoder, LateInteractionEncoder, SentenceEncoder
from ffwd_ort.errors import SourceError
from ffwd_ort.sources import default_cache_dir
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_SCORE, distance
from ffwd_ort_conformance.real_models import real_model
from ffwd_ort_conformance.references import (
    CrossReference,
    encode,
    encode_tokens,
    late_encoder,
    sentence_transformer,
    token_ids,
)
from ffwd_ort_conformance.retrieval import Corpus, by_vectors, by_words, ndcg

CAP = 512


def fetched(name: str) -> Path:
    try:
        return real_model(name, default_cache_dir())
    except SourceError as error:
        pytest.skip(f"{name} cannot be had: {error}")


@pytest.fixture(scope="session")
def bge() -> Path:
    return fetched("bge")


@pytest.mark.parametrize("name", ["bge", "ms-marco", "colbert"])
def test_ids_of_hard_strings_equal_the_references(name: str, cache_dir: Path) -> None:
    kinds = {"bge": SentenceEncoder, "ms-marco": CrossEncoder, "colbert": LateInteractionEncoder}
    folder = fetched(name)
    with kinds[name](folder, provider="cpu", cache_dir=cache_dir) as encoder:
        mine = [text.ids.tolist() for text in encoder.model.tokenizer.encode(HARD_STRINGS)]
    assert mine == token_ids(folder, HARD_STRINGS)


@pytest.mark.parametrize("name", ["minilm", "bge"])
def test_retrieval_is_as_good_as_the_references(
    name: str, minilm: Path, cache_dir: Path, corpus: Corpus, reference_passages: Callable[[Path], np.ndarray]
) -> None:
    """Both cut at 512 tokens; on perlfaq, every passage answers one question."""
    folder = minilm if name == "minilm" else fetched("bge")
    passages, queries = list(corpus.passages.values()), list(corpus.queries.values())
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        mine = [encoder.encode(texts, truncate=True) for texts in (passages, queries)]
    theirs = [reference_passages(folder), encode(sentence_transformer(folder, CAP), queries)]
    for ours, expected in zip(mine, theirs, strict=True):
        found = distance(ours, expected)
        assert found.conforms, str(found)
    scores = [ndcg(corpus, by_vectors(corpus, *vectors)) for vectors in (mine, theirs)]
    print(f"{name}: nDCG@10 {scores[0]:.5f}, reference {scores[1]:.5f}")
    assert abs(scores[0] - scores[1]) <= 1e-4
    assert scores[0] > 0.8, "a real model finds most of these passages"


def test_the_cross_encoder_improves_a_ranking_by_words(cache_dir: Path, corpus: Corpus) -> None:
    folder = fetched("ms-marco")
    rankings = by_words(corpus)
    some = list(corpus.queries)[::9]
    reference = CrossReference(folder)
    before = {query: rankings[query][:10] for query in some}
    after = {}
    with CrossEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        for query in some:
            texts = [corpus.passages[passage] for passage in before[query]]
            ranked = encoder.rank(corpus.queries[query], texts, truncate=True)
            after[query] = [before[query][i] for i, _ in ranked]
        for query in some[::10]:
            texts = [corpus.passages[passage] for passage in before[query]]
            expected = np.array([reference.score(corpus.queries[query], text, CAP)[1] for text in texts])
            found = encoder.score(corpus.queries[query], texts, truncate=True)
            assert (np.abs(found - expected) <= MAX_SCORE * np.maximum(1, np.abs(expected))).all()
    print(f"BM25 nDCG@10 {ndcg(corpus, before):.4f}, reranked {ndcg(corpus, after):.4f}")
    assert ndcg(corpus, after) > ndcg(corpus, before) + 0.01


def test_colberts_tokens_equal_sentence_transformers(cache_dir: Path, corpus: Corpus) -> None:
    folder = fetched("colbert")
    model = late_encoder(folder, CAP)
    queries, passages = list(corpus.queries.values())[:12], list(corpus.passages.values())[:12]
    with LateInteractionEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        mine = [*encoder.encode_queries(queries), *encoder.encode_documents(passages, truncate=True)]
    theirs = [*encode_tokens(model, queries, query=True), *encode_tokens(model, passages, query=False)]
    for ours, expected in zip(mine, theirs, strict=True):
        assert ours.shape == expected.shape and distance(ours, expected).conforms
