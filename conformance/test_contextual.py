"""Chunks in context: transformers' states of the whole document, joined by hand, and the mean over each chunk."""

from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import ContextualEncoder, SentenceEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, distance
from ffwd_ort_conformance.references import hidden_states, token_ids
from ffwd_ort_conformance.tiny import TEXTS, long_text
from ffwd_ort_conformance.tiny_families import QWEN_SPECIALS, TinyDecoder, write_decoder

SEPARATOR = "<|endoftext|>"
DOCUMENTS = [
    [*TEXTS],
    ["kelp"],
    ["kelp", "kelp"],
    ["?", "?", "?", "?"],
    [TEXTS[1]],
    ["a", SEPARATOR, "b" + SEPARATOR],  # what a text spells out is the text's own
    *[HARD_STRINGS[i : i + 3] for i in range(0, len(HARD_STRINGS), 3)],
    [long_text(500)] * 3,  # over 1024 tokens: the long form of attention
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyDecoder(
        model_type="bidirectional_pplx_qwen3",
        head_norms=True,
        positions=2048,
        pooling=("mean_tokens",),
        normalize=False,
    )
    return write_decoder(tmp_path_factory.mktemp("pplx") / "tiny", tiny)


Ids = dict[str, list[int]]


@pytest.fixture(scope="module")
def ids(folder: Path) -> Ids:
    """Every chunk's ids by the checkpoint's own tokenizer, less what no document can hold: no token, or too many."""
    chunks = sorted({chunk for document in DOCUMENTS for chunk in document})
    found = dict(zip(chunks, token_ids(folder, chunks), strict=True))
    return {chunk: own for chunk, own in found.items() if 0 < len(own) <= 600}


@pytest.fixture(scope="module")
def documents(ids: Ids) -> list[list[str]]:
    kept = [[chunk for chunk in document if chunk in ids] for document in DOCUMENTS]
    return [document for document in kept if document]


def by_hand(folder: Path, documents: list[list[str]], ids: Ids) -> list[np.ndarray]:
    """Join each document's chunks with the separator's id, run it once, average each chunk's states."""
    separator = QWEN_SPECIALS.index(SEPARATOR)
    assert ids[SEPARATOR] == [separator]
    joined, places = [], []
    for document in documents:
        whole: list[int] = []
        spans = []
        for chunk in document:
            whole += [separator] * bool(whole)
            spans.append((len(whole), len(whole) + len(ids[chunk])))
            whole += ids[chunk]
        joined.append(whole)
        places.append(spans)
    states = hidden_states(folder, joined, both_ways_as="qwen3")
    return [
        np.stack([s[start:end].mean(axis=0) for start, end in spans]) for s, spans in zip(states, places, strict=True)
    ]


def test_chunks_equal_transformers_under_a_full_mask(
    folder: Path, documents: list[list[str]], ids: Ids, cache_dir: Path
) -> None:
    """Not the authors' code: transformers' Qwen3 with a full mask."""
    expected = by_hand(folder, documents, ids)
    with ContextualEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        batched = encoder.encode(documents, normalize=False)
        alone = [encoder.encode([document], normalize=False)[0] for document in documents]
    found = distance(np.concatenate(batched), np.concatenate(expected))
    assert found.conforms, str(found)
    for one, many, own in zip(alone, batched, expected, strict=True):
        norms = np.linalg.norm(own, axis=1, keepdims=True)
        assert (np.abs(many - own) / norms).max() < 1e-4, "the length is the reference's too"
        assert (np.abs(one - many) / norms).max() <= MAX_INVARIANCE
    short = documents[:8]
    with ContextualEncoder(folder, provider="numpy", cache_dir=cache_dir, step_tokens=256) as slow:
        for mine, theirs in zip(slow.encode(short), batched, strict=False):
            assert np.abs(mine - theirs / np.linalg.norm(theirs, axis=1, keepdims=True)).max() <= MAX_BACKEND


def test_a_chunk_alone_has_the_ordinary_embedding(folder: Path, cache_dir: Path) -> None:
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as plain:
        ordinary = plain.encode(TEXTS)
    with ContextualEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        alone = np.concatenate(encoder.encode([[text] for text in TEXTS]))
    assert np.abs(alone - ordinary).max() <= MAX_INVARIANCE
