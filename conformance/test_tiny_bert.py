"""Tiny random BERTs in every variant of files and pooling, against sentence-transformers and transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, distance
from ffwd_ort_conformance.references import encode, hidden_states, sentence_transformer, token_ids
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, long_text, write_bert

SAMPLE = [*TEXTS, long_text(128), long_text(200), *HARD_STRINGS]
PROMPTS = (("query", "the tide: "), ("document", ""))

VARIANTS = {
    "mean": TinyBert(),
    "cls": TinyBert(pooling=("cls_token",)),
    "last": TinyBert(pooling=("lasttoken",)),
    "weighted-mean": TinyBert(pooling=("weightedmean_tokens",)),
    "sqrt-len": TinyBert(pooling=("mean_sqrt_len_tokens",), normalize=False),
    "concatenated": TinyBert(pooling=("cls_token", "mean_tokens", "weightedmean_tokens")),
    "concatenated-newer-keys": TinyBert(pooling=("mean_tokens", "cls_token"), new_pooling_keys=True),
    "gelu-new": TinyBert(hidden_act="gelu_new", seed=11),
    "relu": TinyBert(hidden_act="relu", seed=12),
    "old-names": TinyBert(old_names=True),
    "sharded": TinyBert(shards=3),
    "bfloat16": TinyBert(dtype="bfloat16"),
    "float16": TinyBert(dtype="float16"),
    "deep": TinyBert(layers=12, heads=4, seed=13),
    "prompt-left-out-of-pooling": TinyBert(include_prompt=False, prompts=PROMPTS, default_prompt="query"),
    "prompts": TinyBert(prompts=PROMPTS, default_prompt="query"),
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> TinyBert:
    """Each way a BERT checkpoint can be written."""
    return VARIANTS[request.param]


def test_vectors_equal_the_references_alone_batched_and_on_numpy(
    variant: TinyBert, tmp_path: Path, cache_dir: Path
) -> None:
    folder = write_bert(tmp_path / "tiny", variant)
    reference = encode(sentence_transformer(folder, variant.positions), SAMPLE)
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        batched = encoder.encode(SAMPLE, truncate=True, normalize=False)
        found = distance(batched, reference)
        assert found.conforms, str(found)
        norms = np.linalg.norm(batched, axis=1, keepdims=True)
        if not variant.normalize:  # then length is part of the contract too
            assert np.abs(batched - reference).max() <= 2e-5 * norms.max()
        alone = np.stack([encoder.encode(text, truncate=True, normalize=False) for text in SAMPLE])
        assert np.abs((alone - batched) / norms).max() <= MAX_INVARIANCE
    with SentenceEncoder(folder, provider="numpy", cache_dir=cache_dir, step_tokens=256) as slow:
        few = slow.encode(SAMPLE[:8], truncate=True, normalize=False)
    assert np.abs((few - batched[:8]) / norms[:8]).max() <= MAX_BACKEND


def test_prompts_give_the_references_vectors(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_bert(tmp_path / "tiny", VARIANTS["prompts"])
    model = sentence_transformer(folder, 128)
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        for options, reference in (
            ({"text_type": "query"}, encode(model, TEXTS, prompt_name="query")),
            ({"prompt_name": "query"}, encode(model, TEXTS, prompt_name="query")),
            ({"text_type": "document"}, encode(model, TEXTS, prompt_name="document")),
            ({}, encode(model, TEXTS)),
        ):
            found = distance(encoder.encode(TEXTS, **options), reference)
            assert found.conforms, f"{options}: {found}"


def test_token_ids_equal_the_references(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_bert(tmp_path / "tiny")
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        mine = [text.ids.tolist() for text in encoder.model.tokenizer.encode(SAMPLE)]
    assert mine == token_ids(folder, SAMPLE)


def test_the_trunk_equals_transformers(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(pooling=("lasttoken",), normalize=False))
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        encoded = [text.ids.tolist() for text in encoder.model.tokenizer.encode(TEXTS)]
        for text, states in zip(TEXTS, hidden_states(folder, encoded), strict=True):
            assert np.abs(encoder.encode(text, normalize=False) - states[-1]).max() <= 2e-5


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_a_vocabulary_alone_makes_the_references_tokenizer(
    settings: dict[str, bool], tmp_path: Path, cache_dir: Path
) -> None:
    folder = write_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text()) | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        mine = [text.ids.tolist() for text in encoder.model.tokenizer.encode(SAMPLE)]
    assert mine == token_ids(folder, SAMPLE)
