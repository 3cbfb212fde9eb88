"""Vocabulary files that are damaged, or of a family whose rules only a tokenizer.json says, are refused by name."""

from pathlib import Path

import pytest

from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.errors import RefusedError
from ffwd_ort.families import admit
from ffwd_ort.tokenizer_file import write_tokenizer
from ffwd_ort_conformance.tiny import write_bert, write_json
from ffwd_ort_conformance.tiny_families import TinyDecoder, TinyRoberta, write_decoder, write_roberta


def refusal(folder: Path) -> str:
    checkpoint = read_checkpoint(folder)
    with pytest.raises(RefusedError) as caught:
        write_tokenizer(checkpoint, admit(checkpoint).family, folder / "made.json")
    assert not (folder / "made.json").exists()
    return str(caught.value)


@pytest.fixture
def roberta(tmp_path: Path) -> Path:
    folder = write_roberta(tmp_path / "tiny", TinyRoberta())
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6})
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


@pytest.mark.parametrize(
    ("merges", "said"), [("a b c\n", "'a b c' is not a pair"), ("a x\n", "vocab.json is not a vocabulary")]
)
def test_bad_merges_are_refused(roberta: Path, merges: str, said: str) -> None:
    (roberta / "merges.txt").write_text(merges)
    assert said in refusal(roberta)


def test_a_vocabulary_without_its_special_tokens_is_refused(roberta: Path) -> None:
    write_json(roberta / "vocab.json", {"<s>": 0, "a": 1})
    assert "vocab.json lacks <pad>, </s>, <unk>, <mask>" in refusal(roberta)
    (roberta / "vocab.json").write_text("{")
    assert "vocab.json is not a vocabulary" in refusal(roberta)


def test_an_added_token_with_another_id_than_it_would_get_is_refused(roberta: Path) -> None:
    write_json(
        roberta / "tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<new>", "special": True}}}
    )
    assert "gives '<new>' the id 9, which would be 7" in refusal(roberta)


def test_a_family_whose_splitting_only_a_tokenizer_json_says_is_refused(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "tiny", TinyDecoder(model_type="llama"))
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", {"a": 0})
    (folder / "merges.txt").write_text("")
    assert "how the family llama splits text" in refusal(folder)


def test_sentencepiece_models_that_are_damaged_or_of_another_family_are_refused(tmp_path: Path) -> None:
    folder = write_roberta(tmp_path / "xlm", TinyRoberta(model_type="xlm-roberta"))
    (folder / "tokenizer.json").unlink()
    (folder / "sentencepiece.bpe.model").write_bytes(b"\xff\xff no protobuf")
    assert "sentencepiece.bpe.model is not a sentencepiece model" in refusal(folder)
    bert = write_bert(tmp_path / "bert")
    (bert / "tokenizer.json").unlink()
    (bert / "vocab.txt").unlink()
    (bert / "spiece.model").write_bytes(b"")
    assert "are known for xlm-roberta, camembert, not for model_type 'bert'" in refusal(bert)
