"""A label as it is served: the bundle's recipe with the operator's settings applied, and its tokenizer."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from ffwd_ort.bundle import WEIGHTS, Bundle, Manifest
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine import vectors
from ffwd_ort.engine.fitting import BY_MEMORY, Room, fit
from ffwd_ort.engine.machine import held_of, memory_limit
from ffwd_ort.engine.packing import TOKENS_PER_CHUNK, TOKENS_PER_SLOT, Packing, Positions
from ffwd_ort.engine.sequences import Floats, Ids, Sequence, make_document, make_sequence
from ffwd_ort.engine.shapes import seq_ladder
from ffwd_ort.engine.tokenization import Encoded, EncodedPair, Tokenizer
from ffwd_ort.errors import RefusedError
from ffwd_ort.families import CONTEXTUAL, CROSS_ENCODER, EMBEDDING, LATE

CEILING = 32_768  # tokens of one text, whatever the model
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# The kind of bundle that a kind of label needs, where they differ; and how labels score, where they do by kind.
BUNDLE_KINDS = {CONTEXTUAL: EMBEDDING}
SCORERS_BY_KIND = {CROSS_ENCODER: "logit", LATE: "maxsim"}
FITTED = f"--max-seq, {BY_MEMORY}"


@dataclass(frozen=True)
class Limits:
    """What the server allows every label. None: no limit of this kind."""

    max_seq: int | None = None
    max_batch_tokens: int = 16_384
    step_tokens: int = 512
    batch_size: int | None = None
    memory_utilization: float = 0.9
    workers: int = 1  # that share the memory


@dataclass(frozen=True)
class Cap:
    """The most tokens one text may have, and what binds it, in the words of http.md section 5.2."""

    tokens: int
    bound_by: str


@dataclass(frozen=True)
class ServedModel:
    """Everything a request needs to know of a label. `pooling` and `normalize` are the settled ones.

    `scorer` is how it reranks: "logit", "maxsim", "cosine" or not at all. `step_bound_by` is what bounds the tokens
    of a step, `room` what the shapes were fitted to.
    """

    label: str
    kind: str
    scorer: str | None
    bundle: Bundle
    tokenizer: Tokenizer
    cap: Cap
    packing: Packing
    step_bound_by: str
    room: Room
    pooling: tuple[str, ...]
    normalize: bool
    min_dim: int
    prompts: Mapping[str, str]
    accepts_token_ids: bool
    api: str

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.bundle.manifest

    @property
    def positions(self) -> Positions:
        """How the model numbers tokens."""
        manifest = self.manifest
        return Positions(manifest.pad_id, manifest.position_offset, manifest.pad_positions)

    @property
    def dim(self) -> int:
        """Full width of a vector."""
        return self.manifest.dim

    @property
    def vocabulary(self) -> int:
        """Ids run from 0 to below this."""
        return self.manifest.sizes.vocabulary

    def prompt_for(self, text_type: str | None, prompt_name: str | None) -> str:
        """Return the text that goes before every text of a request (http.md section 7).

        `text_type` is None, "query" or "document"; with neither it nor a name, the checkpoint's default applies.
        """
        if text_type == "query":
            return self.prompts.get("query", "")
        if text_type == "document":
            return next((self.prompts[name] for name in DOCUMENT_PROMPTS if name in self.prompts), "")
        name = prompt_name or self.manifest.default_prompt_name
        return self.prompts.get(name, "") if name else ""

    @property
    def routes_text_types(self) -> bool:
        """Whether `text_type` means anything to this label: another prompt, or another layout."""
        routed = self.kind == EMBEDDING and any(name in self.prompts for name in ("query", *DOCUMENT_PROMPTS))
        return routed or self.kind == LATE

    @property
    def names_prompts(self) -> bool:
        """Whether `prompt_name` means anything to this label."""
        return self.kind == EMBEDDING and bool(self.prompts)

    def sequences(self, encoded: list[Encoded], *, prompt: str = "", pooling: str | None = None) -> list[Sequence]:
        """Make the engine's sequences of tokenised texts."""
        left_out = "" if self.manifest.include_prompt else prompt
        skips = {dropped: self.tokenizer.prompt_tokens(left_out, dropped) for dropped in {t.dropped for t in encoded}}
        modes = self.pooling if pooling is None else (pooling,)
        return [make_sequence(text.ids, modes, skips[text.dropped]) for text in encoded]

    def pair_sequences(self, pairs: list[EncodedPair]) -> list[Sequence]:
        """Make the engine's sequences of a cross-encoder's pairs; its classifier reads the first token."""
        typed = "token_type_ids" in self.manifest.inputs
        return [make_sequence(p.ids, self.pooling, token_types=p.types if typed else None) for p in pairs]

    def document_sequences(self, documents: Seq[list[Ids]]) -> list[Sequence]:
        """Make the engine's sequences of documents, each the ids of its chunks: a vector for every chunk."""
        separator = self.manifest.separator
        assert separator is not None  # contextual labels have it
        return [make_document(chunks, separator) for chunks in documents]

    def finish(self, pooled: Floats, *, dimensions: int | None, normalize: bool | None = None) -> Floats:
        """Turn pooled vectors [n, dim] into this label's: cut, then scaled if the label normalises."""
        wanted = self.normalize if normalize is None else normalize
        return vectors.finish(pooled, dimensions=dimensions, normalize=wanted)


