"""Model families: what a plugin says of one, how plugins are found, and which checkpoints they admit."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.errors import AdmissionError, RefusedError
from ffwd_ort.late import LateRecipe

MODELS_GROUP = "ffwd_ort.models"
# What a bundle is for; `contextual` is an embedder's bundle under another flag.
EMBEDDING, CONTEXTUAL, LATE, CROSS_ENCODER = "embedding", "contextual", "late", "cross_encoder"
# Heads that make a checkpoint something else than an embedder, by the end of the architecture's name.
FOREIGN_HEADS: Mapping[str, str] = MappingProxyType(
    {
        "ForSequenceClassification": "a reranker or classifier",
        "ForTokenClassification": "a token classifier",
        "ForQuestionAnswering": "a question-answering model",
        "ForCausalLM": "a text generator",
    }
)


@dataclass(frozen=True)
class ModelFamily:
    """One family's difference: what its checkpoints mean where their files are silent.

    `model_types` are config.json's; `pooling` and `normalize` apply where no module says otherwise.
    `positions_key` names the config value that bounds a text: the first of them
    that there is. `position_offset` is the position id of a text's
    first token; with `pad_positions` it is one past the pad token's id, and a pad token that stands in a text
    keeps the pad's position and is not counted (fairseq's rule). `terminal` is a token put after every text
    where neither tokenizer.json nor tokenizer_config.json puts one. `needs_evidence` families are admitted as
    embedders only when sentence-transformers files say so; `architectures` are the ones admitted at all, and
    `rerankers` the ones that are cross-encoders. `separator` is the token between the chunks of a document,
    for families that were trained on chunks in context. `late` is the layout of late interaction where a
    checkpoint's modules make a vector of every token and its files say no more. `splitting` ("gpt2" or "qwen2") is
    how text is split before byte-level BPE, for checkpoints that have vocab.json and merges.txt alone.
    `only_native`: transformers has no such model, or sees it in another direction, so no exporter may ask it.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    rerankers: tuple[str, ...] = ()
    pooling: str = "mean"
    normalize: bool = False
    position_offset: int = 0
    pad_positions: bool = False
    positions_key: tuple[str, ...] = ("max_position_embeddings",)
    terminal: str | None = None
    needs_evidence: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    api_modes: tuple[str, ...] = ("openai",)
    separator: str | None = None
    late: LateRecipe | None = None
    splitting: str | None = None
    only_native: bool = False

    def capacity(self, checkpoint: Checkpoint) -> int:
        """Return the most tokens one text may have by the model's positions."""
        # Where a table of learned positions is indexed from the offset, its first rows are never used.
        return checkpoint.integer(*self.positions_key) - self.offset(checkpoint)

    def offset(self, checkpoint: Checkpoint) -> int:
        """Return the position id of a text's first token."""
        return checkpoint.pad_id + 1 if self.pad_positions else self.position_offset


@dataclass(frozen=True)
class Plugin:
    """One entry point: the object it loads, or why it could not be loaded."""

    name: str
    source: str
    value: Any = None
    problem: str | None = None


@dataclass(frozen=True)
class Admission:
    """A family that serves a checkpoint, with the kind and the evidence found."""

    family: ModelFamily
    kind: str
    evidence: str


def find_plugins(group: str, expected: type) -> list[Plugin]:
    """Load every entry point of a group; one that is broken is reported by name and stops nothing else."""
    return [_load(point, expected) for point in sorted(entry_points(group=group), key=lambda p: p.name)]


# Whatever a stranger's module raises while it is imported; some end the interpreter.
BROKEN = (Exception, SystemExit)


def _load(point: EntryPoint, expected: type) -> Plugin:
    source = point.value
    try:
        source = f"{point.dist.name} {point.dist.version}" if point.dist else source
        value = point.load()
    except BROKEN as error:
        return Plugin(point.name, source, problem=f"{type(error).__name__}: {error}")
    if not isinstance(value, expected):
        return Plugin(
            point.name, source, problem=f"{point.value} is a {type(value).__name__}, not a {expected.__name__}"
        )
    return Plugin(point.name, source, value)


