"""Are these the model authors' vectors? One source, level by level (spec/families.md section 4)."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ffwd_ort import CrossEncoder, LateInteractionEncoder, SentenceEncoder
from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import Checkpoint, read_checkpoint
from ffwd_ort.engine.sequences import POOLINGS
from ffwd_ort.engine.vectors import to_bits, to_int8
from ffwd_ort.errors import RefusedError
from ffwd_ort.families import CROSS_ENCODER, EMBEDDING, LATE
from ffwd_ort.sources import resolve
from ffwd_ort_conformance import references
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_DIFFERENCE, MAX_INVARIANCE, MAX_SCORE, MIN_COSINE, distance
from ffwd_ort_conformance.tiny import TEXTS

LIBRARIES = ("ffwd_ort", "onnxruntime", "tokenizers", "torch", "transformers", "sentence-transformers")
SAMPLE = (*TEXTS, " ".join(TEXTS), " ".join(TEXTS * 3), *HARD_STRINGS)
QUERIES = (TEXTS[0], "kelp", HARD_STRINGS[4])
# The causal model in transformers that stands in for authors' code, by model_type; it gets a full mask.
STAND_INS = {"bidirectional_pplx_qwen3": "qwen3", "qwen2": "qwen2"}
DEEP = 12  # layers beyond which invariance has four times the bar


@dataclass(frozen=True)
class Finding:
    """One level: what was compared, the worst of it, and the bar it is held to."""

    level: str
    compared: str
    worst: str
    bar: str
    passed: bool


@dataclass(frozen=True)
class Report:
    """Everything that was found of one source, and what was not covered."""

    source: str
    kind: str
    family: str
    reference: str
    note: str
    hashes: dict[str, str]
    versions: dict[str, str]
    findings: list[Finding]
    not_covered: list[str]

    @property
    def passed(self) -> bool:
        """Whether every level that was compared holds."""
        return bool(self.findings) and all(finding.passed for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return what the JSON report holds."""
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class Subject:
    """What is compared: a checkpoint's folder, and its model as served."""

    folder: Path
    checkpoint: Checkpoint
    encoder: Any
    open: Callable[..., Any]
    reference: str

    @property
    def both_ways_as(self) -> str | None:
        """Name the stand-in for authors' code that transformers does not have."""
        kind = self.checkpoint.model_type
        both_ways = self.checkpoint.is_causal is False or kind.startswith("bidirectional")
        return STAND_INS.get(kind) if both_ways else None


