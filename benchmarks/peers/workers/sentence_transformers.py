"""sentence-transformers on torch, or on ONNX Runtime through optimum; batches of 32 sorted by length, its default."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.workers.loop import MAX_TOKENS, Encode, serve


def load(folder: Path, threads: int, engine: str) -> Encode:
    """Load the model with the backend of that name, in float32."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    options = {"torch": lambda: {"dtype": torch.float32}, "onnx": lambda: _onnx_options(threads)}[engine]()
    model = SentenceTransformer(str(folder), device="cpu", backend=engine, model_kwargs=options)
    model.max_seq_length = MAX_TOKENS
    return partial(model.encode, normalize_embeddings=True, show_progress_bar=False)


def _onnx_options(threads: int) -> dict[str, Any]:
    import onnxruntime

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    return {"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx", "session_options": session}


if __name__ == "__main__":
    import sys

    backend = {"torch": ("torch",), "onnx": ("optimum-onnx", "onnxruntime")}[sys.argv[4]]
    serve(load, ("sentence-transformers", "transformers", *backend))
