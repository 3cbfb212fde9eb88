"""Who takes part, and which environment has each."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(".venv-peers")
OPTIMUM = Path(".venv-peers-optimum")  # optimum takes older transformers than sentence-transformers on torch
INFINITY = Path(".venv-peers-infinity")  # and infinity an older sentence-transformers
BASE, REFERENCE = "ffwd_ort", "sentence-transformers, torch"


@dataclass(frozen=True)
class Contender:
    """A library with one of its engines."""

    name: str
    environment: Path
    module: str  # of benchmarks.peers.workers
    engine: str = "-"

    @property
    def slug(self) -> str:
        """The name as a file's stem."""
        return "-".join(self.name.replace(",", "").split())


CONTENDERS = (
    Contender(BASE, HERE, "ffwd"),
    Contender(REFERENCE, HERE, "sentence_transformers", "torch"),
    Contender("sentence-transformers, onnx", OPTIMUM, "sentence_transformers", "onnx"),
    Contender("fastembed", HERE, "fastembed"),
    Contender("infinity, torch", INFINITY, "infinity", "torch"),
    Contender("infinity, optimum", INFINITY, "infinity", "optimum"),
    Contender("llama.cpp", HERE, "llama"),
)
