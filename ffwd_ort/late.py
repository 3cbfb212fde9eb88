"""Late interaction: how queries and documents are laid out, as PyLate and sentence-transformers write it down."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffwd_ort.bundle import Late
from ffwd_ort.errors import AdmissionError, CheckpointError
from ffwd_ort.files import Files
from ffwd_ort.modules import Module, folders

# Keys of config_sentence_transformers.json that only PyLate writes.
PYLATE_KEYS = ("query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens", "skiplist_words")
QUERY_LENGTH = 32  # ColBERT's, where a PyLate folder names none
LONGEST_QUERY = 1024  # padding that is not attended to needs the packed form of attention


@dataclass(frozen=True)
class LateRecipe:
    """How the texts of a late-interaction model are laid out.

    A marker is a token put after the first token of a text; one that the tokenizer does not know is written
    before the text instead. Queries shorter than `query_length` are padded to it with `expansion` tokens
    (None: the tokenizer's mask), which score, and which other tokens see if `attend`; None: no padding.
    Tokens of documents that are one of `skip_words` do not score. `document_length` is the length of the
    documents it was trained on: reported, as we do not cut there.
    """

    query_marker: str = ""
    document_marker: str = ""
    query_length: int | None = QUERY_LENGTH
    attend: bool = True
    expansion: str | None = None
    skip_words: tuple[str, ...] = tuple(string.punctuation)
    normalize: bool = True
    document_length: int | None = None


def read_late(files: Files, modules: Sequence[Module] | None, trunk: Mapping[str, Any]) -> LateRecipe | None:
    """Read a recipe: PyLate's, or sentence-transformers' own, whose `trunk` settings hold it. None if none is said.

    Raises AdmissionError for what is not computed here. Key names are those of PyLate 1 to 3 and of
    sentence-transformers 6 (MultiVectorEncoder).
    """
    config = files.object("config_sentence_transformers.json")
    where = files.root / "config_sentence_transformers.json"
    if any(key in config for key in PYLATE_KEYS) or config.get("model_type") == "ColBERT":
        return _pylate(config, where)
    return _native(files, modules, trunk) if folders(modules, "MultiVectorMask") else None


def _pylate(config: Mapping[str, Any], where: Path) -> LateRecipe:
    words = config.get("skiplist_words")
    expands = config.get("do_query_expansion")
    length = config.get("query_length")
    return LateRecipe(
        query_marker=_text(config.get("query_prefix"), "query_prefix", where),
        document_marker=_text(config.get("document_prefix"), "document_prefix", where),
        query_length=None if expands is False else _length(QUERY_LENGTH if length is None else length, where),
        attend=bool(config.get("attend_to_expansion_tokens", False)),
        skip_words=tuple(string.punctuation) if words is None else _words(words, where),
        document_length=_optional(config.get("document_length"), where),
    )


def _native(files: Files, modules: Sequence[Module] | None, trunk: Mapping[str, Any]) -> LateRecipe:
    folder = folders(modules, "MultiVectorMask")[0]
    where = files.root / folder / "config.json"
    mask = files.object(f"{folder}/config.json")
    if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise AdmissionError(f"{where}: keep_only_token_ids, or a skiplist for queries, is not understood")
    expansion = trunk.get("query_expansion") or {}
    if not isinstance(expansion, dict):
        raise CheckpointError(f"{where}: query_expansion is {expansion!r}; an object is needed")
    return LateRecipe(
        query_length=_length(expansion.get("length"), where) if expansion else None,
        attend=bool(expansion.get("attend", False)),
        expansion=expansion.get("token"),
        skip_words=_words(mask.get("skiplist_words") or [], where),
        normalize=bool(folders(modules, "Normalize")),
        document_length=_optional(trunk.get("document_length"), where),
    )


def _text(value: Any, key: str, where: Path) -> str:
    if not isinstance(value, str | None):
        raise CheckpointError(f"{where}: {key} is {value!r}; a text is needed")
    return value or ""


def _length(value: Any, where: Path, most: int = LONGEST_QUERY) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(f"{where}: a length of {value!r} is named; an integer from 1 to {most} is needed")
    return value


def _optional(value: Any, where: Path) -> int | None:
    return None if value is None else _length(value, where, most=1 << 20)


def _words(value: Any, where: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise CheckpointError(f"{where}: skiplist_words is {value!r}; a list of words is needed")
    return tuple(value)


def settle_late(
    recipe: LateRecipe,
    prompts: Mapping[str, str],
    token_id: Callable[[str], int | None],
    expansions: Sequence[str | None],
) -> tuple[Late, dict[str, str]]:
    """Find a recipe's tokens in the tokenizer; return them, and the text that goes before each kind of text.

    `expansions` are what queries are padded with where the recipe does not say: the first that there is. Raises
    AdmissionError if there is none.
    """
    query, query_prompt = _marker(recipe.query_marker, prompts.get("query", ""), token_id)
    document, document_prompt = _marker(recipe.document_marker, prompts.get("document", ""), token_id)
    names = [name for name in ([recipe.expansion] if recipe.expansion else expansions) if name]
    expansion_id = next((found for name in names if (found := token_id(name)) is not None), None)
    if recipe.query_length is not None and expansion_id is None:
        raise AdmissionError(f"queries are padded with {' or '.join(names)}, which the tokenizer does not have")
    skipped = {token_id(word) for word in recipe.skip_words} - {None}
    late = Late(
        query_marker=query,
        document_marker=document,
        query_length=recipe.query_length or 0,
        attend=recipe.attend,
        expansion_id=expansion_id or 0,
        skip_ids=tuple(sorted(i for i in skipped if i is not None)),
    )
    return late, {**prompts, "query": query_prompt, "document": document_prompt}


def _marker(marker: str, prompt: str, token_id: Callable[[str], int | None]) -> tuple[int | None, str]:
    """Return a marker's token and the prompt beside it.

    PyLate saves "[Q] " with its space as one token; others name only its first word. A marker that is no token
    is a text like any other.
    """
    prompt = prompt.removeprefix(marker)
    for name in (marker, *marker.split()[:1]):
        if name and (found := token_id(name)) is not None:
            return found, prompt
    return None, marker + prompt
