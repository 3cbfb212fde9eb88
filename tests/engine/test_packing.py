"""Packing: nothing lost, nothing twice, every shape in the ladder, order restored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffwd_ort.engine.packing import TOKENS_PER_SLOT, Item, Packing, Positions, lay_out, plan_step
from ffwd_ort.engine.sequences import Sequence, Slot, make_sequence
from ffwd_ort.engine.shapes import EncodeShape, power_of_two_at_least, power_of_two_at_most, seq_ladder

packings = st.builds(
    lambda cap, budget, attention, most: Packing(seq_ladder(cap), budget, attention, most),
    st.integers(3, 2000),
    st.sampled_from([16, 64, 100, 256, 512, 4096]),
    st.sampled_from([50.0, 1152.0]),
    st.one_of(st.none(), st.integers(1, 40)),
)


@st.composite
def work(draw: st.DrawFn) -> tuple[Packing, list[Item], list[Item]]:
    """Draw bounds, and texts that respect them."""
    packing = draw(packings)
    # A text makes at most a vector for every TOKENS_PER_SLOT tokens of the shortest row.
    items = st.builds(Item, st.integers(1, packing.seqs[-1]), st.integers(1, 3))
    return packing, draw(st.lists(items, min_size=1, max_size=30)), draw(st.lists(items, max_size=80))


@given(work())
def test_a_plan_places_each_item_at_most_once_and_within_its_row(drawn: tuple[Packing, list[Item], list[Item]]) -> None:
    packing, first, more = drawn
    items = [*first, *more]
    plan = plan_step(first, more, packing)
    placed = [i for row in plan.rows for i in row]
    assert len(placed) == len(set(placed))
    assert all(row for row in plan.rows), "an empty row is padding that nobody asked for"
    for row in plan.rows:
        assert sum(items[i].length for i in row) <= plan.shape.seq
        assert sum(items[i].slots for i in row) <= plan.shape.seq // TOKENS_PER_SLOT


@given(work())
def test_a_plan_always_places_the_first_item_so_that_nothing_starves(
    drawn: tuple[Packing, list[Item], list[Item]],
) -> None:
    packing, first, more = drawn
    assert any(0 in row for row in plan_step(first, more, packing).rows)


@given(work())
def test_every_plan_has_a_prepared_shape(drawn: tuple[Packing, list[Item], list[Item]]) -> None:
    packing, first, more = drawn
    plan = plan_step(first, more, packing)
    assert plan.shape in packing.shapes()
    assert len(plan.rows) == plan.shape.rows
    if packing.most_texts is not None:
        assert sum(map(len, plan.rows)) <= packing.most_texts


@given(work())
def test_repeated_plans_place_everything_exactly_once(drawn: tuple[Packing, list[Item], list[Item]]) -> None:
    packing, first, more = drawn
    waiting = list(range(len(first) + len(more)))
    items = [*first, *more]
    done: list[int] = []
    while waiting:
        plan = plan_step([items[i] for i in waiting[:1]], [items[i] for i in waiting[1:]], packing)
        chosen = [waiting[i] for row in plan.rows for i in row]
        done += chosen
        waiting = [i for i in waiting if i not in set(chosen)]
    assert sorted(done) == list(range(len(items)))


def test_a_text_longer_than_the_longest_row_is_refused() -> None:
    with pytest.raises(ValueError, match="129 tokens"):
        plan_step([Item(129)], [], Packing(seq_ladder(100), 512, 1000))


def test_the_shapes_are_powers_of_two_within_the_budget_and_one_row_always_fits() -> None:
    shapes = Packing(seq_ladder(1000), 256, 1000.0).shapes()
    assert EncodeShape(1, 1024) in shapes
    assert all(shape.tokens <= 256 or shape.rows == 1 for shape in shapes)
    assert all(n & (n - 1) == 0 for shape in shapes for n in (shape.rows, shape.seq))
    assert shapes[0] == EncodeShape(1, 1024), "the largest comes first, so that memory is taken at once"


def test_the_ladder_starts_at_16_and_ends_at_the_power_of_two_that_holds_the_cap() -> None:
    assert seq_ladder(512) == (16, 32, 64, 128, 256, 512)
    assert seq_ladder(513)[-1] == 1024
    assert seq_ladder(5) == (16,)


@given(st.integers(1, 10**6))
def test_powers_of_two_bound_a_number_closely(n: int) -> None:
    above, below = power_of_two_at_least(n), power_of_two_at_most(n)
    assert below <= n <= above < 2 * n + 1
    assert above & (above - 1) == 0 and below & (below - 1) == 0


def test_a_lone_query_takes_the_smallest_row_that_holds_it() -> None:
    packing = Packing(seq_ladder(512), 512, 1152.0)
    assert plan_step([Item(8)], [], packing).shape == EncodeShape(1, 16)
    assert plan_step([Item(17)], [], packing).shape == EncodeShape(1, 32)


def test_many_short_texts_share_rows_with_little_padding() -> None:
    packing = Packing(seq_ladder(512), 512, 1152.0)
    plan = plan_step([Item(9)], [Item(9)] * 200, packing)
    assert sum(map(len, plan.rows)) * 9 / plan.shape.tokens > 0.95
    assert plan.shape.seq <= 128, "short texts are not packed into long rows"


def test_gaps_of_long_rows_are_filled_with_shorter_texts() -> None:
    packing = Packing(seq_ladder(512), 512, 1152.0)
    plan = plan_step([Item(300)], [Item(10)] * 40, packing)
    assert plan.shape == EncodeShape(1, 512)
    assert len(plan.rows[0]) == 1 + 21


def test_the_arrays_of_a_step_follow_the_graph_contract() -> None:
    first = make_sequence(np.array([101, 7, 8, 102], np.int32), ("mean",))
    second = Sequence(
        np.array([101, 9, 102], np.int32),
        (Slot(0, np.ones(1, np.float32)), Slot(2, np.ones(1, np.float32))),
    )
    packing = Packing((64,), 64, 1000.0)
    plan = plan_step([Item(4), Item(3, 2)], [], packing)
    step = lay_out(plan, [first, second], Positions(pad_id=5, offset=2))
    assert step.input_ids[0, :8].tolist() == [101, 7, 8, 102, 101, 9, 102, 5]
    assert step.position_ids[0, :8].tolist() == [2, 3, 4, 5, 2, 3, 4, 2]
    assert step.segment_ids[0, :8].tolist() == [0, 0, 0, 0, 1, 1, 1, -1]
    assert step.pool.shape == (1, 16, 64)
    assert step.pool[0, 0, :4].tolist() == [0.25] * 4
    assert step.pool[0, 1, 4:7].tolist() == [1, 0, 0] and step.pool[0, 2, 4:7].tolist() == [0, 0, 1]
    assert not step.pool[0, 3:].any() and not step.pool[0, 0, 4:].any()
    assert [(p.item, p.row, p.first, p.count) for p in step.placements] == [(0, 0, 0, 1), (1, 0, 1, 2)]
    assert all(a.dtype == np.int32 for a in (step.input_ids, step.position_ids, step.segment_ids))


def test_a_pad_token_in_a_text_keeps_the_pads_position_where_the_family_says_so() -> None:
    ids = np.array([0, 7, 1, 8, 2], np.int32)
    assert Positions(pad_id=1, offset=2, skip_pad=True).of(ids).tolist() == [2, 3, 1, 4, 5]
    assert Positions(pad_id=1, offset=2).of(ids).tolist() == [2, 3, 4, 5, 6]
