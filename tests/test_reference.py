"""Vectors recorded from the reference libraries, so that a wrong vector fails here too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.levels import distance
from ffwd_ort_conformance.record import RECORDED_TEXTS, RECORDED_TINY, unpack
from ffwd_ort_conformance.tiny import write_bert


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads((Path(__file__).parent / "data/reference.json").read_text())


@pytest.fixture(scope="module")
def encoder(minilm: Path, cache_dir: Path) -> Iterator[SentenceEncoder]:
    with SentenceEncoder(minilm, provider="cpu", cache_dir=cache_dir) as encoder:
        yield encoder


def test_minilm_has_the_recorded_token_ids(encoder: SentenceEncoder, recorded: Any) -> None:
    mine = [text.ids.tolist() for text in encoder.model.tokenizer.encode(RECORDED_TEXTS)]
    assert mine == recorded["minilm_token_ids"]


def test_minilm_has_the_recorded_vectors(encoder: SentenceEncoder, recorded: Any) -> None:
    found = distance(encoder.encode(RECORDED_TEXTS, truncate=True), unpack(recorded["vectors"]["minilm"]))
    assert found.conforms, str(found)


@pytest.mark.parametrize("name", RECORDED_TINY)
def test_tiny_checkpoints_have_the_recorded_vectors(name: str, tmp_path: Path, cache_dir: Path, recorded: Any) -> None:
    folder = write_bert(tmp_path / "tiny", RECORDED_TINY[name])
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir) as encoder:
        found = distance(encoder.encode(RECORDED_TEXTS, truncate=True), unpack(recorded["vectors"][name]))
    assert found.conforms, str(found)
