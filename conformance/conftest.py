"""What conformance cases share. They need the reference libraries, which the product never imports."""

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort.errors import SourceError
from ffwd_ort.sources import DEMO_SOURCE, default_cache_dir, resolve
from ffwd_ort_conformance.references import encode, sentence_transformer
from ffwd_ort_conformance.retrieval import Corpus, read_corpus

LIBRARIES = ("torch", "transformers", "sentence_transformers")
PERLFAQ = Path(os.environ.get("FFWD_PERLFAQ", Path(__file__).parents[2] / "shared/corpora/perlfaq"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by name what has no reference to compare with."""
    absent = [library for library in LIBRARIES if find_spec(library) is None]
    for item in items if absent else ():
        item.add_marker(pytest.mark.skip(reason=f"no {', '.join(absent)} here: make conformance"))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle cache of this run's own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, fetched once into the user's cache."""
    try:
        return resolve(DEMO_SOURCE, default_cache_dir()).path
    except SourceError as error:
        pytest.skip(f"MiniLM cannot be had: {error}")


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """A real retrieval set, its passages 5 to 1700 tokens long; FFWD_PERLFAQ names its folder."""
    if not (PERLFAQ / "corpus.jsonl").is_file():
        pytest.skip("the perlfaq corpus is not on this machine (FFWD_PERLFAQ)")
    return read_corpus(PERLFAQ)


@pytest.fixture(scope="session")
def reference_passages(corpus: Corpus) -> Callable[[Path], np.ndarray]:
    """Encode its passages with sentence-transformers, cut at 512 tokens; once a model, as it takes a while."""

    @cache
    def of(folder: Path) -> np.ndarray:
        return encode(sentence_transformer(folder, 512), list(corpus.passages.values()))

    return of


@pytest.fixture(scope="session")
def perlfaq(corpus: Corpus) -> list[str]:
    """Its passages."""
    return list(corpus.passages.values())
