"""Text to token ids: exactly those of the checkpoint's own tokenizer, prompts and truncation included."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ffwd_ort.engine.sequences import Ids
from ffwd_ort.errors import BundleError, TokenizationFailed

# A text of more characters than this for each token that it may have is looked at in part first.
CHARS_PER_TOKEN = 8
SHORTEST_PART = 4096  # characters
# Tokens near the end of a part may be others in the whole text: WordPiece makes one token of a word of over 100
# characters, and up to 100 of the beginning of it.
MARGIN = 128
GROUP_CHARS = 1 << 20  # tokenised at a time: the library keeps 200 bytes and more for each token of a group


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One text's ids, after a cut if there was one; `counted` is how many tokens it had before.

    `at_least`: the text was certainly too long before all of it had been looked at. `left`: it was cut at its
    beginning.
    """

    ids: Ids
    counted: int
    at_least: bool = False
    left: bool = False

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.counted > len(self.ids)

    @property
    def dropped(self) -> int:
        """Tokens cut off at its beginning, or as many as that it had."""
        cut = self.counted - len(self.ids)
        return 0 if not self.left else self.counted if self.at_least else cut


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A query and a document in the tokenizer's own pair layout, after a cut of the document if there was one.

    `counted` and `at_least` are as for one text; `query` is the query's share: its tokens with the special ones up to
    and including the separator behind it, and `query_at_least` is for it what `at_least` is for the pair.
    """

    ids: Ids
    types: Ids
    counted: int
    query: int
    at_least: bool = False
    query_at_least: bool = False

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.counted > len(self.ids)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What the library made of a text, or of the part of it that was enough."""

    encoding: tokenizers.Encoding
    counted: int
    at_least: bool


