"""infinity's engine in this process, on torch or on its optimised ONNX graph."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workers.loop import FLAT, Encode, serve


def load(folder: Path, threads: int, engine: str) -> Encode:
    """Start the engine with its default batch of 32; ours is the only caller, so its queue holds what we give it."""
    # 0.0.78 with optimum 2.1 finds a local folder's ONNX file only at its root, and only under the name ".".
    os.chdir(folder / FLAT if engine == "optimum" else folder)
    import torch
    from infinity_emb import EngineArgs, SyncEngineArray

    torch.set_num_threads(threads)
    arguments = EngineArgs(
        model_name_or_path=".",
        engine=engine,
        device="cpu",
        dtype="float32",
        pooling_method="mean",
        model_warmup=False,
        served_model_name="minilm",
    )
    return partial(_encode, SyncEngineArray.from_args([arguments]))


def _encode(engines: Any, texts: list[str]) -> np.ndarray:
    vectors, _ = engines.embed(model="minilm", sentences=texts).result()
    return np.stack(vectors)


if __name__ == "__main__":
    serve(load, ("infinity-emb", "sentence-transformers", "transformers", "torch", "onnxruntime"))
