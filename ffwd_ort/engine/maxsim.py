"""Late interaction: the layout of queries and documents, and their score."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from ffwd_ort.bundle import Late
from ffwd_ort.engine.sequences import Floats, Ids, Sequence
from ffwd_ort.engine.vectors import l2_normalize

MOST_PRODUCTS = 1 << 22  # dot products held at a time: 16 MiB


@dataclass(frozen=True)
class ScoredTokens:
    """Keep the token vectors that score: those whose id is not skipped, at unit length if `normalize`."""

    skip_ids: tuple[int, ...]
    normalize: bool

    def __call__(self, ids: Ids, tokens: Floats) -> Floats:
        """[tokens, dim] -> [kept, dim]."""
        kept = tokens[~np.isin(ids, self.skip_ids)]
        return l2_normalize(kept) if self.normalize else kept


def mark(ids: Ids, marker: int | None) -> Ids:
    """Put a marker after a text's first token."""
    return ids if marker is None else np.insert(ids, 1, marker).astype(np.int32)


def query_sequence(ids: Ids, late: Late, normalize: bool) -> Sequence:
    """Make the sequence of a marked query: padded with expansion tokens, which score; a longer one is kept whole."""
    missing = max(0, late.query_length - len(ids))
    padded = np.concatenate([ids, np.full(missing, late.expansion_id, np.int32)])
    return Sequence(padded, (), reduce=ScoredTokens((), normalize), unseen=0 if late.attend else missing)


def document_sequence(ids: Ids, late: Late, normalize: bool) -> Sequence:
    """Make the sequence of a marked document."""
    return Sequence(ids, (), reduce=ScoredTokens(late.skip_ids, normalize))


def maxsim(query: Floats, documents: Seq[Floats]) -> Floats:
    """Sum over a query's tokens the best dot product with a document's: [q, dim] and n of [tokens, dim] -> [n].

    The score of ColBERT (https://arxiv.org/abs/2004.12832, equation 3). A document without tokens scores 0.
    """
    scores = np.zeros(len(documents), np.float32)
    for i, document in enumerate(documents):
        block = max(1, MOST_PRODUCTS // max(1, len(document)))
        for start in range(0, len(query) if len(document) else 0, block):
            scores[i] += (query[start : start + block] @ document.T).max(axis=1).sum()
    return scores
