"""The fair queue: which request's texts go into the next encode step.

Deficit round robin over requests: each pass gives every waiting request the same number of tokens, so a
one-line query goes into the next step however long the request beside it is. Requests that nothing has been
run of come early: short ones in a small step of their own, others in up to half of the next step. Models take
turns. What a step has room for beyond that is filled from any request, at no charge: that room would be padding.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ffwd_ort.engine.packing import Item, Packing, Plan, plan_step
from ffwd_ort.engine.sequences import Floats, Sequence
from ffwd_ort.errors import Abandoned, DeadlineExceeded, Draining, Overloaded, RequestError

SMALLEST_QUANTUM = 16  # tokens
QUICK_SHARE = 8  # of a step's tokens, at most, are run by themselves for short newcomers
MOST_FILLERS = 256  # candidates looked at for the gaps of one step


class Job:
    """One request's distinct sequences for one model, and what has become of them."""

    def __init__(self, model: str, keyed: Mapping[bytes, Sequence], submitted: float, deadline: float) -> None:
        self.model = model
        self.sequences = sequences = list(keyed.values())
        self.hashes = [hash(key) for key in keyed]  # of each one's own key
        self.items = [Item(s.length, len(s.slots)) for s in sequences]
        self.pending = sorted(range(len(sequences)), key=lambda i: sequences[i].length)  # shortest first
        self.vectors: list[Floats | None] = [None] * len(sequences)
        self.missing = len(sequences)
        self.tokens = sum(s.length for s in sequences)
        self.deficit = 0
        self.submitted = submitted
        self.deadline = deadline
        self.started: float | None = None
        self.infer_seconds = 0.0
        self.abandoned = False
        self.future: Future[list[Floats]] = Future()

    def abandon(self) -> None:
        """Say that nobody waits any more: what has not run is dropped."""
        self.abandoned = True

    def deliver(self, index: int, vector: Floats) -> None:
        """Take one sequence's vector; the last one completes the request."""
        if self.vectors[index] is None:
            self.missing -= 1
        self.vectors[index] = vector
        if self.missing == 0 and not self.future.done():
            self.future.set_result([v for v in self.vectors if v is not None])

    def fail(self, error: RequestError) -> None:
        """Answer the request with an error; its waiting sequences are dropped."""
        self.pending.clear()
        if not self.future.done():
            self.future.set_exception(error)

    def expired(self, now: float) -> RequestError | None:
        """Say why the request should not run, if there is a reason. Begun work is finished."""
        if self.abandoned:
            return Abandoned("the client left")
        if self.started is None and now > self.deadline:
            return DeadlineExceeded("waited too long for its first encode step")
        return None


