"""tokenizer.json made of a checkpoint's older vocabulary files, as the checkpoint's own tokenizer reads them.

WordPiece from vocab.txt, byte-level BPE from vocab.json and merges.txt, Unigram from a sentencepiece model.
Settings and names of special tokens are tokenizer_config.json's; what it leaves out is as in transformers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError, CheckpointError
from ffwd_ort.families import ModelFamily

BERT_TOKENS = {name: f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
# Qwen's rule, from its tokenizer.json: one digit at a time, a run of letters with what stands before it.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def word_piece(checkpoint: Checkpoint, family: ModelFamily) -> Tokenizer:
    """Make BERT's tokenizer of vocab.txt."""
    config = checkpoint.tokenizer_config
    tokens = checkpoint.tokenizer_file.read_text(encoding="utf-8").split("\n")
    vocabulary = {token.rstrip("\r"): i for i, token in enumerate(tokens[:-1] if tokens[-1] == "" else tokens)}
    names = _names(checkpoint, BERT_TOKENS, vocabulary)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(names.values()))
    start, end = names["cls"], names["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{start} $A {end}",
        f"{start} $A {end} $B:1 {end}:1",
        [(start, vocabulary[start]), (end, vocabulary[end])],
    )
    _add_tokens(tokenizer, checkpoint)
    return tokenizer


def byte_bpe(checkpoint: Checkpoint, family: ModelFamily) -> Tokenizer:
    """Make a byte-level BPE of vocab.json and merges.txt, split by the family's rule."""
    where = checkpoint.tokenizer_file
    if family.splitting not in SPLITTINGS:
        raise AdmissionError(
            f"{where}: how the family {family.name} splits text before byte-level BPE is only said by a tokenizer.json"
        )
    vocabulary = json.loads(where.read_text(encoding="utf-8"))
    merges = _merges(checkpoint)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.decoder = decoders.ByteLevel()
    SPLITTINGS[family.splitting](tokenizer, checkpoint, vocabulary)
    _add_tokens(tokenizer, checkpoint)
    return tokenizer


