"""Late interaction: the score against its formula, the layout of texts, and tokens that no other token sees."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from ffwd_ort import LateInteractionEncoder
from ffwd_ort.bundle import Late
from ffwd_ort.engine.maxsim import MOST_PRODUCTS, ScoredTokens, document_sequence, mark, maxsim, query_sequence
from ffwd_ort.engine.packing import Item, Packing, Positions, lay_out, plan_step
from ffwd_ort.engine.queue import FairQueue, Job
from ffwd_ort.engine.sequences import Sequence, make_sequence
from ffwd_ort.engine.shapes import seq_ladder
from ffwd_ort_conformance.tiny_late import WIDTH, write_colbert

LATE = Late(
    query_marker=7,
    document_marker=8,
    query_text="",
    document_text="",
    query_length=6,
    attend=False,
    expansion_id=9,
    skip_ids=(4, 5),
)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def vectors(tokens: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def by_definition(query: np.ndarray, document: np.ndarray) -> float:
    """For each query token the best dot product over the document's tokens, summed; in float64."""
    if not len(document):
        return 0.0
    return sum(max(float(q.astype(np.float64) @ d.astype(np.float64)) for d in document) for q in query)


def test_a_score_is_the_sum_of_the_best_dot_products() -> None:
    query = vectors(9, 16, seed=0)
    documents = [vectors(n, 16, seed=n) for n in (1, 2, 30)]
    found = maxsim(query, [*documents, np.zeros((0, 16), np.float32)])
    expected = [by_definition(query, document) for document in documents]
    assert found.dtype == np.float32 and found.shape == (4,)
    assert np.abs(found - [*expected, 0]).max() < 1e-4
    assert maxsim(-np.abs(query), [np.abs(documents[2])])[0] < 0, "the best of negative products is negative"


def test_nothing_to_score_scores_nothing() -> None:
    assert maxsim(vectors(3, 4, seed=0), []).shape == (0,)
    assert maxsim(np.zeros((0, 4), np.float32), [vectors(3, 4, seed=1)]).tolist() == [0]


def test_a_query_larger_than_a_block_is_summed_over_all_of_its_blocks() -> None:
    document = vectors(MOST_PRODUCTS // 2, 2, seed=1)  # two query tokens at a time
    query = vectors(5, 2, seed=2)
    expected = (query.astype(np.float64) @ document.T.astype(np.float64)).max(axis=1).sum()
    assert abs(maxsim(query, [document])[0] - expected) < 1e-4
    tiny, many = vectors(1, 2, seed=3), vectors(MOST_PRODUCTS + 1, 2, seed=4)
    assert abs(maxsim(tiny, [many])[0] - (tiny @ many.T).max()) < 1e-5, "a document larger than a block"


def test_a_marker_goes_after_the_first_token() -> None:
    assert mark(ids(1, 2, 3), 7).tolist() == [1, 7, 2, 3]
    assert mark(ids(1), 7).tolist() == [1, 7]
    assert mark(ids(1, 2), 7).dtype == np.int32
    assert mark(ids(1, 2, 3), None).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("attend", "unseen"), [(False, 3), (True, 0)])
def test_a_short_query_is_padded_with_tokens_that_others_see_only_if_the_recipe_says_so(
    attend: bool, unseen: int
) -> None:
    late = structs.replace(LATE, attend=attend, skip_ids=(4, 9))
    query = query_sequence(ids(1, 4, 2), late, True)
    assert (query.ids.tolist(), query.unseen, query.slots) == ([1, 4, 2, 9, 9, 9], unseen, ())
    assert query.finish(vectors(6, 3, seed=0)).shape == (6, 3), "padding scores, and so does what documents skip"
    longer = query_sequence(ids(*range(8)), late, True)
    assert (longer.ids.tolist(), longer.unseen) == (list(range(8)), 0)


def test_a_document_keeps_the_tokens_that_are_not_skipped_at_unit_length() -> None:
    tokens = vectors(5, 3, seed=0)
    document = document_sequence(ids(1, 4, 2, 5, 4), LATE, True)
    kept = tokens[[0, 2]]
    assert np.allclose(document.finish(tokens), kept / np.linalg.norm(kept, axis=1, keepdims=True), atol=1e-6)
    assert (document_sequence(document.ids, LATE, False).finish(tokens) == kept).all()
    assert document_sequence(ids(4, 5), LATE, True).finish(tokens[:2]).shape == (0, 3)


