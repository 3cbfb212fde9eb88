"""Record reference vectors for `make test`, which has no reference library: python -m ffwd_ort_conformance.record FILE.

Run it with the conformance environment after a change to what is recorded, and read the difference.
"""

import base64
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ffwd_ort.sources import DEMO_SOURCE, default_cache_dir, resolve
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.references import encode, sentence_transformer, token_ids
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, long_text, write_bert

RECORDED_TEXTS = (*TEXTS, *HARD_STRINGS[:12], HARD_STRINGS[25], long_text(700))
RECORDED_TINY = {
    "mean": TinyBert(),
    "cls": TinyBert(pooling=("cls_token",)),
    "concatenated": TinyBert(pooling=("mean_tokens", "weightedmean_tokens"), hidden_act="gelu_new"),
    "old-names-sharded-bfloat16": TinyBert(old_names=True, shards=2, dtype="bfloat16"),
}


def record() -> dict[str, Any]:
    """Encode the texts with the reference libraries."""
    minilm = resolve(DEMO_SOURCE, default_cache_dir()).path
    recorded = {"minilm": pack(encode(sentence_transformer(minilm, 512), RECORDED_TEXTS))}
    for name, tiny in RECORDED_TINY.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = write_bert(Path(scratch) / "tiny", tiny)
            recorded[name] = pack(encode(sentence_transformer(folder, tiny.positions), RECORDED_TEXTS))
    return {
        "made_with": {name: version(name) for name in ("torch", "transformers", "sentence-transformers")},
        "minilm_token_ids": token_ids(minilm, RECORDED_TEXTS),
        "vectors": recorded,
    }


def pack(vectors: np.ndarray) -> list[str]:
    """Write float32 rows in base64, exactly."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]


def unpack(rows: list[str]) -> np.ndarray:
    """Read what `pack` wrote."""
    return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
