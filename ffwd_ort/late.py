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
    settings = _Settings(config, where)
    words = settings.words("skiplist_words")
    return LateRecipe(
        query_marker=settings.text("query_prefix") or "",
        document_marker=settings.text("document_prefix") or "",
        query_length=(
            settings.length("query_length", LONGEST_QUERY) or QUERY_LENGTH
            if settings.flag("do_query_expansion", True)
            else None
        ),
        attend=settings.flag("attend_to_expansion_tokens", False),
        skip_words=tuple(string.punctuation) if words is None else words,
        document_length=settings.length("document_length"),
    )


def _native(files: Files, modules: Sequence[Module] | None, trunk: Mapping[str, Any]) -> LateRecipe:
    folder = folders(modules, "MultiVectorMask")[0]
    mask = _Settings(files.object(f"{folder}/config.json"), files.root / folder / "config.json")
    if mask.config.get("keep_only_token_ids") or mask.config.get("skiplist_tasks", ["document"]) != ["document"]:
        raise AdmissionError(f"{mask.where}: keep_only_token_ids, or a skiplist for queries, is not understood")
    settings = _Settings(trunk, files.root / "sentence_bert_config.json")
    given = trunk.get("query_expansion")
    if not isinstance(given, dict | None):
        raise CheckpointError(f"{settings.where}: query_expansion is {given!r}; an object is needed")
    expansion = _Settings(given or {}, settings.where, "query_expansion.")
    length = expansion.length("length", LONGEST_QUERY)
    if given and length is None:
        raise CheckpointError(f"{settings.where}: query_expansion has no length")
    return LateRecipe(
        query_length=length,
        attend=expansion.flag("attend", False),
        expansion=expansion.text("token"),
        skip_words=mask.words("skiplist_words") or (),
        normalize=bool(folders(modules, "Normalize")),
        document_length=settings.length("document_length"),
    )


@dataclass(frozen=True)
class _Settings:
    """Reads settings of one file by their type; what is not there, or null, says nothing."""

    config: Mapping[str, Any]
    where: Path
    within: str = ""

    def text(self, key: str) -> str | None:
        value = self.config.get(key)
        if not isinstance(value, str | None):
            raise self._wrong(key, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if not isinstance(value, bool | None):
            raise self._wrong(key, "true or false")
        return default if value is None else value

    def length(self, key: str, most: int = 1 << 20) -> int | None:
        value = self.config.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise self._wrong(key, f"an integer from 1 to {most}")
        return value

    def words(self, key: str) -> tuple[str, ...] | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._wrong(key, "a list of words")
        return tuple(value)

    def _wrong(self, key: str, needed: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {self.within}{key} is {self.config[key]!r}; {needed} is needed")


def settle_late(
    recipe: LateRecipe,
    prompts: Mapping[str, str],
    token_id: Callable[[str], int | None],
    expansions: Sequence[str | None],
) -> tuple[Late, dict[str, str]]:
    """Find a recipe's tokens in the tokenizer; return them, and the prompts that are left beside its markers.

    `expansions` are what queries are padded with where the recipe does not say: the first that there is. Raises
    AdmissionError if there is none.
    """
    query, query_text = _marker(recipe.query_marker, token_id)
    document, document_text = _marker(recipe.document_marker, token_id)
    rest = {name: text.removeprefix(getattr(recipe, f"{name}_marker", "")) for name, text in prompts.items()}
    names = [name for name in ([recipe.expansion] if recipe.expansion else expansions) if name]
    expansion_id = next((found for name in names if (found := token_id(name)) is not None), None)
    if recipe.query_length is not None and expansion_id is None:
        raise AdmissionError(f"queries are padded with {' or '.join(names)}, which the tokenizer does not have")
    skipped = {token_id(word) for word in recipe.skip_words} - {None}
    late = Late(
        query_marker=query,
        document_marker=document,
        query_text=query_text,
        document_text=document_text,
        query_length=recipe.query_length or 0,
        attend=recipe.attend,
        expansion_id=expansion_id or 0,
        skip_ids=tuple(sorted(i for i in skipped if i is not None)),
    )
    return late, {"query": "", "document": "", **rest}


def _marker(marker: str, token_id: Callable[[str], int | None]) -> tuple[int | None, str]:
    """Return a marker's token, or the text it is where there is none.

    PyLate saves "[Q] " with its space as one token; other tokenizers have it without.
    """
    for name in (marker, marker.strip()):
        if name and (found := token_id(name)) is not None:
            return found, ""
    return None, marker