def test_sequences_that_come_to_other_vectors_have_other_keys() -> None:
    late = structs.replace(LATE, query_length=2, skip_ids=())
    seen = Sequence(ids(1, 2), (), reduce=ScoredTokens((), True))
    same = [query_sequence(ids(1, 2), late, True), document_sequence(ids(1, 2), late, True)]
    others = [
        query_sequence(
            ids(1), structs.replace(LATE, query_length=2, expansion_id=2, skip_ids=()), True
        ),  # the same ids, the last unseen
        document_sequence(ids(1, 2), LATE, True),
        document_sequence(ids(1, 2), late, False),
        make_sequence(ids(1, 2), ("max",)),
        make_sequence(ids(1, 2), ("mean",)),
    ]
    assert {sequence.key() for sequence in same} == {seen.key()}
    assert len({sequence.key() for sequence in (seen, *others)}) == 6


# --- tokens that are seen by none ------------------------------------------------------------------


def test_unseen_tokens_have_a_segment_of_their_own_and_every_tokens_vector_comes_back() -> None:
    document = document_sequence(ids(1, 2, 3), LATE, True)
    query = query_sequence(ids(1, 7, 2, 3), LATE, True)  # two of padding
    step = lay_out(plan_step([Item(3, 0), Item(6, 0), Item(6, 0)], [], PACKING), [document, query, query], Positions())
    assert step.segment_ids[0, :16].tolist() == [0, 0, 0, 1, 1, 1, 1, -3, -3, 2, 2, 2, 2, -4, -4, -1]
    assert step.position_ids[0, 3:9].tolist() == [0, 1, 2, 3, 4, 5]
    assert [(p.item, p.row, p.first, p.count) for p in step.placements] == [(0, 0, 0, 3), (1, 0, 3, 6), (2, 0, 9, 6)]


PACKING = Packing((64,), 64, 1000.0)


def test_padding_stays_unseen_where_a_long_text_of_another_request_waits_too() -> None:
    """In the long form a text sees all of itself."""
    packing = Packing(seq_ladder(2048), 4096, 1000.0, has_long_form=True)
    queue = FairQueue(lambda: 0.0)
    queue.add_model("m", packing)
    for sequence in (query_sequence(ids(1, 7, 2, 3), LATE, True), document_sequence(ids(*range(1500)), LATE, True)):
        queue.put(Job("m", {sequence.key(): sequence}, 0.0, 1.0))
    steps: list[tuple[bool, list[int]]] = []
    while sum(len(lengths) for _, lengths in steps) < 2:
        batch = queue.take()
        assert batch is not None
        steps.append((batch.plan.long, [job.sequences[i].unseen for job, i in batch.chosen()]))
    assert not any(long and any(unseen) for long, unseen in steps)


@pytest.mark.parametrize("provider", ["cpu", "numpy"])
def test_padding_that_is_not_attended_to_changes_no_other_tokens_vector(
    provider: str, tmp_path: Path, cache_dir: Path
) -> None:
    def encode(**changes: bool) -> np.ndarray:
        name = "-".join(f"{key}{value}" for key, value in changes.items())
        folder = write_colbert(tmp_path / name, **changes)
        with LateInteractionEncoder(folder, provider=provider, cache_dir=cache_dir, step_tokens=64) as encoder:
            company, (first, *_) = ["kelp", "low water"], encoder.encode_queries(["the tide falls", "kelp"])
            assert np.abs(encoder.encode_queries([*company, "the tide falls"])[2] - first).max() < 5e-6
            return first

    unseen = encode(do_query_expansion=True)
    attended = encode(attend_to_expansion_tokens=True)
    alone = encode(do_query_expansion=False)
    assert alone.shape == (6, WIDTH) and unseen.shape == attended.shape == (16, WIDTH)
    assert np.abs(unseen[:6] - alone).max() < 5e-6
    assert np.abs(attended[:6] - alone).max() > 1e-2
    assert np.abs(np.diff(unseen[6:], axis=0)).max() > 1e-3, "each has a position of its own"
