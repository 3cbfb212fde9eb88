"""ffwd-ort inspect: what a source is, and how it would be served."""

from collections.abc import Iterator
from pathlib import Path

from ffwd_ort.bundle import Bundle, is_bundle, open_bundle, verify_hashes
from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import Checkpoint, read_checkpoint
from ffwd_ort.errors import UsageError
from ffwd_ort.export import late_recipe, plan_export
from ffwd_ort.families import LATE, ModelFamily
from ffwd_ort.late import LateRecipe
from ffwd_ort.sources import default_cache_dir, resolve


def describe_source(source: str, cache_dir: Path | None, *, verify: bool) -> Iterator[tuple[str, str]]:
    """Yield (name, value) lines; raise RefusedError for what could not be served, saying why."""
    resolved = resolve(source, cache_dir or default_cache_dir())
    if resolved.revision:
        yield "revision", resolved.revision
    if is_bundle(resolved.path):
        yield from _bundle_lines(open_bundle(resolved.path), verify)
        return
    yield from _checkpoint_lines(read_checkpoint(resolved.path))
    cached = BundleCache(cache_dir).find(str(resolved.path))  # not `source`: a branch may move in between
    yield "exported bundle", str(cached.path) if cached else "not yet"
    if verify:
        if cached is None:
            raise UsageError(f"--verify checks a bundle's hashes; {source} has not been exported yet")
        verify_hashes(cached)
        yield "verified", "every hash of the exported bundle is right"


def _checkpoint_lines(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    export = plan_export(checkpoint)
    family = export.admission.family
    capacity, trained = family.capacity(checkpoint), checkpoint.trained_length
    yield "checkpoint", str(checkpoint.path)
    yield "family", f"{family.name} (model_type {checkpoint.model_type}, {', '.join(checkpoint.architectures)})"
    yield "kind", f"{export.admission.kind}, by {export.admission.evidence}"
    if export.admission.kind == LATE:
        yield "layout", _layout(late_recipe(checkpoint, family))
    else:
        without = "" if export.pooling.include_prompt else ", without the prompt"
        yield "pooling", " + ".join(export.pooling.modes) + without
    yield "normalised", "yes" if export.normalize else "no"
    if (activation := _activation(checkpoint)) is not None:
        yield "activation", f"{activation} in its files: never applied, scores are raw logits"
    yield "prompts", _prompts(checkpoint, family)
    yield "default prompt", checkpoint.default_prompt_name or "none"
    yield "tokens a text", f"{capacity} (model positions)"
    if trained is not None:
        below = f"; shorter than its positions: :max_seq={trained} keeps to it" if trained < capacity else ""
        yield "trained length", f"{trained}{below}"
    yield "Matryoshka", _matryoshka(checkpoint.matryoshka_dims)
    yield "weights", ", ".join(path.name for path in checkpoint.weight_files)
    yield "tokenizer", checkpoint.tokenizer_file.name


def _layout(recipe: LateRecipe) -> str:
    seen = "which the others see" if recipe.attend else "which score but are not seen"
    padding = f"padded to {recipe.query_length} tokens, {seen}" if recipe.query_length else "not padded"
    markers = f"markers {recipe.query_marker!r} and {recipe.document_marker!r}"
    return f"queries {padding}; {markers}; {len(recipe.skip_words)} words of documents do not score"


def _activation(checkpoint: Checkpoint) -> str | None:
    """Name the activation that sentence-transformers would put on a cross-encoder's logit."""
    newer = checkpoint.config.get("sentence_transformers")
    named = newer.get("activation_fn") if isinstance(newer, dict) else None
    named = named or checkpoint.config.get("sbert_ce_default_activation_function")
    return str(named) if named and checkpoint.is_cross_encoder else None


def _prompts(checkpoint: Checkpoint, family: ModelFamily) -> str:
    for prompts, whose in ((checkpoint.prompts, ""), (family.prompts, " (the family's, its files have none)")):
        if prompts:
            return ", ".join(f"{k}={v!r}" for k, v in prompts.items()) + whose
    return "none in its files; :query= or :prompts= gives some, a model's name never does"


def _matryoshka(dims: tuple[int, ...] | None) -> str:
    if dims is None:
        return "not declared"
    return ", ".join(map(str, dims)) or "declared, without dimensions"


def _bundle_lines(bundle: Bundle, verify: bool) -> Iterator[tuple[str, str]]:
    manifest = bundle.manifest
    yield "bundle", str(bundle.path)
    yield "family", f"{manifest.family}, {manifest.kind}"
    yield "source", f"{manifest.source.name} {manifest.source.revision or ''}".strip()
    yield "weights sha256", manifest.source.weights_sha256
    yield "dimensions", str(manifest.dim)
    yield "pooling", " + ".join(manifest.pooling)
    yield "normalised", "yes" if manifest.normalize else "no"
    yield "prompts", ", ".join(f"{k}={v!r}" for k, v in manifest.prompts.items()) or "none"
    yield "tokens a text", f"{manifest.positions} (model positions)"
    yield "trained length", str(manifest.trained_length or "not said")
    yield "precision", f"{manifest.dtype} for {manifest.target}"
    yield "packing", "several texts a row" if manifest.packs else "padded rows, no packing"
    yield "exporter", f"{manifest.exporter} {manifest.exporter_version}"
    for name, entry in manifest.files.items():
        yield "file", f"{name}  {entry.size} bytes  sha256 {entry.sha256}"
    if verify:
        verify_hashes(bundle)
        yield "verified", "every hash is right"
