"""The Python API: the same engine without HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort import ContextualEncoder, CrossEncoder, LateInteractionEncoder, SentenceEncoder
from ffwd_ort.errors import RefusedError
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, long_text, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import WIDTH, write_colbert


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


# --- the other kinds -------------------------------------------------------------------------------


def write_pplx(folder: Path, *pooling: str) -> Path:
    tiny = TinyDecoder(model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=pooling, normalize=False)
    return write_decoder(folder, tiny)


@pytest.fixture(scope="module")
def contextual(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[ContextualEncoder]:
    folder = write_pplx(tmp_path_factory.mktemp("api") / "pplx", "mean_tokens")
    with ContextualEncoder(folder, cache_dir=cache_dir) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[LateInteractionEncoder]:
    folder = write_colbert(tmp_path_factory.mktemp("api") / "colbert")
    with LateInteractionEncoder(folder, cache_dir=cache_dir) as encoder:
        yield encoder


def test_documents_give_a_row_for_each_chunk_in_their_order(contextual: ContextualEncoder) -> None:
    documents = [TEXTS[:3], [TEXTS[3]], ("kelp", "kelp")]
    vectors = contextual.encode(documents)
    assert [v.shape for v in vectors] == [(3, 48), (1, 48), (2, 48)] and vectors[0].dtype == np.float32
    assert np.allclose(np.linalg.norm(np.concatenate(vectors), axis=1), 1, atol=1e-6)
    raw = contextual.encode(documents, normalize=False)
    assert not np.allclose(np.linalg.norm(np.concatenate(raw), axis=1), 1, atol=0.1)
    turned = contextual.encode(documents[::-1])[::-1]
    assert max(np.abs(a - b).max() for a, b in zip(turned, vectors, strict=True)) < 5e-6
    assert contextual.encode([]) == []


def test_a_document_that_is_none_or_too_long_is_named(contextual: ContextualEncoder) -> None:
    nothing: list[Any] = [["a text"], [[]]]
    for documents in nothing:
        with pytest.raises(ValueError, match=r"documents\[0\] must be a sequence of at least one chunk"):
            contextual.encode(documents)
    with pytest.raises(ValueError, match=r"documents\[1\]\[1\] cannot be tokenised"):
        contextual.encode([["fine"], ["fine", ""]])
    with pytest.raises(ValueError, match=r"documents\[1\] has 129 tokens; the limit is 128 \(model positions\)"):
        contextual.encode([["fine"], [" tide" * 64, " bay" * 64]])
    with pytest.raises(ValueError, match="dimensions is 5; permitted are 48 to 48"):
        contextual.encode([["fine"]], dimensions=5)


@pytest.mark.parametrize("pooling", [("lasttoken",), ("max_tokens",), ("cls_token", "mean_tokens")])
def test_chunks_have_their_mean_whatever_the_checkpoint_pools(
    contextual: ContextualEncoder, pooling: tuple[str, ...], tmp_path: Path, cache_dir: Path
) -> None:
    document = ["the tide falls", "kelp"]
    try:
        with ContextualEncoder(write_pplx(tmp_path / "pplx", *pooling), cache_dir=cache_dir) as encoder:
            (vectors,) = encoder.encode([document])
    except RefusedError as error:
        assert pooling != ("lasttoken",) and "chunks are the mean of their tokens" in str(error)
    else:
        (expected,) = contextual.encode([document])
        assert vectors.shape == expected.shape and np.abs(vectors - expected).max() < 5e-6


def test_queries_and_documents_give_a_row_for_each_token_that_scores(late: LateInteractionEncoder) -> None:
    queries = late.encode_queries(["the tide", long_text(30)])
    documents = late.encode_documents(["the tide", "the tide!?", ""])
    assert [v.shape for v in queries] == [(16, WIDTH), (31, WIDTH)], "padded, or whole with its marker"
    assert [v.shape for v in documents] == [(5, WIDTH), (5, WIDTH), (3, WIDTH)], "punctuation is seen, but no score"
    assert all(np.allclose(np.linalg.norm(v, axis=1), 1, atol=1e-6) for v in (*queries, *documents))
    assert late.encode_queries([]) == [] and late.score("the tide", []).shape == (0,)


def test_ranks_are_by_descending_score_with_ties_by_index(late: LateInteractionEncoder) -> None:
    documents = ["kelp", "the tide falls", "kelp", "the ferry"]
    scores = late.score("when does the tide fall?", documents)
    ranked = late.rank("when does the tide fall?", documents)
    assert scores.dtype == np.float32 and scores[0] == scores[2]
    assert ranked == [(i, float(scores[i])) for i in np.argsort(-scores, kind="stable")]
    assert [i for i, _ in ranked if i in (0, 2)] == [0, 2]


def test_an_over_long_text_is_refused_with_its_marker_counted_unless_it_may_be_cut(
    late: LateInteractionEncoder,
) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] has 161 tokens; the limit is 160 .*truncate=True"):
        late.encode_documents(["fine", long_text(160)])
    with pytest.raises(ValueError, match=r"texts\[0\] has 161 tokens"):
        late.score(long_text(160), ["fine"])
    assert late.encode_documents([long_text(500)], truncate=True)[0].shape == (160, WIDTH)
    assert late.score("fine", [long_text(500)], truncate=True).shape == (1,)


def test_a_checkpoint_of_another_kind_is_refused_naming_it(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="--late-model model: tiny-bert is of kind embedding"):
        LateInteractionEncoder(tiny, cache_dir=tmp_path)
    with pytest.raises(RefusedError, match="tiny-bert is of the family bert, which was not trained on chunks"):
        ContextualEncoder(tiny, cache_dir=tmp_path)


def test_a_query_that_leaves_no_room_for_a_document_is_named(tmp_path: Path, cache_dir: Path) -> None:
    with CrossEncoder(write_cross_encoder(tmp_path / "ce", "bert"), cache_dir=cache_dir) as encoder:
        most = encoder.model.cap.tokens
        fits, over = " ".join(["tide"] * (most - 4)), " ".join(["tide"] * (most - 3))
        assert encoder.score(fits, ["kelp", long_text(500)], truncate=True).shape == (2,)
        for truncate in (True, False):
            with pytest.raises(ValueError, match=f"query makes pairs of at least {most + 1} tokens; .* never cut"):
                encoder.score(over, ["kelp"], truncate=truncate)
        with pytest.raises(ValueError, match=r"documents\[1\] makes a pair of at least \d+ tokens; .*truncate=True"):
            encoder.score("tide", ["kelp", "tide " * 5000])
