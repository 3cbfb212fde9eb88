"""Text to token ids: exactly those of the checkpoint's own tokenizer, prompts and truncation included."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from ffwd_ort.engine.sequences import Ids
from ffwd_ort.errors import BundleError, TokenizationFailed


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One text's ids, after a cut if there was one; `counted` is how many tokens it had before."""

    ids: Ids
    counted: int

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.counted > len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A query and a document in the tokenizer's own pair layout, after a cut of the document if there was one.

    `counted` is how many tokens the pair had before; `query` is the query's share: its tokens with the special
    ones up to and including the separator behind it.
    """

    ids: Ids
    types: Ids
    counted: int
    query: int

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.counted > len(self.ids)


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

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        max_length: int | None = None,
        direction: str = "right",
    ) -> list[Encoded]:
        """Tokenise texts, each with the prompt directly before it.

        With `max_length`, texts longer than that many tokens are cut at their end (`direction="right"`) or
        beginning ("left"); special tokens stay. Raises TokenizationFailed, its argument the text's index.
        """
        if prompt:
            texts = [prompt + text for text in texts]
        if self._lowercase:
            texts = [text.lower() for text in texts]
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=True)
        except Exception:  # the library raises bare Exception; one text is to blame
            encodings = [self._encode_one(index, text) for index, text in enumerate(texts)]
        result = []
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            counted = len(encoding)
            if counted == 0:
                raise TokenizationFailed(index)
            if max_length is not None and counted > max_length:
                encoding = self._cut(text, max_length, direction)
            result.append(Encoded(np.array(encoding.ids, np.int32), counted))
        return result

    def encode_pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_length: int | None = None,
        max_document: int | None = None,
        direction: str = "right",
    ) -> list[EncodedPair]:
        """Tokenise a query with each document; with `max_length`, only the document is ever cut, to fit the pair.

        `max_document` bounds the document's own segment: its tokens and the special ones after it. Raises
        TokenizationFailed, its argument the document's index, or None for the query.
        """
        (left,), rights = self._bare([query], [None]), self._bare(documents, range(len(documents)))
        head = len(left) + self.specials  # what stands before the document, its separator included
        pairs = []
        for right in rights:
            counted = len(left) + len(right) + self.pair_specials
            room = len(right) if max_length is None else max_length - len(left) - self.pair_specials
            if max_document is not None:
                room = min(room, max(1, max_document - (self.pair_specials - self.specials)))
            if 0 < room < len(right):
                right.truncate(room, direction=direction)
            whole = self._tokenizer.post_process(left, right)
            pairs.append(EncodedPair(np.array(whole.ids, np.int32), np.array(whole.type_ids, np.int32), counted, head))
        return pairs

    def _bare(self, texts: Sequence[str], names: Iterable[int | None]) -> list[tokenizers.Encoding]:
        """Tokenise without special tokens; a failure names its text."""
        if self._lowercase:
            texts = [text.lower() for text in texts]
        try:
            return list(self._tokenizer.encode_batch(list(texts), add_special_tokens=False))
        except Exception:  # the library raises bare Exception; one text is to blame
            return [self._encode_one(name, text, False) for name, text in zip(names, texts, strict=True)]

    def encode_chunks(self, chunks: Sequence[str]) -> list[Ids]:
        """Tokenise chunks without special tokens; raises TokenizationFailed, its argument the chunk's index."""
        encodings = self._bare(chunks, range(len(chunks)))
        for index, encoding in enumerate(encodings):
            if len(encoding) == 0:
                raise TokenizationFailed(index)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def prompt_tokens(self, prompt: str) -> int:
        """Count the leading tokens that a prompt takes: its own and the special one before it."""
        if not prompt:
            return 0
        after = self.specials - self._leading_specials()
        return len(self._tokenizer.encode(prompt.lower() if self._lowercase else prompt)) - after

    def _leading_specials(self) -> int:
        special = self._tokenizer.encode("").ids
        with_text = self._tokenizer.encode("a").ids
        return next((i for i, (a, b) in enumerate(zip(special, with_text, strict=False)) if a != b), len(special))

    def _encode_one(self, index: int | None, text: str, specials: bool = True) -> tokenizers.Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=specials)
        except Exception:
            raise TokenizationFailed(index) from None

    def _cut(self, text: str, max_length: int, direction: str) -> tokenizers.Encoding:
        # What the library does with truncation enabled, without changing the shared tokenizer.
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(max_length - self.specials, direction=direction)
        return self._tokenizer.post_process(encoding)