def _merges(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Read merges.txt: one pair a line, after a line that says its version."""
    where = checkpoint.tokenizer_file.with_name("merges.txt")
    lines = where.read_text(encoding="utf-8").split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    pairs = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip()]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise CheckpointError(f"{where}: the line {' '.join(wrong)!r} is not a pair")
    return [(pair[0], pair[1]) for pair in pairs]


def _split_as_gpt2(tokenizer: Tokenizer, checkpoint: Checkpoint, vocabulary: Mapping[str, int]) -> None:
    space = bool(checkpoint.tokenizer_config.get("add_prefix_space", False))
    names = _names(checkpoint, ROBERTA_TOKENS, vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    _add_specials(tokenizer, checkpoint, names, strip_mask=False)
    end, start = ((names[name], vocabulary[names[name]]) for name in ("sep", "cls"))
    trims = bool(checkpoint.tokenizer_config.get("trim_offsets", True))
    tokenizer.post_processor = processors.RobertaProcessing(end, start, trims, space)


def _split_as_qwen2(tokenizer: Tokenizer, checkpoint: Checkpoint, vocabulary: Mapping[str, int]) -> None:
    tokenizer.normalizer = normalizers.NFC()
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"), bytes_only]
    )


# How text is split before bytes are merged, by ModelFamily.splitting; with what else belongs to that tokenizer.
SPLITTINGS: Mapping[str | None, Callable[[Tokenizer, Checkpoint, Mapping[str, int]], None]] = MappingProxyType(
    {"gpt2": _split_as_gpt2, "qwen2": _split_as_qwen2}
)


def _add_tokens(tokenizer: Tokenizer, checkpoint: Checkpoint) -> None:
    """Add the tokens that stand in tokenizer_config.json only; each must get the id it has there."""
    listed = checkpoint.tokenizer_config.get("added_tokens_decoder") or {}
    for number, token in sorted(listed.items(), key=lambda item: int(item[0])):
        flags = {name: bool(token.get(name, False)) for name in ("special", "lstrip", "rstrip", "single_word")}
        made = AddedToken(token["content"], normalized=bool(token.get("normalized", not flags["special"])), **flags)
        (tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens)([made])
        if tokenizer.token_to_id(token["content"]) != int(number):
            raise CheckpointError(
                f"{checkpoint.path}: tokenizer_config.json gives {token['content']!r} the id {number}, "
                f"which would be {tokenizer.token_to_id(token['content'])} after the vocabulary"
            )


def unigram(checkpoint: Checkpoint, family: ModelFamily) -> Tokenizer:
    """Make a Unigram tokenizer of a sentencepiece model, in the layout of ids that its family adds around it."""
    where = checkpoint.tokenizer_file
    if checkpoint.model_type not in PIECES:
        raise AdmissionError(
            f"{where}: the ids of a sentencepiece model are known for {', '.join(PIECES)}, not for model_type "
            f"{checkpoint.model_type!r}; a tokenizer.json would say them"
        )
    model = _sentencepiece(checkpoint)
    if model.trainer_spec.model_type != UNIGRAM:
        raise AdmissionError(f"{where} is a sentencepiece model of another kind than Unigram")
    names = {name: checkpoint.token(f"{name}_token") or default for name, default in ROBERTA_TOKENS.items()}
    first, skipped = PIECES[checkpoint.model_type]
    pieces = [(names.get(token, token), score) for token, score in first]
    pieces += [(piece.piece, piece.score) for piece in model.pieces[skipped:]] + [(names["mask"], 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    if model.normalizer_spec.precompiled_charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    _add_specials(tokenizer, checkpoint, names, strip_mask=True)
    start, end = names["cls"], names["sep"]
    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{start} $A {end}", f"{start} $A {end} {end} $B {end}", ids
    )
    _add_tokens(tokenizer, checkpoint)
    return tokenizer


# The pieces that fairseq put before a sentencepiece model's (a name of ROBERTA_TOKENS stands for that token), and
# how many of the model's own come out for them.
PIECES: Mapping[str, tuple[Sequence[tuple[str, float]], int]] = MappingProxyType(
    {
        "xlm-roberta": ((("cls", 0.0), ("pad", 0.0), ("sep", 0.0), ("unk", 0.0)), 3),
        "camembert": (
            (("<s>NOTUSED", 0.0), ("pad", 0.0), ("</s>NOTUSED", 0.0), ("unk", 0.0), ("<unk>NOTUSED", -100.0)),
            1,
        ),
    }
)
UNIGRAM = 1
# The fields that are read, by number, of sentencepiece_model.proto: message -> (name, number, type, repeated).
FIELDS = {
    "Piece": (("piece", 1, "string", False), ("score", 2, "float", False)),
    "Trainer": (("model_type", 3, "int32", False),),
    "Normalizer": (("precompiled_charsmap", 2, "bytes", False),),
    "Model": (
        ("pieces", 1, "Piece", True),
        ("trainer_spec", 2, "Trainer", False),
        ("normalizer_spec", 3, "Normalizer", False),
    ),
}


def _sentencepiece(checkpoint: Checkpoint) -> Any:
    """Parse a sentencepiece model; raise CheckpointError if it is none."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    file = descriptor_pb2.FileDescriptorProto(name="ffwd_ort/pieces.proto", package="pieces", syntax="proto2")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in FIELDS:
                added.type, added.type_name = added.TYPE_MESSAGE, f".pieces.{kind}"
            else:
                added.type = getattr(added, f"TYPE_{kind.upper()}")
            if field == "model_type":
                added.default_value = str(UNIGRAM)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    model = message_factory.GetMessageClass(pool.FindMessageTypeByName("pieces.Model"))()
    try:
        model.ParseFromString(checkpoint.tokenizer_file.read_bytes())
    except DecodeError:
        raise CheckpointError(f"{checkpoint.tokenizer_file} is not a sentencepiece model") from None
    return model


def _names(checkpoint: Checkpoint, defaults: Mapping[str, str], vocabulary: Mapping[str, int]) -> dict[str, str]:
    """Name the special tokens; raise CheckpointError for those that are not in the vocabulary."""
    names = {name: checkpoint.token(f"{name}_token") or default for name, default in defaults.items()}
    missing = [token for token in names.values() if token not in vocabulary]
    if missing:
        raise CheckpointError(f"{checkpoint.tokenizer_file} lacks {', '.join(missing)}")
    return names


def _add_specials(tokenizer: Tokenizer, checkpoint: Checkpoint, names: Mapping[str, str], strip_mask: bool) -> None:
    """Add the special tokens; the mask takes the spaces before it where its entry says so, or by `strip_mask`."""
    given = checkpoint.tokenizer_config.get("mask_token")
    strips = bool(given.get("lstrip", False)) if isinstance(given, dict) else strip_mask
    tokens = [AddedToken(token, special=True, lstrip=strips and name == "mask") for name, token in names.items()]
    tokenizer.add_special_tokens(tokens)


# What is made of a vocabulary file, by its name.
BUILDERS: Mapping[str, Callable[[Checkpoint, ModelFamily], Tokenizer]] = MappingProxyType(
    {
        "vocab.txt": word_piece,
        "vocab.json": byte_bpe,
        "sentencepiece.bpe.model": unigram,
        "tokenizer.model": unigram,
        "spiece.model": unigram,
    }
)