def conform(source: str, reference: str, cache_dir: Path | None = None) -> Report:
    """Compare a checkpoint with a reference; raise RefusedError if it cannot be served or the reference is not here."""
    cache = BundleCache(cache_dir)
    bundle = cache.open(source)
    manifest = bundle.manifest
    folder = resolve(source, cache.root).path
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise RefusedError(f"{source} is a bundle: a reference needs the checkpoint it was made of")
    kinds: dict[str, Any] = {EMBEDDING: SentenceEncoder, LATE: LateInteractionEncoder, CROSS_ENCODER: CrossEncoder}

    def open_encoder(provider: str = "cpu", **options: Any) -> Any:
        return kinds[manifest.kind](source, provider=provider, cache_dir=cache_dir, **options)

    with open_encoder() as encoder:
        subject = Subject(folder, read_checkpoint(folder), encoder, open_encoder, reference)
        missing: list[str] = []
        findings = list(LEVELS[manifest.kind](subject, missing))
    stand_in = subject.both_ways_as
    return Report(
        source=manifest.source.name,
        kind=manifest.kind,
        family=manifest.family,
        reference="transformers" if manifest.kind == CROSS_ENCODER and reference != "numpy" else reference,
        note=f"not the authors' code: transformers' {stand_in} under a full mask" if stand_in else "",
        hashes={"weights": manifest.source.weights_sha256, "tokenizer": manifest.source.tokenizer_sha256},
        versions={"python": platform.python_version(), **dict(_versions())},
        findings=findings,
        not_covered=missing,
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


# --- what the kinds have in common ----------------------------------------------------------------------


def _tokens(subject: Subject, texts: Sequence[str]) -> Finding:
    """Compare ids with the checkpoint's own tokenizer; a terminal that only the model's files ask for is ours."""
    tokenizer = subject.encoder.model.tokenizer
    mine = [text.ids.tolist() for text in tokenizer.encode(texts)]
    theirs = references.token_ids(subject.folder, texts)
    terminal = [mine[0][-1]] if tokenizer.specials == 1 and mine[0][-1] != theirs[0][-1] else []
    wrong = [i for i, ids in enumerate(theirs) if mine[i] != ids + terminal]
    worst = f"{len(texts) - len(wrong)} of {len(texts)} equal" + (f", not {texts[wrong[0]][:30]!r}" if wrong else "")
    return Finding("tokens", "ids of hard strings against the reference tokenizer", worst, "all", not wrong)


def _vectors(level: str, compared: str, mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Finding:
    found = distance(*(np.concatenate([np.atleast_2d(rows) for rows in side]) for side in (mine, theirs)))
    bar = f"<= {MAX_DIFFERENCE:.0e}, cosine >= {MIN_COSINE}"
    return Finding(level, f"{len(mine)} {compared}", str(found), bar, found.conforms)


def _scores(compared: str, mine: np.ndarray, theirs: np.ndarray) -> Finding:
    apart = np.abs(mine - theirs) / np.maximum(1, np.abs(theirs))
    worst = f"{apart.max():.1e} of max(1, |score|)"
    return Finding("score", f"{len(mine)} {compared}", worst, f"<= {MAX_SCORE:.0e}", bool(apart.max() <= MAX_SCORE))


def _bounded(level: str, compared: str, difference: float, bar: float) -> Finding:
    return Finding(level, compared, f"max abs diff {difference:.1e}", f"<= {bar:.0e}", difference <= bar)


def _invariance_bar(subject: Subject) -> float:
    return MAX_INVARIANCE * (4 if subject.encoder.model.manifest.sizes.layers > DEEP else 1)


# --- embeddings -----------------------------------------------------------------------------------------


def _embedding(subject: Subject, missing: list[str]) -> Iterator[Finding]:
    encoder = subject.encoder
    model = encoder.model
    encoded = model.tokenizer.encode(SAMPLE)
    texts = [text for text, one in zip(SAMPLE, encoded, strict=True) if one.counted <= model.cap.tokens]
    mine = encoder.encode(texts, normalize=False)
    if subject.reference != "numpy":
        yield _tokens(subject, SAMPLE)
        yield _vectors(
            "vector", f"texts against {subject.reference}", mine, _reference_vectors(subject, texts, missing)
        )
    norms = np.linalg.norm(mine, axis=1, keepdims=True)
    with subject.open(step_tokens=2048, threads=1) as other:
        others = [
            np.stack([encoder.encode(text, normalize=False) for text in texts]),
            encoder.encode(texts[::-1], normalize=False)[::-1],
            other.encode(texts, normalize=False),
        ]
    worst = max(float((np.abs(vectors - mine) / norms).max()) for vectors in others)
    yield _bounded("invariance", "alone, in another order, in other steps", worst, _invariance_bar(subject))
    few = texts[:4]
    with subject.open("numpy") as slow:
        difference = float((np.abs(slow.encode(few, normalize=False) - mine[: len(few)]) / norms[: len(few)]).max())
    yield _bounded("backend", f"{len(few)} texts against the NumPy evaluator", difference, MAX_BACKEND)
    if "perplexity" in model.manifest.api_modes:
        yield _codec(mine)
    missing += ["prompts other than the default one"] if model.prompts else []
    missing.append("texts over the cap")


def _codec(vectors: np.ndarray) -> Finding:
    """Compare with the formula in float64: int8 may be one off where it sits within 1e-4 of a boundary."""
    exact = np.tanh(vectors.astype(np.float64)) * 127
    at_boundary = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
    apart = np.abs(to_int8(vectors).astype(int) - np.rint(exact).astype(int))
    bits = np.unpackbits(to_bits(vectors), axis=-1, bitorder="little")[:, : vectors.shape[1]]
    right = bool((apart <= at_boundary).all() and (bits == (vectors >= 0)).all())
    return Finding("codec", "int8 and bits against the formula", f"{int((apart > 0).sum())} off by one", "exact", right)


def _reference_vectors(subject: Subject, texts: list[str], missing: list[str]) -> list[np.ndarray]:
    model = subject.encoder.model
    if subject.reference == "sentence-transformers" and subject.both_ways_as is None:
        reference = references.sentence_transformer(subject.folder, model.cap.tokens)
        own = references.token_ids(subject.folder, texts[:1])[0]
        mine = model.tokenizer.encode(texts[:1])[0].ids.tolist()
        # A terminal token that transformers does not append is written out for it.
        terminal = _terminal_text(subject) if len(mine) == len(own) + 1 else ""
        return list(references.encode(reference, [text + terminal for text in texts]))
    if model.manifest.dense or "max" in model.manifest.pooling:
        raise RefusedError("Dense modules and max pooling are compared with --reference sentence-transformers")
    missing.append("sentence-transformers' own pooling (the trunk is transformers', the pooling ours)")
    ids = [text.ids for text in model.tokenizer.encode(texts, prompt=model.prompt_for(None, None))]
    states = references.hidden_states(subject.folder, [one.tolist() for one in ids], both_ways_as=subject.both_ways_as)
    return [
        np.concatenate([POOLINGS[mode](len(one), 0).pool(state) for mode in model.manifest.pooling])
        for one, state in zip(ids, states, strict=True)
    ]


def _terminal_text(subject: Subject) -> str:
    model = subject.encoder.model
    last = int(model.tokenizer.encode(["a"])[0].ids[-1])
    return next((text for text, token in model.manifest.special_tokens.items() if token == last), "")


# --- the other kinds ------------------------------------------------------------------------------------


def _late(subject: Subject, missing: list[str]) -> Iterator[Finding]:
    encoder, documents = subject.encoder, list(SAMPLE)
    cap = encoder.model.cap.tokens
    mine = [*encoder.encode_queries(QUERIES, truncate=True), *encoder.encode_documents(documents, truncate=True)]
    scores = np.concatenate([encoder.score(query, documents, truncate=True) for query in QUERIES])
    if subject.reference == "sentence-transformers" and subject.both_ways_as is None:
        yield _tokens(subject, SAMPLE)
        reference = references.late_encoder(subject.folder, cap)
        queries = references.encode_tokens(reference, QUERIES, query=True)
        theirs = references.encode_tokens(reference, documents, query=False)
        yield _vectors("vector", "texts' tokens against sentence-transformers", mine, [*queries, *theirs])
        expected = [(q.astype(np.float64) @ d.astype(np.float64).T).max(axis=1).sum() for q in queries for d in theirs]
        yield _scores("MaxSim scores against sentence-transformers", scores, np.array(expected))
    elif subject.reference != "numpy":
        missing.append(f"{subject.reference} has no reference for this late-interaction layout")
    alone = [encoder.encode_documents([text], truncate=True)[0] for text in documents]
    worst = max(float(np.abs(a - b).max()) for a, b in zip(alone, mine[len(QUERIES) :], strict=True))
    yield _bounded("invariance", "documents alone", worst, _invariance_bar(subject))
    with subject.open("numpy") as slow:
        few = slow.encode_documents(documents[:3], truncate=True)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(few, mine[len(QUERIES) :], strict=False))
    yield _bounded("backend", "3 documents against the NumPy evaluator", worst, MAX_BACKEND)


def _cross_encoder(subject: Subject, missing: list[str]) -> Iterator[Finding]:
    encoder, documents = subject.encoder, list(SAMPLE)
    cap = encoder.model.cap.tokens
    mine = np.stack([encoder.score(query, documents, truncate=True) for query in QUERIES])
    if subject.reference != "numpy":
        yield _tokens(subject, SAMPLE)
        reference = references.CrossReference(subject.folder)
        theirs = [[reference.score(query, text, cap)[1] for text in documents] for query in QUERIES]
        yield _scores("logits against transformers", mine.reshape(-1), np.array(theirs).reshape(-1))
    alone = np.concatenate([encoder.score(QUERIES[0], [text], truncate=True) for text in documents])
    scale = np.maximum(1, np.abs(mine[0]))
    bar = 4 * _invariance_bar(subject)  # logits have no unit length
    yield _bounded("invariance", "pairs alone", float((np.abs(alone - mine[0]) / scale).max()), bar)
    with subject.open("numpy") as slow:
        few = slow.score(QUERIES[0], documents[:3], truncate=True)
    difference = float((np.abs(few - mine[0][:3]) / scale[:3]).max())
    yield _bounded("backend", "3 pairs against the NumPy evaluator", difference, MAX_BACKEND)


LEVELS: dict[str, Callable[[Subject, list[str]], Iterator[Finding]]] = {
    EMBEDDING: _embedding,
    LATE: _late,
    CROSS_ENCODER: _cross_encoder,
}
