"""The fair queue: turns, deadlines, admission."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffwd_ort.engine.packing import Packing
from ffwd_ort.engine.queue import FairQueue, Job
from ffwd_ort.engine.sequences import make_sequence
from ffwd_ort.engine.shapes import seq_ladder
from ffwd_ort.errors import Abandoned, DeadlineExceeded, Draining, Overloaded


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_queue(clock: Clock, *models: str, budget: int = 512) -> FairQueue:
    queue = FairQueue(clock)
    for model in models or ("m",):
        queue.add_model(model, Packing(seq_ladder(512), budget, 1152.0))
    return queue


NUMBERS = itertools.count()


def make_job(*lengths: int, model: str = "m", deadline: float = 1e9) -> Job:
    """Make a request of texts that no other has."""
    sequences = [make_sequence(np.full(n, next(NUMBERS), np.int32), ("mean",)) for n in lengths]
    return Job(model, {sequence.key(): sequence for sequence in sequences}, 100.0, deadline)


def test_a_short_query_goes_into_the_next_step_beside_bulk_requests() -> None:
    queue = make_queue(Clock())
    for _ in range(4):
        queue.put(make_job(*[300] * 500))
    for _ in range(3):
        assert queue.take() is not None
    query = make_job(8)
    queue.put(query)
    steps = 0
    while query.pending:
        queue.take()
        steps += 1
    assert steps <= 2


@pytest.mark.parametrize("length", [31, 40, 62, 63, 64, 100, 120, 128, 200, 256, 300, 500])
def test_a_newcomer_goes_into_the_very_next_step_whatever_the_rows_are_filled_with(length: int) -> None:
    queue = make_queue(Clock())
    bulk = [make_job(*[length] * 500) for _ in range(4)]
    for job in bulk:
        queue.put(job)
    while any(job.started is None for job in bulk):  # they were newcomers, too
        queue.take()
    for wait in range(24):
        query = make_job(8)
        queue.put(query)
        assert queue.take() is not None and not query.pending, f"step {wait}"
    done = [500 - len(job.pending) for job in bulk]
    assert min(done) >= 1, done


def test_newcomers_without_end_keep_no_old_request_waiting() -> None:
    queue = make_queue(Clock())
    olds = [make_job(*[length] * 40) for length in (60, 120)]
    for old in olds:
        queue.put(old)
    for _ in range(180):
        for _ in range(24):  # nearly all that a step holds
            queue.put(make_job(20))
        batch = queue.take()
        if batch is not None and batch.plan.shape.tokens <= 64:  # a small step takes little time, and the next is not
            batch = queue.take()
            assert batch is not None and batch.plan.shape.tokens > 64
    assert all(len(old.pending) < 38 for old in olds)


def test_short_newcomers_beside_begun_requests_have_a_small_step_of_their_own_and_then_it_is_the_others_turn() -> None:
    queue = make_queue(Clock())
    bulk, batch_of_32 = make_job(*[60] * 500), make_job(*[30] * 32)
    queue.put(bulk)
    assert queue.take() is not None
    queries = [make_job(8), make_job(8, 9), make_job(20)]
    for job in (*queries, batch_of_32):
        queue.put(job)
    quick, full = queue.take(), queue.take()
    assert quick is not None and {job for job, _ in quick.chosen()} == set(queries)
    assert quick.plan.shape.tokens <= 64 and not any(job.pending for job in queries)
    assert full is not None and {job for job, _ in full.chosen()} == {bulk, batch_of_32}
    assert full.plan.shape.tokens == 512


def test_equal_texts_of_several_requests_are_computed_once_in_a_step_and_others_are_not() -> None:
    queue = make_queue(Clock())
    text = np.arange(20, dtype=np.int32)
    sequences = [make_sequence(text, ("mean",)), make_sequence(text, ("cls",)), make_sequence(text, ("mean",), 2)]
    jobs = [Job("m", {sequence.key(): sequence for sequence in sequences}, 100.0, 1e9) for _ in range(3)]
    for job in jobs:
        job.hashes = [0, 0, 0]  # as if all hashes were the same: the sequences themselves decide
        queue.put(job)
    batch = queue.take()
    assert batch is not None
    placed = [batch.members[i] for row in batch.plan.rows for i in row]
    assert sorted(map(len, placed)) == [3, 3, 3]
    assert all({job for job, _ in texts} == set(jobs) and len({i for _, i in texts}) == 1 for texts in placed)
    assert not any(job.pending for job in jobs) and queue.queued_tokens == 0


def test_requests_share_the_tokens_evenly_whatever_their_texts_lengths() -> None:
    queue = make_queue(Clock())
    long, short = make_job(*[256] * 200), make_job(*[16] * 3200)
    queue.put(long)
    queue.put(short)
    for _ in range(60):
        queue.take()
    done = [job.tokens - sum(job.items[i].length for i in job.pending) for job in (long, short)]
    assert 0.5 < done[0] / done[1] < 2.0


def steps_until_done(queue: FairQueue, job: Job) -> int:
    steps = 0
    while job.pending:
        assert queue.take() is not None
        steps += 1
    return steps


@pytest.mark.parametrize("length", [5, 60, 300, 507, 512])
def test_a_text_of_any_length_gets_its_turn_beside_a_bulk_request(length: int) -> None:
    """A request with the credit but no room left in a step was once sent to the back, for ever."""
    queue = make_queue(Clock())
    queue.put(make_job(*[100] * 512))
    queue.take()
    query = make_job(length)
    queue.put(query)
    assert steps_until_done(queue, query) <= 4


def test_a_text_that_the_rows_had_no_room_for_begins_the_next_step() -> None:
    """Three texts of 150 tokens are within the budget of 512, but two rows of 256 hold two of them."""
    queue = make_queue(Clock())
    jobs = [make_job(*[150] * 100) for _ in range(3)]
    for job in jobs:
        queue.put(job)
    for _ in range(60):
        queue.take()
    done = [100 - len(job.pending) for job in jobs]
    assert min(done) >= 0.6 * max(done), done


def test_a_single_text_that_the_rows_had_no_room_for_does_not_stay_last() -> None:
    queue = make_queue(Clock())
    for _ in range(2):  # 150 and 106 fill a row of 256, and two such rows do more for their cost than one of 512
        queue.put(make_job(*[150] * 200, *[106] * 400))
    query = make_job(150)
    queue.put(query)
    assert steps_until_done(queue, query) <= 3


@given(st.lists(st.lists(st.integers(1, 512), min_size=30, max_size=60), min_size=2, max_size=5))
def test_no_request_waits_for_the_others_to_be_done(requests: list[list[int]]) -> None:
    queue = make_queue(Clock())
    jobs = [make_job(*lengths) for lengths in requests]
    for job in jobs:
        queue.put(job)
    waited = dict.fromkeys(jobs, 0)
    while all(job.pending for job in jobs):
        batch = queue.take()
        assert batch is not None
        served = {job for job, _ in batch.chosen()}
        for job in jobs:
            waited[job] = 0 if job in served else waited[job] + 1
        assert max(waited.values()) <= 2 * len(jobs)


def test_a_deadline_that_has_passed_is_said_to_be_one() -> None:
    queue = make_queue(Clock())
    with pytest.raises(DeadlineExceeded):
        queue.put(make_job(8, deadline=99.0))


def test_models_take_turns() -> None:
    queue = make_queue(Clock(), "a", "b")
    queue.put(make_job(*[200] * 50, model="a"))
    queue.put(make_job(*[200] * 50, model="b"))
    assert [batch.model for batch in (queue.take() for _ in range(4)) if batch] == ["a", "b", "a", "b"]


@given(st.lists(st.lists(st.integers(1, 512), min_size=1, max_size=20), min_size=1, max_size=12))
def test_every_sequence_is_taken_exactly_once(requests: list[list[int]]) -> None:
    queue = make_queue(Clock())
    jobs = [make_job(*lengths) for lengths in requests]
    for job in jobs:
        queue.put(job)
    queue.close()
    taken: list[tuple[int, int]] = []
    while (batch := queue.take()) is not None:
        taken += [(jobs.index(job), index) for job, index in batch.chosen()]
    assert sorted(taken) == [(j, i) for j, lengths in enumerate(requests) for i in range(len(lengths))]
    assert queue.queued_tokens == 0


def test_work_past_its_deadline_is_dropped_before_it_runs() -> None:
    clock = Clock()
    queue = make_queue(clock)
    late, timely = make_job(10, deadline=101.0), make_job(20)
    queue.put(late)
    queue.put(timely)
    clock.now = 102.0
    batch = queue.take()
    assert batch is not None and [job for job, _ in batch.chosen()] == [timely]
    with pytest.raises(DeadlineExceeded):
        late.future.result(0)
    assert queue.queued_tokens == 0


def test_begun_work_is_finished_though_its_deadline_passes() -> None:
    clock = Clock()
    queue = make_queue(clock)
    job = make_job(*[500] * 3, deadline=101.0)
    queue.put(job)
    queue.take()
    clock.now = 200.0
    assert queue.take() is not None and queue.take() is not None
    assert not job.pending and not job.future.done()


def test_abandoned_work_is_dropped() -> None:
    queue = make_queue(Clock())
    gone = make_job(*[500] * 3)
    queue.put(gone)
    gone.abandon()
    queue.close()
    assert queue.take() is None
    with pytest.raises(Abandoned):
        gone.future.result(0)


def test_a_request_that_would_only_expire_is_turned_away() -> None:
    queue = make_queue(Clock())
    queue.measured(tokens=1000, seconds=1.0)
    queue.put(make_job(*[500] * 8, deadline=102.0))  # the queue was empty: it starts at once
    with pytest.raises(Overloaded):
        queue.put(make_job(8, deadline=103.0))  # 4000 tokens ahead, at 1000 a second
    queue.put(make_job(8, deadline=110.0))


def test_a_closed_queue_answers_what_waits_and_takes_no_more() -> None:
    queue = make_queue(Clock())
    job = make_job(8)
    queue.put(job)
    queue.close(Draining("stopping"))
    with pytest.raises(Draining):
        job.future.result(0)
    with pytest.raises(Draining):
        queue.put(make_job(8))
    assert queue.take() is None


def test_take_waits_until_there_is_work() -> None:
    queue = make_queue(Clock())
    taken = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    queue.put(make_job(8))
    thread.join(5)
    assert taken and taken[0] is not None


def test_a_lone_request_waits_for_company_only_as_long_as_it_is_told() -> None:
    clock = Clock()
    queue = FairQueue(clock, wait_seconds=0.05)
    queue.add_model("m", Packing(seq_ladder(512), 512, 1152.0))
    queue.put(make_job(8))
    taken = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    thread.join(0.02)
    assert thread.is_alive(), "it waits for company"
    clock.now += 0.05
    queue.put(make_job(8))
    thread.join(5)
    assert taken[0] is not None and len(taken[0].chosen()) == 2
