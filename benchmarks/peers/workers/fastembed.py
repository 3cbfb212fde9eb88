"""fastembed on the standard ONNX export, registered as a model of one's own and read from the disk."""

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers.workers.loop import Encode, serve

NAME = "local/minilm"
BATCH = 32  # as sentence-transformers; its default of 256 holds more attention scores at once, and pads a little more


def load(folder: Path, threads: int, engine: str) -> Encode:
    """Register the export with mean pooling; the limit of 512 tokens is in the folder's tokenizer_config.json."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model=NAME,
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="https://localhost/never-asked"),
        dim=384,
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding(NAME, threads=threads, providers=["CPUExecutionProvider"], specific_model_path=str(folder))
    return partial(_encode, model.embed)


def _encode(embed: Encode, texts: list[str]) -> np.ndarray:
    return np.stack(list(embed(texts, batch_size=BATCH)))


if __name__ == "__main__":
    serve(load, ("fastembed", "onnxruntime", "tokenizers"))
