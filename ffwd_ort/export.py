"""Turn a checkpoint into a bundle: admission, graph and weights by an exporter plugin, tokenizer, manifest."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ffwd_ort.bundle import FORMAT, TOKENIZER, Bundle, Late, Manifest, Sizes, Source, sha256, write_bundle
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.engine.shapes import seq_ladder
from ffwd_ort.errors import AdmissionError, CheckpointError
from ffwd_ort.families import (
    CONTEXTUAL,
    CROSS_ENCODER,
    EMBEDDING,
    LATE,
    Admission,
    ModelFamily,
    admit,
    find_plugin,
    plugin_fingerprint,
)
from ffwd_ort.late import LateRecipe, settle_late
from ffwd_ort.modules import PoolingConfig
from ffwd_ort.tokenizer_file import TokenizerFacts, write_tokenizer
from ffwd_ort.version import VERSION

EXPORTERS_GROUP = "ffwd_ort.exporters"
TARGETS = ("cpu",)
# int8: the linear layers in 8 bits, approximately.
F32, INT8 = "f32", "int8"
DTYPES = (F32, INT8)
# `--exporter`: the family's own plugin, or the one plugin that exports what transformers has a model of.
NATIVE, OPTIMUM = "native", "optimum"
# `--kind`: the kind of bundle that each kind of label is served from.
SERVED_FROM = {"embedding": EMBEDDING, CONTEXTUAL: EMBEDDING, LATE: LATE, "reranker": CROSS_ENCODER}

Progress = Callable[[str, int, int], None]  # what, done, total


@dataclass(frozen=True)
class GraphOrder:
    """The graph that is wanted of a checkpoint: its head, the most tokens a text may have, one of DTYPES."""

    checkpoint: Checkpoint
    head: str
    positions: int
    dtype: str = F32


@dataclass(frozen=True)
class GraphFacts:
    """What an exporter says of the graph it wrote: its inputs in order, the trunk's measures.

    `span` is how many scores a token keeps in the long form of attention, in each head; 0 with a flash kernel.
    `packs`: several texts may share a row.
    """

    inputs: tuple[str, ...]
    sizes: Sizes
    span: int = 0
    packs: bool = True


@dataclass(frozen=True)
class Exporter:
    """A plugin that writes model.onnx and model.onnx.data of a family into a folder.

    `summary` is for people; `dtypes` are those of DTYPES that it can write.
    """

    family: str
    write: Callable[[GraphOrder, Path, Progress], GraphFacts]
    summary: str = "ONNX, opset 23"
    dtypes: tuple[str, ...] = (F32,)


@dataclass(frozen=True)
class Export:
    """A checkpoint that was admitted. Nothing is written yet, and the exporter is not imported yet.

    `head` is what the graph must put out: "pooled" [rows, slots, dim], "scores" [rows, slots, 1] or "tokens"
    [rows, seq, dim], whose rest is done by the host. `exporter` is the plugin's name; `exporter_version` digests its
    source, so that a bundle is made anew when that changes.
    """

    checkpoint: Checkpoint
    admission: Admission
    exporter: str
    exporter_version: str
    head: str
    pooling: PoolingConfig
    normalize: bool
    dtype: str = F32

    def key(self, hashes: dict[str, str]) -> str:
        """Name everything that the bundle's bytes depend on, besides the files hashed in `hashes`."""
        family = self.admission.family
        recipe = (self.admission.kind, self.head, self.pooling, self.normalize, family, self.checkpoint.late)
        facts = (
            FORMAT,
            VERSION,  # a stranger's graph is built of our blocks, whose source his fingerprint does not cover
            *recipe,
            family.capacity(self.checkpoint),
            self.exporter,
            self.exporter_version,
            TARGETS[0],
            self.dtype,
            *sorted(hashes.items()),
        )
        return "\n".join(map(str, facts))


