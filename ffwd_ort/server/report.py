"""What the server says at the terminal when it starts."""

from collections.abc import Sequence

from ffwd_ort.config import ServerConfig
from ffwd_ort.engine.engine import LoadedModel
from ffwd_ort.engine.machine import resident_memory
from ffwd_ort.export import INT8
from ffwd_ort.families import CONTEXTUAL, CROSS_ENCODER, EMBEDDING, LATE

RERANK = ("/v1/rerank", '"query":"When is low water?","documents":["At 06:40.","Kelp season opens in May."]')
# A request to try, by the label's kind.
EXAMPLES = {
    EMBEDDING: ("/v1/embeddings", '"input":"Low water falls at 06:40."'),
    CONTEXTUAL: ("/v1/contextualizedembeddings", '"input":[["Low water falls at 06:40.","High water at noon."]]'),
    LATE: RERANK,
    CROSS_ENCODER: RERANK,
}


def print_ready(config: ServerConfig, models: Sequence[LoadedModel], bound: str) -> None:
    """Print what is served, then the ready line with the address that was bound, and a command to try."""
    for model in models:
        print(*model_lines(model), sep="\n")
    url = address(bound)
    print(f"memory {resident_memory() >> 20} MiB a worker, {config.workers} worker(s)")
    print(f"shapes may take {models[-1].served.room}")
    print(f"ready: {url}")
    if url.startswith("http"):
        served = models[0].served
        path, fields = EXAMPLES[served.kind]
        key = " -H 'Authorization: Bearer KEY'" if config.api_keys else ""
        print(f'try:   curl -s {url}{path}{key} -d \'{{"model":"{served.label}",{fields}}}\'', flush=True)
    if config.public and not config.api_keys:
        print("warning: this address is reachable from other machines and there is no --api-key", flush=True)


def model_lines(model: LoadedModel) -> list[str]:
    """Describe a label by its settled values, with a warning for each trap its checkpoint holds."""
    served = model.served
    manifest, trained = served.manifest, served.manifest.trained_length
    shapes = served.packing.shapes()
    precision = manifest.dtype + (", approximate" if manifest.dtype == INT8 else "")
    lines = [
        f"{served.label}: {manifest.family} {served.kind}, {served.dim} dimensions, "
        f"{'+'.join(served.pooling) or 'no'} pooling, {'unit length' if served.normalize else 'not normalised'}"
        + (f", reranks by {served.scorer}" if served.scorer else ""),
        f"  texts of up to {served.cap.tokens} tokens (bound by {served.cap.bound_by}), steps of "
        f"{served.packing.budget} (bound by {served.step_bound_by})",
        f"  {model.runner.provider} ({', '.join(model.runner.execution_providers)}), {precision}; "
        f"{len(model.seconds)} of {len(shapes)} shapes run in {sum(model.seconds.values()):.1f} s, "
        f"largest {shapes[0].rows}x{shapes[0].seq}",
    ]
    if trained is not None and trained < served.cap.tokens:
        lines.append(
            f"  warning: trained on texts of up to {trained} tokens; :max_seq={trained} keeps to that "
            "(sentence-transformers cuts there)"
        )
    return lines


def loading_failed(error: BaseException) -> str:
    """Say why nothing is served."""
    return f"ffwd-server: {error}"


def address(bind: str) -> str:
    """Write a bind address as people type it."""
    return bind if bind.startswith("unix:") else f"http://{bind}"
