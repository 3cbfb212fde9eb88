"""Real tokenizers of a few hundred tokens, for families that do not use WordPiece. Made by rule, not trained."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ffwd_ort.vocabularies import QWEN2_SPLIT
from ffwd_ort_conformance.tiny import WORDS, write_json


def write_byte_bpe(
    folder: Path,
    specials: Sequence[str],
    *,
    qwen: bool = False,
    around: tuple[str, str] | None = None,
    eos: str | None = None,
    append_eos: bool | None = None,
) -> int:
    """Write a byte-level BPE as GPT-2 and RoBERTa, or `qwen`, use it; returns its size.

    `specials` take the first ids. `around` are the tokens a post-processor puts at either end; `eos` and
    `append_eos` go into tokenizer_config.json.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left = "\u0120" + word[0]  # a space, as byte-level tokenizers write it
        merges.append(("\u0120", word[0]))
        for letter in word[1:]:
            merges.append((left, letter))
            left += letter
    merges = list(dict.fromkeys(merges))
    tokens = [*specials, *alphabet, *(a + b for a, b in merges)]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if qwen:
        tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    if around is not None:
        start, end = ((token, vocabulary[token]) for token in around)
        tokenizer.post_processor = processors.RobertaProcessing(end, start, add_prefix_space=False)
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return _save(folder, tokenizer, specials, eos or (around[1] if around else None), append_eos)


def write_unigram(folder: Path) -> int:
    """Write a Unigram tokenizer as XLM-RoBERTa uses it: <s> 0, <pad> 1, </s> 2, <unk> 3; returns its size."""
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?\u4f4e\u6f6e\u00e9"
    pieces = [("\u2581", -3.0), *((f"\u2581{word}", -5.0 - len(word) / 10) for word in WORDS)]
    pieces += [(letter, -7.0) for letter in letters]
    tokenizer = Tokenizer(models.Unigram([(token, 0.0) for token in specials] + pieces, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([*specials, "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    return _save(folder, tokenizer, specials, "</s>", None)


def _save(folder: Path, tokenizer: Tokenizer, specials: Sequence[str], eos: str | None, append_eos: bool | None) -> int:
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    pad = next((token for token in specials if "pad" in token), specials[0])
    config |= {"pad_token": pad, "eos_token": eos, "padding_side": "right"}
    if append_eos is not None:
        config["add_eos_token"] = append_eos
    write_json(folder / "tokenizer_config.json", config)
    return tokenizer.get_vocab_size()