def plan_export(checkpoint: Checkpoint, exporter: str = NATIVE, wanted: str | None = None, dtype: str = F32) -> Export:
    """Admit a checkpoint and settle its recipe.

    `wanted` is the kind of label that must be able to serve it, a key of SERVED_FROM; `dtype` one of DTYPES. Raises
    AdmissionError for what cannot be served correctly.
    """
    admission = admit(checkpoint, _fallback(checkpoint) if exporter == OPTIMUM else None)
    family = admission.family
    check_kind(wanted, checkpoint.path.name, admission.kind, family.name, in_context=family.separator is not None)
    kind, pooling = admission.kind, checkpoint.pooling or PoolingConfig((family.pooling,))
    normalize = family.normalize if checkpoint.normalize is None else checkpoint.normalize
    head = "tokens" if "max" in pooling.modes else "pooled"
    if kind == CROSS_ENCODER:  # the classifier reads the first token's state
        head, pooling, normalize = "scores", PoolingConfig(("cls",)), False
    if kind == LATE:
        head, pooling, normalize = "tokens", PoolingConfig(()), late_recipe(checkpoint, family).normalize
    if kind == EMBEDDING and checkpoint.dense_modules and (len(pooling.modes) > 1 or head == "tokens"):
        raise AdmissionError(
            f"{checkpoint.path.name}: Dense modules after {' and '.join(pooling.modes)} pooling are not available; "
            "leaving them out would give wrong vectors"
        )
    if exporter == OPTIMUM:
        _check_optimum(checkpoint, admission, head)
    plugin = OPTIMUM if exporter == OPTIMUM else family.name
    version = plugin_fingerprint(EXPORTERS_GROUP, plugin)
    return Export(checkpoint, admission, plugin, version, head, pooling, normalize, dtype)


def check_kind(wanted: str | None, name: str, kind: str, family: str, *, in_context: bool) -> None:
    """Raise AdmissionError if what is of this kind and family cannot serve the labels that `--kind` names."""
    if wanted is None:
        return
    if SERVED_FROM[wanted] != kind:
        raise AdmissionError(f"--kind {wanted}: {name} is of kind {kind}, which --kind {wanted} cannot serve")
    if wanted == CONTEXTUAL and not in_context:
        raise AdmissionError(
            f"--kind {wanted}: {name} is of kind {kind} and of the family {family}, which was not trained on chunks "
            "in context"
        )


def _fallback(checkpoint: Checkpoint) -> ModelFamily:
    """Make the family of what only optimum can export: its files must say how it pools."""
    # With that evidence a decoder is an embedder, though its config.json still names the head it was trained with.
    decoders = tuple(name for name in checkpoint.architectures if name.endswith("ForCausalLM"))
    return ModelFamily(OPTIMUM, (checkpoint.model_type,), decoders, needs_evidence=True)


def _check_optimum(checkpoint: Checkpoint, admission: Admission, head: str) -> None:
    """Raise AdmissionError for what would be left out of an export by optimum, or be wrong in it."""
    family, dense = admission.family, ", ".join(module.folder for module in checkpoint.dense_modules)
    problems = (
        (admission.kind != EMBEDDING, f"it is of kind {admission.kind}, and only embedding models are exported so"),
        (family.only_native, f"transformers has no model of the family {family.name} as it was trained"),
        (bool(checkpoint.config.get("auto_map")), "config.json's auto_map names its authors' code, which is never run"),
        (bool(dense), f"its Dense modules ({dense}) would be left out"),
        (head != "pooled", "max pooling is not available"),
        (
            family.name == OPTIMUM and checkpoint.tokenizer_file.name != "tokenizer.json",
            f"how {checkpoint.tokenizer_file.name} is read is known only for families with a plugin; a tokenizer.json "
            "would say it",
        ),
    )
    problem = next((problem for applies, problem in problems if applies), None)
    if problem is not None:
        raise AdmissionError(f"--exporter {OPTIMUM}: {checkpoint.path.name}: {problem}")


def late_recipe(checkpoint: Checkpoint, family: ModelFamily) -> LateRecipe:
    """Return the layout of a checkpoint that was admitted for late interaction."""
    recipe = checkpoint.late or family.late
    assert recipe is not None  # admission saw to it
    return recipe