class Tokenizer:
    """A bundle's tokenizer. Safe to use from several threads: nothing in it changes after loading."""

    def __init__(self, path: Path, *, lowercase: bool = False) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"{path} is not a tokenizer: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._lowercase = lowercase
        self.specials: int = self._tokenizer.num_special_tokens_to_add(False)
        self.pair_specials: int = self._tokenizer.num_special_tokens_to_add(True)

    def encode(self, texts: Sequence[str], **options: Any) -> list[Encoded]:
        """Tokenise texts as `encode_each` does."""
        return list(self.encode_each(texts, **options))

    def encode_each(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        max_length: int | None = None,
        direction: str = "right",
        enough: int | None = None,
    ) -> Iterator[Encoded]:
        """Tokenise texts one after the other, each with the prompt directly before it.

        With `max_length`, texts longer than that many tokens are cut at their end (`direction="right"`) or
        beginning ("left"); special tokens stay. With `enough`, a text is no longer looked at once it certainly has
        more tokens than that; `max_length` must not be above it. Raises TokenizationFailed, its argument the text's
        index.
        """
        prepared = [self._prepare(prompt + text) for text in texts]
        for index, whole in enumerate(self._each(prepared, range(len(texts)), True, direction, enough)):
            encoding = whole.encoding
            if whole.counted == 0:
                raise TokenizationFailed(index)
            if max_length is not None and whole.counted > max_length:
                part = self._part(prepared[index], len(encoding), direction, enough)
                encoding = self._cut(part, max_length, direction)
            yield Encoded(np.array(encoding.ids, np.int32), whole.counted, whole.at_least, direction == "left")

    def encode_pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_length: int | None = None,
        max_document: int | None = None,
        direction: str = "right",
        enough: int | None = None,
    ) -> Iterator[EncodedPair]:
        """Tokenise a query with each document; with `max_length`, only the document is ever cut, to fit the pair.

        `max_document` bounds the document's own segment: its tokens and the special ones after it. `enough` is as for
        `encode_each`, for the pair. Raises TokenizationFailed, its argument the document's index, None for the query.
        """
        (left,) = self._each([self._prepare(query)], [None], False, "right", enough)
        head = left.counted + self.specials  # what stands before the document, its separator included
        prepared = [self._prepare(document) for document in documents]
        for right in self._each(prepared, range(len(documents)), False, direction, enough):
            encoding = right.encoding
            counted = left.counted + right.counted + self.pair_specials
            room = len(encoding) if max_length is None else max_length - left.counted - self.pair_specials
            if max_document is not None:
                room = min(room, max(1, max_document - (self.pair_specials - self.specials)))
            if 0 < room < len(encoding):
                encoding.truncate(room, direction=direction)
            whole = self._tokenizer.post_process(left.encoding, encoding)
            ids, types = np.array(whole.ids, np.int32), np.array(whole.type_ids, np.int32)
            yield EncodedPair(ids, types, counted, head, left.at_least or right.at_least, left.at_least)

    def encode_chunks(
        self, chunks: Sequence[str], *, direction: str = "right", enough: int | None = None
    ) -> Iterator[Encoded]:
        """Tokenise chunks without special tokens; raises TokenizationFailed, its argument the chunk's index."""
        prepared = [self._prepare(chunk) for chunk in chunks]
        for index, whole in enumerate(self._each(prepared, range(len(chunks)), False, direction, enough)):
            if whole.counted == 0:
                raise TokenizationFailed(index)
            yield Encoded(np.array(whole.encoding.ids, np.int32), whole.counted, whole.at_least)

    def _prepare(self, text: str) -> str:
        return text.lower() if self._lowercase else text

    def _each(
        self, texts: Sequence[str], names: Sequence[int | None], specials: bool, direction: str, enough: int | None
    ) -> Iterator[_Whole]:
        """Tokenise texts in groups, so that few tokens are held by the library; long ones apart, in part."""
        start = 0
        while start < len(texts):
            end, chars = start, 0
            while end < len(texts) and not self._is_long(texts[end], enough):
                chars += len(texts[end])
                if chars > GROUP_CHARS and end > start:
                    break
                end += 1
            for encoding in self._group(texts[start:end], names[start:end], specials):
                yield _Whole(encoding, len(encoding), False)
            if end < len(texts) and self._is_long(texts[end], enough):
                yield self._long(texts[end], names[end], specials, direction, enough or 0)
                end += 1
            start = end

    def _is_long(self, text: str, enough: int | None) -> bool:
        return enough is not None and len(text) > max(SHORTEST_PART, enough * CHARS_PER_TOKEN)

    def _long(self, text: str, name: int | None, specials: bool, direction: str, enough: int) -> _Whole:
        """Tokenise as much of a text as shows it to be too long, or all of it."""
        chars = max(SHORTEST_PART, enough * CHARS_PER_TOKEN)
        while chars < len(text):
            encoding = self._one(name, text[:chars] if direction == "right" else text[-chars:], specials)
            if len(encoding) > enough + MARGIN:
                return _Whole(encoding, len(encoding) - MARGIN, True)
            chars *= 4
        whole = self._one(name, text, specials)
        return _Whole(whole, len(whole), False)

    def _part(self, text: str, tokens: int, direction: str, enough: int | None) -> str:
        """Return as much of a text as certainly has the tokens that a cut keeps."""
        if not self._is_long(text, enough):
            return text
        chars = max(SHORTEST_PART, (enough or 0) * CHARS_PER_TOKEN)
        while chars < len(text):
            part = text[:chars] if direction == "right" else text[-chars:]
            if len(self._one(None, part, True)) >= tokens:
                return part
            chars *= 4
        return text

    def _group(self, texts: Sequence[str], names: Sequence[int | None], specials: bool) -> list[tokenizers.Encoding]:
        """Tokenise a few texts at once; a failure names its text."""
        try:
            return list(self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=specials)) if texts else []
        except Exception:  # the library raises bare Exception; one text is to blame
            return [self._one(name, text, specials) for name, text in zip(names, texts, strict=True)]

    def _one(self, name: int | None, text: str, specials: bool) -> tokenizers.Encoding:
        try:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=specials)
        except Exception:
            raise TokenizationFailed(name) from None
        return encoding

    def prompt_tokens(self, prompt: str, dropped: int = 0) -> int:
        """Count the leading tokens that a prompt takes: its own but the first `dropped`, and the special one before."""
        if not prompt:
            return 0
        lead = self._leading_specials()
        own = len(self._tokenizer.encode(self._prepare(prompt))) - self.specials
        return lead + max(0, own - dropped)

    def _leading_specials(self) -> int:
        special = self._tokenizer.encode("").ids
        with_text = self._tokenizer.encode("a").ids
        return next((i for i, (a, b) in enumerate(zip(special, with_text, strict=False)) if a != b), len(special))

    def _cut(self, text: str, max_length: int, direction: str) -> tokenizers.Encoding:
        # What the library does with truncation enabled, without changing the shared tokenizer.
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(max_length - self.specials, direction=direction)
        return self._tokenizer.post_process(encoding)
