"""ffwd_ort's Python API."""

from functools import partial
from pathlib import Path

from benchmarks.peers.workers.loop import Encode, serve


def load(folder: Path, threads: int, engine: str) -> Encode:
    """Open the bundle, which the parent has had exported, and start the engine."""
    from ffwd_ort import SentenceEncoder

    return partial(SentenceEncoder(folder, provider="cpu", threads=threads).encode, truncate=True)


if __name__ == "__main__":
    serve(load, ("ffwd_ort", "onnxruntime", "tokenizers"))