def find_plugin(group: str, name: str, expected: type) -> Any:
    """Load the one entry point of this name; raise RefusedError if it is missing or broken."""
    for point in entry_points(group=group, name=name):
        plugin = _load(point, expected)
        if plugin.problem:
            raise RefusedError(f"the {group} plugin {name!r} of {plugin.source} is broken: {plugin.problem}")
        return plugin.value
    known = ", ".join(sorted(p.name for p in entry_points(group=group))) or "none"
    raise RefusedError(f"there is no {group} plugin {name!r}; installed: {known}")


def plugin_fingerprint(group: str, name: str) -> str:
    """Digest the source of the package a plugin lives in, without importing it: graph libraries are slow to import."""
    for point in entry_points(group=group, name=name):
        try:
            package, _, module = point.module.rpartition(".")
            spec = find_spec(package or module)
        except BROKEN as error:
            raise RefusedError(f"the {group} plugin {name!r} is broken: {type(error).__name__}: {error}") from None
        folders = (spec.submodule_search_locations or [str(Path(spec.origin or "").parent)]) if spec else []
        files = sorted(path for folder in folders for path in Path(folder).glob("*.py"))
        if not files:
            raise RefusedError(f"the {group} plugin {name!r} is broken: there are no source files at {point.module}")
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
    known = ", ".join(sorted(p.name for p in entry_points(group=group))) or "none"
    raise RefusedError(f"there is no {group} plugin {name!r}; installed: {known}")


def families() -> Iterator[ModelFamily]:
    """Yield the families whose plugins load."""
    for plugin in find_plugins(MODELS_GROUP, ModelFamily):
        if plugin.problem is None:
            yield plugin.value


def admit(checkpoint: Checkpoint, otherwise: ModelFamily | None = None) -> Admission:
    """Find the family that serves this checkpoint: as an embedder, for late interaction or as a cross-encoder.

    `otherwise` is the family of what no plugin claims. Fails closed: raises AdmissionError saying what was found,
    what is missing and which families exist.
    """
    installed = list(families())
    names = ", ".join(f"{f.name} ({', '.join(f.model_types)})" for f in installed) or "none"
    found = (
        f"{checkpoint.path.name}: model_type {checkpoint.model_type!r}, architectures {list(checkpoint.architectures)}"
    )
    family = next((f for f in installed if checkpoint.model_type in f.model_types), otherwise)
    if family is None:
        raise AdmissionError(
            f"{found}; no installed family serves that. Families: {names}. What transformers has a model of, "
            "`ffwd-ort export --exporter optimum` makes a bundle of, where sentence-transformers files pool it"
        )
    reranker = next((a for a in checkpoint.architectures if a in family.rerankers), None)
    if reranker is not None:
        if checkpoint.labels != 1:
            raise AdmissionError(f"{found}; {reranker} has {checkpoint.labels} labels, and reranking needs one")
        return Admission(family, CROSS_ENCODER, f"its architecture {reranker}")
    for architecture in checkpoint.architectures:
        for head, meaning in FOREIGN_HEADS.items():
            if architecture.endswith(head) and architecture not in family.architectures:
                raise AdmissionError(f"{found}; {architecture} is {meaning}, not an embedding model. Families: {names}")
        if family.architectures and architecture not in family.architectures:
            raise AdmissionError(
                f"{found}; {architecture} is not an architecture of the family {family.name} "
                f"({', '.join((*family.architectures, *family.rerankers))}). Families: {names}"
            )
    if checkpoint.scores_tokens:
        return Admission(family, LATE, _late_evidence(checkpoint, family, found))
    declared = checkpoint.pooling is not None
    if family.needs_evidence and not declared:
        raise AdmissionError(
            f"{found}; evidence missing: sentence-transformers files (modules.json or 1_Pooling) that make "
            f"this an embedding model. Families: {names}"
        )
    evidence = "its pooling module" if declared else f"the family's default recipe ({family.pooling} pooling)"
    return Admission(family, EMBEDDING, evidence)


def _late_evidence(checkpoint: Checkpoint, family: ModelFamily, found: str) -> str:
    if checkpoint.pooling is not None:
        raise AdmissionError(f"{found}; its modules both pool a text and make a vector of every token")
    if checkpoint.late is not None:
        return "its late-interaction files"
    if family.late is not None:
        return f"its Dense module on every token, laid out as the family {family.name} does"
    raise AdmissionError(
        f"{found}; its modules make a vector of every token, but nothing says how queries and documents are laid "
        "out: evidence missing is PyLate's config_sentence_transformers.json (query_prefix, document_prefix, "
        "query_length) or a MultiVectorMask module"
    )
