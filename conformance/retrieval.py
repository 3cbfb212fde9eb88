"""Retrieval on a BEIR-shaped folder: its files, a BM25 ranking and nDCG@10."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Ranking = list[str]  # passage ids, best first


@dataclass(frozen=True)
class Corpus:
    """Passages and queries by id, and which passages answer each query."""

    passages: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]


def read_corpus(folder: Path) -> Corpus:
    """Read corpus.jsonl, queries.jsonl and qrels.tsv."""
    relevant: dict[str, dict[str, int]] = {}
    with (folder / "qrels.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return Corpus(_texts(folder / "corpus.jsonl"), _texts(folder / "queries.jsonl"), relevant)


def _texts(path: Path) -> dict[str, str]:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {row["_id"]: row["text"] for row in rows}


def ndcg(corpus: Corpus, rankings: dict[str, Ranking], cut: int = 10) -> float:
    """Average nDCG over the queries ranked (Järvelin and Kekäläinen 2002, gain 2^rel - 1, discount log2(rank + 1))."""

    def gain(scores: Sequence[int]) -> float:
        return sum((2**score - 1) / math.log2(rank + 2) for rank, score in enumerate(scores[:cut]))

    values = []
    for query, ranking in rankings.items():
        grades = corpus.relevant[query]
        best = gain(sorted(grades.values(), reverse=True))
        values.append(gain([grades.get(passage, 0) for passage in ranking]) / best)
    return float(np.mean(values))


def by_vectors(corpus: Corpus, passages: np.ndarray, queries: np.ndarray) -> dict[str, Ranking]:
    """Rank all passages for every query by the dot product of unit vectors; ties by place."""
    names = list(corpus.passages)
    order = np.argsort(-(queries @ passages.T), axis=1, kind="stable")
    return {query: [names[i] for i in row] for query, row in zip(corpus.queries, order, strict=True)}


def by_words(corpus: Corpus, k1: float = 1.2, b: float = 0.75) -> dict[str, Ranking]:
    """Rank by Okapi BM25 over lower-case words (Robertson and Zaragoza 2009)."""
    names = list(corpus.passages)
    counts = [Counter(_words(text)) for text in corpus.passages.values()]
    lengths = np.array([count.total() for count in counts])
    holding = Counter(word for count in counts for word in count)
    rankings = {}
    for query, text in corpus.queries.items():
        scores = np.zeros(len(names))
        for word in _words(text):
            rarity = math.log(1 + (len(names) - holding[word] + 0.5) / (holding[word] + 0.5))
            seen = np.array([count[word] for count in counts])
            scores += rarity * seen * (k1 + 1) / (seen + k1 * (1 - b + b * lengths / lengths.mean()))
        rankings[query] = [names[i] for i in np.argsort(-scores, kind="stable")]
    return rankings


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
