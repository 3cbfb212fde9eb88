"""llama.cpp on a float32 GGUF of the checkpoint, through llama-cpp-python."""

from functools import partial
from pathlib import Path

from benchmarks.peers.workers.loop import MAX_TOKENS, Encode, serve


def load(folder: Path, threads: int, engine: str) -> Encode:
    """Load the GGUF. Its binding cuts a text where a batch ends, so a batch is 512 tokens: as many texts as fit."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(folder / "minilm-f32.gguf"),
        embedding=True,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
        n_ctx=MAX_TOKENS,
        n_batch=MAX_TOKENS,
        n_ubatch=MAX_TOKENS,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    return partial(model.embed, normalize=True, truncate=True)


if __name__ == "__main__":
    serve(load, ("llama-cpp-python",))