Text = tuple[Job, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into the next step of a model: the plan, and behind each of its indices the texts that it computes.

    A text is a (request, index of the sequence); those of one index are equal.
    """

    model: str
    plan: Plan
    members: list[list[Text]]

    def chosen(self) -> list[Text]:
        """List the texts that the plan has placed."""
        return [text for row in self.plan.rows for i in row for text in self.members[i]]

    def sequences(self) -> list[Sequence]:
        """List the sequence behind each index."""
        return [job.sequences[i] for ((job, i), *_) in self.members]


class FairQueue:
    """Waiting requests, by model. Every method may be called from any thread; `take` by one."""

    def __init__(self, clock: Callable[[], float], wait_seconds: float = 0.0) -> None:
        self._clock = clock
        self._wait_seconds = wait_seconds  # for company, from a lone request's arrival
        self._changed = threading.Condition(threading.RLock())
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._packing: dict[str, Packing] = {}
        self._closed = False
        self._queued_tokens = 0
        self._was_quick = False  # whether the last step was one for short newcomers alone
        self._rate = 0.0  # tokens a second, as measured
        self.on_change: Callable[[int], None] = lambda tokens: None

    @property
    def queued_tokens(self) -> int:
        """Tokens that were tokenised and do not run yet."""
        return self._queued_tokens

    def _count(self, tokens: int) -> None:
        self._queued_tokens += tokens
        self.on_change(self._queued_tokens)

    def add_model(self, model: str, packing: Packing) -> None:
        """Make a model known, with the bounds of its steps."""
        with self._changed:
            self._packing[model] = packing

    def measured(self, tokens: int, seconds: float) -> None:
        """Take note of a step's speed, in tokens computed, padding included: the estimate of a wait rests on it.

        Real tokens would say that a machine with only lone queries to run is a slow one.
        """
        rate = tokens / max(seconds, 1e-6)
        self._rate = rate if self._rate == 0 else 0.9 * self._rate + 0.1 * rate

    def estimated_wait(self) -> float:
        """Return the seconds until a text that is queued now would start."""
        return self._queued_tokens / self._rate if self._rate else 0.0

    def put(self, job: Job) -> None:
        """Queue a request; raise Overloaded if it would wait past its deadline, Draining once closed."""
        with self._changed:
            if self._closed:
                raise Draining("the engine is closed")
            if (error := job.expired(self._clock())) is not None:
                raise error
            if self.estimated_wait() > job.deadline - self._clock():
                raise Overloaded("the queue is longer than the request may wait")
            self._waiting.setdefault(job.model, deque()).append(job)
            self._count(job.tokens)
            self._changed.notify()

    def withdraw(self, job: Job, error: RequestError) -> None:
        """Answer a request with an error; what of it still waits is dropped."""
        with self._changed:
            self._count(-sum(job.items[i].length for i in job.pending))
            job.fail(error)

    def close(self, error: RequestError | None = None) -> None:
        """Take no more requests. With an error, whatever waits is answered with it at once."""
        with self._changed:
            self._closed = True
            if error is not None:
                for ring in self._waiting.values():
                    for job in ring:
                        job.fail(error)
                self._waiting.clear()
                self._count(-self._queued_tokens)
            self._changed.notify_all()

    def take(self) -> Batch | None:
        """Wait for work and take the next step's; return None once closed and empty."""
        with self._changed:
            while True:
                self._drop_expired()
                if not self._waiting and self._closed:
                    return None
                patience = self._patience()
                if self._waiting and not patience:
                    return self._next_batch()
                self._changed.wait(patience)

    def _patience(self) -> float | None:
        """Return how long to wait for company yet; None when nothing waits, 0 when it is time."""
        if not self._waiting or self._closed or not self._wait_seconds:
            return 0.0 if self._waiting else None
        first = min(job.submitted for ring in self._waiting.values() for job in ring)
        return max(0.0, first + self._wait_seconds - self._clock())

    def _drop_expired(self) -> None:
        now = self._clock()
        for model, ring in list(self._waiting.items()):
            for job in list(ring):
                error = job.expired(now)
                if error is not None:
                    self.withdraw(job, error)
                if not job.pending:
                    ring.remove(job)
            if not ring:
                del self._waiting[model]

    def _next_batch(self) -> Batch:
        model, ring = next(iter(self._waiting.items()))
        self._waiting.move_to_end(model)
        packing = self._packing[model]
        first = [] if self._was_quick else _quick(ring, packing.budget // QUICK_SHARE)
        self._was_quick = bool(first)
        first = first or _newcomers_early(ring, _nominate(ring, packing.budget), packing.budget // 2)
        nominated = set(first)
        more = [] if self._was_quick else _fillers(ring, nominated)
        members = _together([*first, *more])
        items = [job.items[i] for ((job, i), *_) in members]
        turns = sum(text in nominated for (text, *_) in members)
        plan = plan_step(items[:turns], items[turns:], packing)
        batch = Batch(model, plan, members)
        self._remove(ring, batch, first)
        return batch

    def _remove(self, ring: deque[Job], batch: Batch, first: list[Text]) -> None:
        now = self._clock()
        taken: dict[Job, set[int]] = {}
        for job, index in batch.chosen():
            taken.setdefault(job, set()).add(index)
        unplaced = [(job, index) for job, index in first if index not in taken.get(job, ())]
        for job, index in unplaced:
            job.deficit += job.items[index].length
        if unplaced:  # nominated, but the rows had no room: the next step begins with it
            ring.rotate(-ring.index(unplaced[0][0]))
        for job, indices in taken.items():
            job.started = job.started or now
            job.pending = [i for i in job.pending if i not in indices]
            self._count(-sum(job.items[i].length for i in indices))
            if not job.pending:
                ring.remove(job)
        if not ring:
            del self._waiting[batch.model]


def _together(texts: list[Text]) -> list[list[Text]]:
    """Put texts with equal sequences together, in the order of the first of each: they are computed once."""
    found: dict[int, list[list[Text]]] = {}
    groups: list[list[Text]] = []
    for job, index in texts:
        alike = found.setdefault(job.hashes[index], [])
        key = job.sequences[index].key() if alike else b""
        group = next((group for group in alike if _key(group[0]) == key), None)
        if group is None:
            group = []
            alike.append(group)
            groups.append(group)
        group.append((job, index))
    return groups


def _key(text: Text) -> bytes:
    job, index = text
    return job.sequences[index].key()


def _nominate(ring: deque[Job], budget: int) -> list[Text]:
    """Take each request's share of a step, longest texts first; rotates the ring past those served."""
    quantum = max(budget // len(ring), SMALLEST_QUANTUM)
    nominees: list[Text] = []
    spent = 0
    while not nominees:
        for _ in range(len(ring)):
            job = ring[0]
            job.deficit += quantum
            for index in reversed(job.pending):
                length = job.items[index].length
                if length > job.deficit:
                    break
                if nominees and spent + length > budget:
                    job.deficit -= quantum  # it has the credit but this step no room: the next one begins with it
                    return nominees
                nominees.append((job, index))
                job.deficit -= length
                spent += length
            ring.rotate(-1)
            if spent >= budget:
                break
    return nominees


def _quick(ring: deque[Job], room: int) -> list[Text]:
    """Take whole new requests of `room` tokens together at most, oldest first, where begun ones wait beside them.

    They have waited for a step already; a step of their own is a twentieth of one that they would share. Every other
    step is for all: a flood of them takes no more than that from the rest.
    """
    if all(job.started is None for job in ring):
        return []
    texts: list[Text] = []
    for job in sorted((job for job in ring if job.started is None), key=lambda job: job.submitted):
        if job.tokens <= room:
            texts += [(job, index) for index in job.pending]
            room -= job.tokens
    return texts


def _newcomers_early(ring: deque[Job], nominees: list[Text], room: int) -> list[Text]:
    """Move requests that nothing has been run of behind the step's leader, oldest first, and nominate more of them.

    Where bulk requests fill the step before their turn comes, or leave no row with room, they would wait for another.
    What is nominated here, `room` tokens at most, is charged to them. The leader is placed before them: they keep no
    older request waiting.
    """
    leader, *others = nominees
    nominated = {job for job, _ in nominees}
    early = [text for text in others if text[0].started is None]
    late = [text for text in others if text[0].started is not None]
    for job in sorted((j for j in ring if j.started is None and j not in nominated), key=lambda j: j.submitted):
        length = job.items[job.pending[0]].length
        if length > room:
            break
        early.append((job, job.pending[0]))
        job.deficit -= length
        room -= length
    return [leader, *early, *late]


def _fillers(ring: deque[Job], nominated: set[Text]) -> list[Text]:
    """Sample waiting texts of every length, from requests in turn, for the gaps of a step."""
    share = max(1, MOST_FILLERS // len(ring))
    fillers: list[Text] = []
    for job in ring:
        stride = -(-len(job.pending) // share)
        fillers += [(job, i) for i in job.pending[::stride] if (job, i) not in nominated]
        if len(fillers) >= MOST_FILLERS:
            break
    return fillers