def export_bundle(
    export: Export,
    target: Path,
    *,
    hashes: dict[str, str],
    name: str | None = None,
    revision: str | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Bundle:
    """Write the bundle at `target`, atomically.

    `hashes` has the SHA-256 of each weight file and of the tokenizer, by file name. Raises BundleError if
    it cannot be written, CheckpointError if the weights are not what the graph needs.
    """
    checkpoint, family = export.checkpoint, export.admission.family
    exporter = find_plugin(EXPORTERS_GROUP, export.exporter, Exporter)
    if export.dtype not in exporter.dtypes:
        raise AdmissionError(
            f"{checkpoint.path.name}: the exporter {export.exporter} writes {', '.join(exporter.dtypes)}, "
            f"not {export.dtype}"
        )

    def fill(folder: Path) -> Manifest:
        positions, dense = family.capacity(checkpoint), checkpoint.dense_modules
        facts = exporter.write(GraphOrder(checkpoint, export.head, positions, export.dtype), folder, progress)
        tokenizer = write_tokenizer(checkpoint, family, folder / TOKENIZER)
        if tokenizer.bound > facts.sizes.vocabulary:
            raise CheckpointError(
                f"{checkpoint.tokenizer_file}: token id {tokenizer.bound - 1} has no row in the embedding of "
                f"{facts.sizes.vocabulary} rows"
            )
        prompts = dict(checkpoint.prompts) or dict(family.prompts)
        late, prompts = _late(export, prompts, tokenizer)
        return Manifest(
            format=FORMAT,
            family=family.name,
            kind=export.admission.kind,
            head=export.head,
            source=Source(
                name=name or checkpoint.path.name,
                revision=revision,
                weights_sha256=weights_digest(checkpoint, hashes),
                tokenizer_sha256=hashes[checkpoint.tokenizer_file.name],
            ),
            dim=_dim(export, facts),
            dense=len(dense),
            pooling=export.pooling.modes,
            include_prompt=export.pooling.include_prompt,
            normalize=export.normalize,
            api_modes=family.api_modes,
            prompts=prompts,
            default_prompt_name=checkpoint.default_prompt_name,
            trained_length=checkpoint.trained_length,
            lowercase=checkpoint.lowercase,
            matryoshka_dims=checkpoint.matryoshka_dims,
            separator=tokenizer.token_id(family.separator) if family.separator else None,
            late=late,
            pad_id=checkpoint.pad_id,
            special_tokens=tokenizer.special,
            positions=positions,
            position_offset=family.offset(checkpoint),
            pad_positions=family.pad_positions,
            dtype=export.dtype,
            target=TARGETS[0],
            inputs=facts.inputs,
            span=facts.span,
            packs=facts.packs,
            seqs=seq_ladder(positions),
            sizes=facts.sizes,
            exporter=exporter.family,
            exporter_version=export.exporter_version,
            files={},
        )

    return write_bundle(target, fill)


def _dim(export: Export, facts: GraphFacts) -> int:
    """Return the width of what a text comes to: a vector's values, or a pair's one score."""
    if export.admission.kind == CROSS_ENCODER:
        return 1
    dense = export.checkpoint.dense_modules
    return dense[-1].out_features if dense else facts.sizes.hidden * max(1, len(export.pooling.modes))


def _late(export: Export, prompts: dict[str, str], tokenizer: TokenizerFacts) -> tuple[Late | None, dict[str, str]]:
    """Settle the layout of late interaction, and the prompts that are left beside its markers."""
    if export.admission.kind != LATE:
        return None, prompts
    expansions = (export.checkpoint.token("mask_token"), "[MASK]", export.checkpoint.token("eos_token"))
    recipe = late_recipe(export.checkpoint, export.admission.family)
    return settle_late(recipe, prompts, tokenizer.token_id, expansions)


def weights_digest(checkpoint: Checkpoint, hashes: dict[str, str]) -> str:
    """Return the SHA-256 of the weights: of the file, or of the sorted lines `sha256  name` of several shards."""
    names = sorted(path.name for path in checkpoint.weight_files)
    if len(names) == 1:
        return hashes[names[0]]
    listing = "".join(f"{hashes[name]}  {name}\n" for name in names)
    return hashlib.sha256(listing.encode()).hexdigest()


def hash_files(checkpoint: Checkpoint, sha: Callable[[Path], str] = sha256) -> dict[str, str]:
    """Return the SHA-256 of every file that the bundle depends on, by its path within the checkpoint."""
    files = {*checkpoint.weight_files, *checkpoint.read_files, *(dense.weights for dense in checkpoint.dense_modules)}
    hashes = {str(path.relative_to(checkpoint.path)): sha(path) for path in sorted(files)}
    hashes |= {path.name: sha(path) for path in (*checkpoint.weight_files, checkpoint.tokenizer_file)}
    return hashes