def settle(spec: ModelSpec, bundle: Bundle, limits: Limits) -> ServedModel:
    """Apply an operator's settings to a bundle; raise RefusedError naming a setting that the model cannot follow."""
    manifest = bundle.manifest
    check_settings(spec, manifest)
    kind = spec.kind or manifest.kind
    scorer = SCORERS_BY_KIND.get(kind, spec.rerank if kind == EMBEDDING else None)
    pooling = (spec.pooling,) if spec.pooling else manifest.pooling
    tokenizer = Tokenizer(bundle.tokenizer, lowercase=manifest.lowercase)
    cap = _cap(spec, manifest, limits)
    needed = _needed(manifest, tokenizer)
    if cap.tokens <= needed:
        raise RefusedError(
            f"{spec.flag} {spec.label}: a cap of {cap.tokens} tokens ({cap.bound_by}) leaves no room beside the "
            f"{needed} tokens that every text or pair has"
        )
    packing = _packing(kind, manifest, cap.tokens, len(pooling), limits)
    packing, cap, step_bound_by, room = _fit(spec, manifest, packing, cap, limits)
    return ServedModel(
        label=spec.label,
        kind=kind,
        scorer=scorer,
        bundle=bundle,
        tokenizer=tokenizer,
        cap=cap,
        packing=packing,
        step_bound_by=step_bound_by,
        room=room,
        pooling=pooling,
        normalize={"contract": manifest.normalize and kind != CONTEXTUAL, "always": True, "never": False}[
            spec.normalize
        ],
        min_dim=spec.min_dim or min(manifest.matryoshka_dims or (manifest.dim,)),
        prompts={**manifest.prompts, **spec.prompts},
        accepts_token_ids=spec.token_ids == "accept",
        api=spec.api,
    )


def _needed(manifest: Manifest, tokenizer: Tokenizer) -> int:
    """Return the tokens that every text has beside one of its own: special ones, a query, a query's padding."""
    if manifest.kind == CROSS_ENCODER:
        return tokenizer.pair_specials + 1
    if manifest.late is not None:
        return max(manifest.late.query_length, tokenizer.specials + 2) - 1
    return tokenizer.specials


