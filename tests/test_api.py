"""The Python API: the same engine without HTTP."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort.errors import RefusedError
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, long_text, write_bert


@pytest.fixture(scope="module")
def encoder(tiny: Path, cache_dir: Path) -> Iterator[SentenceEncoder]:
    with SentenceEncoder(tiny, cache_dir=cache_dir) as encoder:
        yield encoder


def test_texts_give_float32_rows_in_their_order(encoder: SentenceEncoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), 48)
    assert np.abs(encoder.encode(TEXTS[::-1])[::-1] - vectors).max() < 5e-6


def test_one_string_gives_one_vector(encoder: SentenceEncoder) -> None:
    assert encoder.encode(TEXTS[0]).shape == (48,)


def test_no_texts_give_no_rows(encoder: SentenceEncoder) -> None:
    assert encoder.encode([]).shape == (0, 48)


def test_more_texts_than_a_request_may_carry_are_encoded(encoder: SentenceEncoder) -> None:
    many = [TEXTS[i % len(TEXTS)] for i in range(1300)]
    assert np.abs(encoder.encode(many) - encoder.encode(TEXTS)[np.arange(1300) % len(TEXTS)]).max() < 5e-6


def test_vectors_have_unit_length_unless_told_otherwise(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_bert(tmp_path / "plain", TinyBert(normalize=False))
    with SentenceEncoder(folder, cache_dir=cache_dir) as encoder:
        assert np.allclose(np.linalg.norm(encoder.encode(TEXTS), axis=1), 1, atol=1e-6)
        assert not np.allclose(np.linalg.norm(encoder.encode(TEXTS, normalize=False), axis=1), 1, atol=1e-2)


def test_an_over_long_text_is_refused_with_its_place_count_and_limit(encoder: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] has 129 tokens; the limit is 128 \(model positions\)"):
        encoder.encode(["fine", long_text(129)])
    assert encoder.encode([long_text(129)], truncate=True).shape == (1, 48)


def test_arguments_that_are_not_permitted_are_named(encoder: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="dimensions is 24; permitted are 48 to 48"):
        encoder.encode("x", dimensions=24)
    with pytest.raises(ValueError, match="text_type is 'passage'; permitted: 'query', 'document'"):
        encoder.encode("x", text_type="passage")
    with pytest.raises(ValueError, match="no query or document prompt"):
        encoder.encode("x", text_type="query")
    with pytest.raises(ValueError, match="prompt_name is 'query'; permitted: none"):
        encoder.encode("x", prompt_name="query")
    with pytest.raises(TypeError, match=r"texts\[1\] is int"):
        encoder.encode(["x", 3])  # type: ignore[list-item]


def test_prompts_go_before_the_text(tiny_prompts: Path, cache_dir: Path) -> None:
    with SentenceEncoder(tiny_prompts, cache_dir=cache_dir) as encoder:
        typed = encoder.encode("the tide: falls")
        assert np.abs(encoder.encode("falls", text_type="query") - typed).max() < 5e-6
        assert np.abs(encoder.encode("falls", prompt_name="query") - typed).max() < 5e-6
        assert np.abs(encoder.encode("falls") - typed).max() > 1e-3


def test_matryoshka_vectors_are_cut_and_scaled_again(tmp_path: Path, cache_dir: Path) -> None:
    folder = write_bert(tmp_path / "nested")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id"', '"matryoshka_dimensions": [16, 48], "pad_token_id"'))
    with SentenceEncoder(folder, cache_dir=cache_dir) as encoder:
        full, cut = encoder.encode(TEXTS), encoder.encode(TEXTS, dimensions=16)
    assert cut.shape == (len(TEXTS), 16)
    assert np.allclose(cut, full[:, :16] / np.linalg.norm(full[:, :16], axis=1, keepdims=True), atol=1e-6)


def test_progress_is_shown_on_standard_error_on_request(
    encoder: SentenceEncoder, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder.encode(TEXTS, progress=True)
    shown = capfd.readouterr()
    assert "encoding" in shown.err and not shown.out


def test_a_source_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"neither a checkpoint \(no config.json\)"):
        SentenceEncoder(tmp_path)


def test_a_provider_is_strict(tiny: Path, cache_dir: Path) -> None:
    with pytest.raises(ValueError, match="provider is 'gpu'; permitted: 'auto', 'cpu'"):
        SentenceEncoder(tiny, provider="gpu", cache_dir=cache_dir)
    with pytest.raises(RefusedError, match="--provider coreml"):
        SentenceEncoder(tiny, provider="coreml", cache_dir=cache_dir)


def test_closing_twice_is_harmless(tiny: Path, cache_dir: Path) -> None:
    encoder = SentenceEncoder(tiny, cache_dir=cache_dir)
    encoder.close()
    encoder.close()


def test_five_poolings_of_a_two_token_text_fit_their_row(tmp_path: Path, cache_dir: Path) -> None:
    every = ("cls_token", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    folder = write_bert(tmp_path / "five", TinyBert(pooling=every))
    with SentenceEncoder(folder, cache_dir=cache_dir) as encoder:
        assert encoder.encode(["", "tide", " "]).shape == (3, 5 * 48)
        assert min(encoder.model.packing.seqs) >= 20, "every prepared shape has room for them"


def test_numbers_that_make_no_sense_and_broken_unicode_are_named(encoder: SentenceEncoder, tiny: Path) -> None:
    with pytest.raises(ValueError, match="threads is 0; at least 1 is permitted"):
        SentenceEncoder(tiny, threads=0)
    with pytest.raises(ValueError, match="step_tokens is 0; at least 16 is permitted"):
        SentenceEncoder(tiny, step_tokens=0)
    with pytest.raises(ValueError, match=r"texts\[1\] cannot be tokenised"):
        encoder.encode(["fine", "\ud800x"])
