"""Text to ids: what the tokenizers library gives, with and without a cut."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ffwd_ort.engine.tokenization import Tokenizer
from ffwd_ort.errors import BundleError, TokenizationFailed
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.tiny import WORDS, long_text


@pytest.fixture(scope="module")
def path(tiny: Path) -> Path:
    return tiny / "tokenizer.json"


def truncating(path: Path, length: int, direction: str) -> tokenizers.Tokenizer:
    """Make the library's own truncating tokenizer, the reference."""
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.no_padding()
    reference.enable_truncation(length, direction=direction)
    return reference


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("length", [3, 4, 17, 64])
def test_a_cut_gives_the_ids_of_the_librarys_own_truncation(path: Path, length: int, direction: str) -> None:
    texts = [*HARD_STRINGS, long_text(64), long_text(65), long_text(500)]
    mine = Tokenizer(path).encode(texts, max_length=length, direction=direction)
    theirs = truncating(path, length, direction).encode_batch(texts)
    assert [text.ids.tolist() for text in mine] == [encoding.ids for encoding in theirs]


def test_padding_and_truncation_of_the_file_are_off(path: Path) -> None:
    assert json.loads(path.read_bytes())["truncation"]["max_length"] == 24
    short, long = Tokenizer(path).encode(["tide", long_text(100)])
    assert len(short.ids) == 3 and len(long.ids) == 100


def test_counts_are_those_before_the_cut(path: Path) -> None:
    (text,) = Tokenizer(path).encode([long_text(90)], max_length=10)
    assert (text.counted, len(text.ids), text.truncated) == (90, 10, True)


def test_a_prompt_is_tokenised_in_one_pass_with_its_text(path: Path) -> None:
    tokenizer = Tokenizer(path)
    (joined,) = tokenizer.encode(["high"], prompt="low")
    (typed,) = tokenizer.encode(["lowhigh"])
    assert joined.ids.tolist() == typed.ids.tolist()


def test_prompt_tokens_count_the_leading_special_and_the_prompts_own(path: Path) -> None:
    assert Tokenizer(path).prompt_tokens("the tide: ") == 4  # [CLS] the tide :
    assert Tokenizer(path).prompt_tokens("") == 0


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_tokenised_as_by_the_library(tiny: Path, text: str) -> None:
    reference = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    (mine,) = Tokenizer(tiny / "tokenizer.json").encode([text])
    assert mine.ids.tolist() == reference.encode(text).ids


def test_a_lone_surrogate_is_a_tokenization_failure_that_names_its_text(path: Path) -> None:
    with pytest.raises(TokenizationFailed) as caught:
        Tokenizer(path).encode(["fine", "\ud83c"])
    assert caught.value.args == (1,)


def test_lowercasing_that_the_checkpoint_asks_for_happens_before_tokenising(path: Path) -> None:
    (mine,) = Tokenizer(path, lowercase=True).encode(["TIDE \u0130"])
    (typed,) = Tokenizer(path).encode(["TIDE \u0130".lower()])
    assert mine.ids.tolist() == typed.ids.tolist()


def test_a_damaged_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")


# --- texts that are far too long -------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["right", "left"])
def test_a_text_far_too_long_is_cut_as_the_whole_would_be(path: Path, direction: str) -> None:
    tokenizer = Tokenizer(path)
    text = " ".join(f"{word} tide {word}" for word in WORDS * 4000)
    (whole,) = tokenizer.encode([text], max_length=100, direction=direction)
    (part,) = tokenizer.encode([text], max_length=100, direction=direction, enough=100)
    assert part.ids.tolist() == whole.ids.tolist() and len(part.ids) == 100
    assert part.at_least and 100 < part.counted < whole.counted and not whole.at_least


def test_a_long_text_of_few_tokens_is_looked_at_until_its_end(path: Path) -> None:
    tokenizer = Tokenizer(path)
    texts = [" " * 50_000 + "tide", "x" * 50_000, "tide" + " " * 50_000, "\n" * 9000 + "tide " * 90 + "\n" * 9000]
    for text in texts:
        (whole,), (part,) = tokenizer.encode([text]), tokenizer.encode([text], enough=100)
        assert part.ids.tolist() == whole.ids.tolist() and part.counted == whole.counted and not part.at_least


def test_long_texts_keep_their_places_among_short_ones(path: Path) -> None:
    tokenizer = Tokenizer(path)
    long = "tide " * 60_000
    texts = ["kelp", long, "low water", long, "bay", *["a"] * 40, long]
    counts = [text.at_least for text in tokenizer.encode(texts, enough=128)]
    assert counts == [text is long for text in texts]
    few = [tokenizer.encode([text])[0].ids.tolist() for text in texts if text is not long]
    mine = tokenizer.encode(texts, enough=128)
    assert [text.ids.tolist() for text in mine if not text.at_least] == few


def test_a_bad_text_is_named_by_its_place_whatever_its_length(path: Path) -> None:
    tokenizer = Tokenizer(path)
    for bad in ("\ud800", "\ud800" + "tide " * 60_000):
        with pytest.raises(TokenizationFailed) as caught:
            tokenizer.encode(["fine", "tide " * 60_000, bad], enough=128)
        assert caught.value.args == (2,)


@pytest.mark.parametrize("direction", ["right", "left"])
def test_a_long_word_at_the_end_of_a_part_is_counted_as_in_the_whole(path: Path, direction: str) -> None:
    """A word of more than 100 characters is one unknown token; the first 100 of it alone would be many."""
    tides = "tide " * 497 if direction == "right" else " tide" * 497
    gap, word = " " * (4000 - len(tides)), "z" * 400
    text = tides + gap + word if direction == "right" else word + gap + tides
    part = text[:4096] if direction == "right" else text[-4096:]
    tokenizer = Tokenizer(path)
    assert len(tokenizer.encode([part])[0].ids) > 570, "the part has more tokens than the whole"
    (text_of_500,) = tokenizer.encode([text], direction=direction, enough=500)
    assert (text_of_500.counted, len(text_of_500.ids), text_of_500.at_least) == (500, 500, False)


def test_prompt_tokens_that_a_cut_dropped_are_not_counted(path: Path) -> None:
    tokenizer = Tokenizer(path)
    prompt = "the tide: "  # three tokens, behind the special one
    assert [tokenizer.prompt_tokens(prompt, dropped) for dropped in (0, 1, 3, 90)] == [4, 3, 1, 1]
    for direction, dropped in (("right", 0), ("left", 8)):
        (text,) = tokenizer.encode(["kelp " * 20], prompt=prompt, max_length=17, direction=direction)
        assert text.counted - len(text.ids) == 8 and text.dropped == dropped
