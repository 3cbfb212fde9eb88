"""The tokenizer a bundle carries: the checkpoint's own, with its traps taken out and its terminal token put in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import CheckpointError, RefusedError
from ffwd_ort.families import ModelFamily
from ffwd_ort.vocabularies import BUILDERS


@dataclass(frozen=True)
class TokenizerFacts:
    """What was written: the special tokens by name, the bound of the ids, and a look-up of any token."""

    special: dict[str, int]
    bound: int
    token_id: Callable[[str], int | None]


def write_tokenizer(checkpoint: Checkpoint, family: ModelFamily, path: Path) -> TokenizerFacts:
    """Write tokenizer.json as the model was trained with.

    Padding and truncation are off: two real checkpoints ship `padding: 128` and `padding: 512` in it, for
    every text. Where the model ends texts with a token that the file does not put, it is put there. Raises
    CheckpointError if the file is no tokenizer.
    """
    where = checkpoint.tokenizer_file
    try:
        content = orjson.loads(_text(checkpoint, family))
        content["padding"] = content["truncation"] = None
        added = content.get("added_tokens") or []
        special = {str(token["content"]): int(token["id"]) for token in added if token.get("special")}
        vocabulary = content["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        bound = 1 + max((*ids, *(int(token["id"]) for token in added)), default=-1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where} is not a tokenizer: {type(error).__name__} {error}") from None
    terminal = _missing_terminal(checkpoint, family, _load(where, content))
    if terminal is not None:
        _append(content, terminal, _load(where, content).token_to_id(terminal), where)
    tokenizer = _load(where, content)
    path.write_bytes(orjson.dumps(content))
    return TokenizerFacts(special, bound, tokenizer.token_to_id)


def _text(checkpoint: Checkpoint, family: ModelFamily) -> bytes:
    """Return tokenizer.json, or what is made of the vocabulary that stands for it."""
    where = checkpoint.tokenizer_file
    if where.name not in BUILDERS:
        return where.read_bytes()
    try:
        return BUILDERS[where.name](checkpoint, family).to_str().encode()
    except RefusedError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{where} is not a vocabulary: {type(error).__name__} {error}") from None


def _load(where: Path, content: Any) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(orjson.dumps(content))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{where} is not a tokenizer: {error}") from None


def _missing_terminal(checkpoint: Checkpoint, family: ModelFamily, tokenizer: Tokenizer) -> str | None:
    """Name the token that should end every text and does not; the first of the files that speaks decides.

    transformers 5 ignores `add_eos_token` beside a tokenizer.json; the models were trained with it.
    """
    if checkpoint.append_eos is None:
        has_any = tokenizer.num_special_tokens_to_add(False) > 0
        return None if has_any else family.terminal
    if not checkpoint.append_eos:
        return None
    end = checkpoint.token("eos_token")
    if end is None:
        raise CheckpointError(f"{checkpoint.path}: add_eos_token is true, but tokenizer_config.json has no eos_token")
    return None if tokenizer.encode("").tokens[-1:] == [end] else end


def _append(content: dict[str, Any], token: str, token_id: int | None, where: Path) -> None:
    """Have the post-processor end every text with the token, after whatever it does already."""
    if token_id is None:
        raise CheckpointError(f"{where} has no token {token!r}, with which this model ends its texts")
    step = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": token, "type_id": 0}}],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
            {"SpecialToken": {"id": token, "type_id": 0}},
        ],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
    before = content.get("post_processor")
    earlier = before["processors"] if before and before["type"] == "Sequence" else [before] if before else []
    content["post_processor"] = {"type": "Sequence", "processors": [*earlier, step]}
