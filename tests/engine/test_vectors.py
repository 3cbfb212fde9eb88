"""Vectors after the model: cut, unit length, base64; and the pooling weights before it."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ffwd_ort import l2_normalize
from ffwd_ort.engine.sequences import POOLINGS, make_sequence
from ffwd_ort.engine.vectors import CODECS, finish, to_int8

GOLDEN = np.array([[0.5, -0.25, 0, -0.004, 1.2, -3, 0.01, 100]], np.float32)  # http.md section 6
vectors = arrays.arrays(np.float32, (3, 8), elements=st.floats(-1e3, 1e3, width=32).filter(lambda x: abs(x) > 1e-3))


@given(vectors)
def test_normalised_vectors_have_unit_length(rows: np.ndarray) -> None:
    assert np.allclose(np.linalg.norm(l2_normalize(rows), axis=1), 1, atol=1e-6)


def test_a_zero_vector_stays_zero() -> None:
    assert not l2_normalize(np.zeros((2, 4), np.float32)).any()


@given(vectors)
def test_a_cut_vector_of_a_model_that_normalises_is_scaled_again(rows: np.ndarray) -> None:
    cut = finish(rows, dimensions=5, normalize=True)
    assert cut.shape == (3, 5)
    assert np.allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    assert np.allclose(cut, l2_normalize(rows[:, :5]))


@given(vectors)
def test_a_cut_vector_of_a_model_that_does_not_normalise_is_only_cut(rows: np.ndarray) -> None:
    assert np.array_equal(finish(rows, dimensions=5, normalize=False), rows[:, :5])


def test_base64_is_the_little_endian_bytes_of_the_specification() -> None:
    assert CODECS["openai"]["base64"](GOLDEN) == ["AAAAPwAAgL4AAAAAbxKDu5qZmT8AAEDACtcjPAAAyEI="]
    (encoded,) = CODECS["openai"]["base64"](GOLDEN[:, ::2])
    assert np.array_equal(np.frombuffer(base64.b64decode(encoded), "<f4"), GOLDEN[0, ::2])


def test_perplexity_formats_are_those_of_the_specification() -> None:
    codecs = CODECS["perplexity"]
    assert to_int8(GOLDEN).tolist() == [[59, -31, 0, -1, 106, -126, 1, 127]]
    assert codecs["base64_int8"](GOLDEN) == ["O+EA/2qCAX8="]
    assert codecs["base64_binary"](GOLDEN) == ["1Q=="]
    floats = [0.4609375, -0.2421875, 0, -0.0078125, 0.828125, -0.984375, 0.0078125, 0.9921875]
    assert codecs["float"](GOLDEN)[0].tolist() == floats
    assert next(iter(codecs)) == "base64_int8", "the default of the mode"


@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_weights_have_the_sum_their_formula_says(mode: str) -> None:
    total = float(POOLINGS[mode](9, 0).weights.sum())
    assert total == pytest.approx(3.0 if mode == "mean_sqrt_len" else 1.0)


@pytest.mark.parametrize("mode", POOLINGS)
def test_prompt_tokens_left_out_of_pooling_have_no_weight(mode: str) -> None:
    (slot,) = make_sequence(np.arange(9, dtype=np.int32), (mode,), skip=4).slots
    assert slot.start >= 4 and slot.span.stop <= 9 and slot.weights.any()


def test_at_least_one_token_is_pooled_however_long_the_prompt() -> None:
    (slot,) = make_sequence(np.arange(3, dtype=np.int32), ("mean",), skip=10).slots
    assert (slot.start, slot.weights.tolist()) == (2, [1])


def test_the_maximum_is_taken_of_every_value_over_the_tokens_that_take_part() -> None:
    tokens = np.array([[9, 9], [1, -5], [3, -2], [2, -7]], np.float32)
    ids = np.arange(4, dtype=np.int32)
    assert make_sequence(ids, ("max",)).finish(tokens).tolist() == [9, 9]
    assert make_sequence(ids, ("max",), skip=1).finish(tokens).tolist() == [3, -2]
    both = make_sequence(ids, ("mean", "max", "last"), skip=2)
    assert both.finish(tokens).tolist() == [2.5, -4.5, 3, -2, 2, -7], "joined in the checkpoint's order"
    assert make_sequence(ids, ("max",), skip=10).finish(tokens).tolist() == [2, -7], "one token always takes part"
