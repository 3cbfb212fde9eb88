"""Tokenizers made of vocab.json and merges.txt, or of a sentencepiece model: the ids of transformers' own."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.engine.tokenization import Tokenizer
from ffwd_ort.families import admit
from ffwd_ort.tokenizer_file import write_tokenizer
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.references import token_ids
from ffwd_ort_conformance.tiny import TEXTS, write_bert, write_json
from ffwd_ort_conformance.tiny_families import TinyDecoder, TinyRoberta, write_decoder, write_roberta

SPELLED = [
    "the <mask> tide",
    "a</s>b <s> <pad> <unk>",
    "x<|endoftext|>y <|im_start|>z",
    "can't WE'LL it's 12345 a\n\n b\r\n\tc   d",
    " leading and trailing ",
    "  two  spaces  ",
    "[Q] the tidewrack, TideWrack a<|sep2|> b",
    "\u3000wide\u00a0hard\u2009thin",
]
TEXT = [*TEXTS, *HARD_STRINGS, *SPELLED]


def split_vocabulary(folder: Path) -> dict[str, int]:
    """Turn a byte-level BPE's tokenizer.json into vocab.json and merges.txt; returns its added tokens."""
    content = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    vocabulary = content["model"]["vocab"]
    write_json(folder / "vocab.json", vocabulary)
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    return added


def configure(folder: Path, **config: object) -> None:
    """Replace tokenizer_config.json."""
    write_json(folder / "tokenizer_config.json", config)


def roberta(folder: Path) -> Path:
    """Write RoBERTa's files."""
    write_roberta(folder, TinyRoberta())
    split_vocabulary(folder)
    configure(folder, tokenizer_class="RobertaTokenizer")
    return folder


def qwen2(folder: Path) -> Path:
    """Write Qwen2's files: its special tokens are in tokenizer_config.json alone."""
    write_decoder(folder, TinyDecoder(model_type="qwen2", qkv_bias=True, head_width=12))
    specials = split_vocabulary(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    plain = [token for token in vocabulary if token not in specials]
    write_json(folder / "vocab.json", {token: i for i, token in enumerate(plain)})
    decoder = {
        str(len(plain) + i): {"content": token, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
        for i, token in enumerate(specials)
    }
    configure(
        folder,
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder=decoder,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token=None,
    )
    return folder


def sentencepiece_model(folder: Path, model_type: str) -> Path:
    """Write a sentencepiece model that was really trained, on the words and the hard strings."""
    import sentencepiece

    write_roberta(folder, TinyRoberta(model_type=model_type))
    out = io.BytesIO()
    lines = [*TEXTS * 3, *(text for text in HARD_STRINGS if text.strip() and "\0" not in text and len(text) < 400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=400,
        model_type="unigram",
        hard_vocab_limit=False,
        character_coverage=0.99,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(out.getvalue())
    (folder / "tokenizer.json").unlink()
    configure(
        folder, tokenizer_class={"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}[model_type]
    )
    return folder


def bert_with_added_tokens(folder: Path) -> Path:
    """Write BERT's vocab.txt, with tokens that are in tokenizer_config.json alone."""
    write_bert(folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text(
        "\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", encoding="utf-8"
    )
    (folder / "tokenizer.json").unlink()
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    special = {str(vocabulary[token]): flags(token, special=True) for token in names.values()}
    added = added_tokens(len(vocabulary))
    configure(folder, tokenizer_class="BertTokenizer", added_tokens_decoder=special | added, **names)
    return folder


def camembert_with_added_tokens(folder: Path) -> Path:
    """Write a sentencepiece model, with tokens that are in tokenizer_config.json alone."""
    sentencepiece_model(folder, "camembert")
    checkpoint = read_checkpoint(folder)
    made = folder.with_name("plain.json")
    bound = write_tokenizer(checkpoint, admit(checkpoint).family, made).bound
    configure(folder, tokenizer_class="CamembertTokenizer", added_tokens_decoder=added_tokens(bound))
    return folder


def flags(token: str, **changes: bool) -> dict[str, object]:
    """Make an entry of added_tokens_decoder."""
    off = {"special": False, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    return {"content": token, **off, **changes}


def added_tokens(first: int) -> dict[str, object]:
    """Make entries for tokens behind a vocabulary: a marker, a word that takes the space before it, a special one."""
    entries = [flags("[Q] "), flags("tidewrack", lstrip=True, normalized=True), flags("<|sep2|>", special=True)]
    return {str(first + i): entry for i, entry in enumerate(entries)}


# BERT lowers case and folds spaces, so fewer texts differ.
SHARES_APART = {"bert with added tokens": 0.8}
KINDS: dict[str, Callable[[Path], Path]] = {
    "roberta": roberta,
    "qwen2": qwen2,
    "xlm-roberta": lambda folder: sentencepiece_model(folder, "xlm-roberta"),
    "camembert": lambda folder: sentencepiece_model(folder, "camembert"),
    "bert with added tokens": bert_with_added_tokens,
    "camembert with added tokens": camembert_with_added_tokens,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_those_of_the_checkpoints_own_tokenizer(kind: str, tmp_path: Path) -> None:
    folder = KINDS[kind](tmp_path / "tiny")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tokenizer_file.name != "tokenizer.json"
    made = tmp_path / "tokenizer.json"
    facts = write_tokenizer(checkpoint, admit(checkpoint).family, made)
    mine = [text.ids.tolist() for text in Tokenizer(made).encode(TEXT)]
    expected = token_ids(folder, TEXT)
    assert mine == expected
    share = SHARES_APART.get(kind, 0.9)
    assert len({tuple(ids) for ids in mine}) > len(TEXT) * share, "the texts must tell tokenizers apart"
    assert facts.bound > max(max(ids) for ids in mine)
