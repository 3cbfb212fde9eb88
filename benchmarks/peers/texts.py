"""The texts that every contender encodes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.peers.workers.loop import MAX_TOKENS
from benchmarks.workloads import SEED, workloads

CORPUS = Path("../shared/corpora/perlfaq")
QUERIES = 256


def peer_texts(passages: int) -> tuple[dict[str, list[str]], str]:
    """Return passages and queries, and where they are from: a real corpus, or else generated texts."""
    if CORPUS.is_dir():
        sets = {
            "passages": _sample([_passage(row) for row in _rows("corpus.jsonl")], passages),
            "queries": _sample([row["text"] for row in _rows("queries.jsonl")], QUERIES),
        }
        return sets, "perlfaq, a sample; BEIR's title before the text where there is one"
    made = workloads()
    sets = {"passages": made["mixed, 96 x 5-256"], "queries": made["32 x 32 tokens"]}
    return sets, "generated (perlfaq is not here): mixed, 96 x 5-256 tokens, for passages; 32 x 32 for queries"


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / name).read_text().splitlines()]


def _passage(row: dict[str, Any]) -> str:
    return f"{row.get('title', '')} {row['text']}".strip()


def _sample(texts: list[str], count: int) -> list[str]:
    """Take as many at random, always the same ones, in the corpus's order."""
    if count >= len(texts):
        return texts
    chosen = np.random.default_rng(SEED).choice(len(texts), count, replace=False)
    return [texts[i] for i in sorted(chosen)]


def token_counts(folder: Path, sets: dict[str, list[str]]) -> dict[str, int]:
    """Count what is encoded of each set, after the cut."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return {name: sum(len(text.ids) for text in tokenizer.encode_batch(texts)) for name, texts in sets.items()}