def check_settings(spec: ModelSpec, manifest: Manifest) -> None:
    """Raise RefusedError for a setting that the manifest alone shows to be impossible; nothing is loaded for it."""
    if spec.kind is not None and manifest.kind != BUNDLE_KINDS.get(spec.kind, spec.kind):
        raise RefusedError(
            f"{spec.flag} {spec.label}: {manifest.source.name} is of kind {manifest.kind}, "
            f"which {spec.flag} cannot serve"
        )
    if spec.kind == CONTEXTUAL and manifest.fixed_pooling:
        raise RefusedError(
            f"{spec.flag} {spec.label}: chunks are the mean of their tokens, and {manifest.source.name} fixes its "
            f"vectors to {' and '.join(manifest.pooling)}{' before Dense modules' if manifest.dense else ''}"
        )
    if spec.kind == CONTEXTUAL and manifest.separator is None:
        raise RefusedError(
            f"{spec.flag} {spec.label}: {manifest.source.name} is of the family {manifest.family}, which was not "
            "trained on chunks in context"
        )
    if spec.pooling and manifest.fixed_pooling:
        raise RefusedError(
            f"{spec.flag} {spec.label}: pooling={spec.pooling} is not possible, the checkpoint fixes it to "
            f"{' and '.join(manifest.pooling)}{' before Dense modules' if manifest.dense else ''}"
        )
    if spec.api not in manifest.api_modes:
        raise RefusedError(
            f"{spec.flag} {spec.label}: api={spec.api} is not for the family {manifest.family}, "
            f"which has {', '.join(manifest.api_modes)}"
        )
    if spec.min_dim is not None and spec.min_dim > manifest.dim:
        raise RefusedError(
            f"{spec.flag} {spec.label}: min_dim={spec.min_dim} is above the model's {manifest.dim} dimensions"
        )


def _cap(spec: ModelSpec, manifest: Manifest, limits: Limits) -> Cap:
    flags = [seq for seq in (limits.max_seq, spec.max_seq) if seq is not None]
    # In the order of http.md section 5.2: on a tie the first is named.
    bounds = [Cap(manifest.positions, "model positions"), *(Cap(seq, "--max-seq") for seq in flags)]
    bounds += [Cap(limits.max_batch_tokens, "--max-batch-tokens"), Cap(CEILING, f"the {CEILING} ceiling")]
    return min(bounds, key=lambda cap: cap.tokens)


def _packing(kind: str, manifest: Manifest, cap: int, vectors: int, limits: Limits) -> Packing:
    per_slot = TOKENS_PER_CHUNK if kind == CONTEXTUAL else TOKENS_PER_SLOT
    # A row must have room for all the vectors that one text makes.
    seqs = tuple(seq for seq in seq_ladder(max(cap, vectors * per_slot)) if seq >= vectors * per_slot)
    budget = min(limits.step_tokens, limits.max_batch_tokens)
    # Attention's FLOPs equal the linear layers' at seq = 6 * hidden; it runs at about half their rate
    # (12.7k against 16.6k tokens/s at seq 512 and 128, hidden 384).
    long = "packed" in manifest.inputs
    return Packing(seqs, budget, 3.0 * manifest.sizes.hidden, limits.batch_size, per_slot, long, manifest.packs)


def _fit(
    spec: ModelSpec, manifest: Manifest, packing: Packing, cap: Cap, limits: Limits
) -> tuple[Packing, Cap, str, Room]:
    """Leave out what does not fit the memory there is; a length asked for by flag is refused instead."""
    memory = memory_limit()
    bytes_left = int(memory.bytes * limits.memory_utilization / limits.workers) - held_of(memory)
    room = Room(bytes_left - manifest.files[WEIGHTS].size, limits.memory_utilization, memory)
    fitted = fit(packing, manifest, room.bytes)
    bound_by = BY_MEMORY if fitted.budget < packing.budget else _step_bound(limits)
    if fitted.seqs == packing.seqs:
        return fitted, cap, bound_by, room
    longest = max(fitted.seqs, default=0)
    if not longest or cap.bound_by == "--max-seq":
        raise RefusedError(
            f"{spec.flag} {spec.label}: rows of {packing.seqs[-1]} tokens do not fit the memory there is ({room}); "
            + (f"--max-seq {longest} would fit" if longest else "no row fits")
        )
    return fitted, Cap(longest, FITTED), bound_by, room


def _step_bound(limits: Limits) -> str:
    return "--step-tokens" if limits.step_tokens <= limits.max_batch_tokens else "--max-batch-tokens"
