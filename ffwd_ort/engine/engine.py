"""The engine: one thread that owns every session. Take, pack, run, deliver."""

import logging
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

import numpy as np

from ffwd_ort.bundle import Bundle
from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.packing import EncodeStep, Placement, Plan, lay_out, plan_step
from ffwd_ort.engine.queue import Batch, FairQueue, Job
from ffwd_ort.engine.sequences import Floats, Sequence, make_sequence
from ffwd_ort.engine.sessions import Runner
from ffwd_ort.engine.shapes import EncodeShape
from ffwd_ort.errors import (
    Abandoned,
    Draining,
    FfwdError,
    InferenceFailed,
    NonFiniteVector,
    NotReady,
    RequestError,
)

log = logging.getLogger(__name__)

STARTING, SERVING, FAILED, DRAINING, CLOSED = "starting", "serving", "failed", "draining", "closed"
WARM_UP_SECONDS = 20.0
# A step is stuck once it takes this many times its shape's measured time, or this long if that is more.
STUCK_FACTOR, STUCK_SECONDS = 20.0, 30.0
POLL_SECONDS = 0.25


@dataclass
class LoadedModel:
    """A label with its session. `seconds` has the measured time of every shape that was run."""

    served: ServedModel
    runner: Runner
    loaded_at: float
    seconds: dict[EncodeShape, float] = field(default_factory=dict)

    def usual(self, shape: EncodeShape) -> float:
        """Return the seconds a shape takes: as measured, or reckoned from the measured one whose cost is nearest."""
        if shape in self.seconds or not self.seconds:
            return self.seconds.get(shape, 0.0)
        cost = self.served.packing.cost
        near = min(self.seconds, key=lambda known: abs(cost(known) - cost(shape)))
        return self.seconds[near] * cost(shape) / cost(near)


@dataclass(frozen=True)
class Loader:
    """How one label is loaded: both parts are called on the engine's thread."""

    label: str
    settle: Callable[[], ServedModel]
    open: Callable[[Bundle], Runner]


@dataclass(frozen=True)
class StepDone:
    """One encode step that ran: `size` tokens were computed, `tokens` of them real.

    `texts` sequences have their vectors of it; equal ones of several requests are computed once and counted each.
    """

    label: str
    shape: EncodeShape
    size: int
    tokens: int
    texts: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """A request's vectors, in the order of its texts, and where its time went, in seconds."""

    vectors: list[Floats]
    queued: float
    inferred: float

    @property
    def pooled(self) -> Floats:
        """The vectors [texts, dim], where each text has one."""
        return np.stack(self.vectors)


class Engine:
    """Encodes sequences for several models, fairly, on one thread of its own.

    `on_serving` is called from that thread once everything is loaded, `on_step` after every step, `on_failure` once
    the engine can serve no more, with the reason.
    """

    def __init__(
        self,
        loaders: Seq[Loader],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = 0.0,
        warm_up_seconds: float = WARM_UP_SECONDS,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        on_serving: Callable[[], None] = lambda: None,
    ) -> None:
        self.models: dict[str, LoadedModel] = {}
        self.state = STARTING
        self.loaded = False  # whether it has ever served
        self._loaders = loaders
        self._clock = clock
        self._warm_up_seconds = warm_up_seconds
        self.on_failure = on_failure
        self.on_serving = on_serving
        self.on_step: Callable[[StepDone], None] = lambda step: None
        self._queue = FairQueue(clock, wait_seconds)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._settled = threading.Event()  # loaded, or failed
        self._running: tuple[float, float] | None = None  # when the step began, and when it counts as stuck

    # --- what callers do -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it loads and warms up before it serves. Returns at once."""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._main, name="ffwd-engine", daemon=True)
        self._thread.start()

    def wait_until_loaded(self, timeout: float | None = None) -> bool:
        """Wait until the engine serves or has failed; tell whether it has come to either."""
        return self._settled.wait(timeout)

    def submit(self, label: str, sequences: Seq[Sequence], deadline: float) -> tuple[Job, list[int]]:
        """Queue a request's sequences; equal ones are computed once.

        Returns the job and, for each sequence, its place among the job's distinct ones. `deadline` is in
        the clock's time and bounds the wait for the first encode step. Raises RequestError if the request
        cannot be taken, RuntimeError in a process that did not start the engine.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(f"this engine belongs to process {self._pid}; sessions do not survive a fork")
        if self.state not in (SERVING, DRAINING):  # who drains takes no new requests, but finishes those it has
            raise Draining("the engine is closed") if self.state == CLOSED else NotReady(self.state)
        keys = [sequence.key() for sequence in sequences]
        distinct = dict(zip(keys, sequences, strict=True))
        places = {key: place for place, key in enumerate(distinct)}
        order = [places[key] for key in keys]
        job = Job(label, distinct, self._clock(), deadline)
        self._queue.put(job)
        return job, order

    def encode(
        self,
        label: str,
        sequences: Seq[Sequence],
        *,
        timeout: float = 120.0,
        gone: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Encode a request and wait for it. `gone` is asked now and then whether the caller has left.

        Raises RequestError: overloaded, past its deadline, abandoned, failed or not finite.
        """
        job, order = self.submit(label, sequences, self._clock() + timeout)
        try:
            found = self._wait(job, gone)
        except BaseException:  # the caller's own interrupt included: nobody waits any more
            job.abandon()
            raise
        queued = (job.started or job.submitted) - job.submitted
        return Result([found[place] for place in order], queued, job.infer_seconds)

    def _wait(self, job: Job, gone: Callable[[], bool]) -> list[Floats]:
        while True:
            try:
                left = job.deadline - self._clock()
                return job.future.result(min(POLL_SECONDS, left) if job.started is None and left > 0 else POLL_SECONDS)
            except FutureTimeout:
                self._check_waiting(job, gone)

    def _check_waiting(self, job: Job, gone: Callable[[], bool]) -> None:
        error = job.expired(self._clock())
        if error is None and gone():
            error = Abandoned("the client left")
        if error is not None:
            raise error
        if self.state == FAILED and not job.future.done():
            raise InferenceFailed("the engine failed while this request was in a step")

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a step."""
        return self._queue.queued_tokens

    def watch_queue(self, on_change: Callable[[int], None]) -> None:
        """Have the number of waiting tokens told whenever it changes, on whatever thread changed it."""
        self._queue.on_change = on_change

    def drain(self) -> None:
        """Say that the process is about to stop; requests that were taken are still finished."""
        if self.state == SERVING:
            self.state = DRAINING

    def close(self, error: RequestError | None = None, timeout: float | None = 10.0) -> None:
        """Finish what was taken, or answer it with `error` at once, and end the thread. May be called twice."""
        if self.state != FAILED:
            self.state = CLOSED
        self._queue.close(error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def running_since(self) -> float | None:
        """When the step that runs now began; None between steps."""
        return self._running[0] if self._running else None

    def stuck(self) -> bool:
        """Tell whether the step that runs has taken far longer than its shape ever should."""
        running = self._running
        return running is not None and self._clock() > running[1]

    def fail(self, error: BaseException) -> None:
        """Mark the engine failed and answer everything that waits."""
        self.state = FAILED
        self._queue.close(InferenceFailed("the engine failed"))
        self.on_failure(error)
        self._settled.set()

    # --- the engine's thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._load()
            self.loaded = True
            if self.state == STARTING:
                self.state = SERVING
            self.on_serving()
            self._settled.set()
            self._serve()
        except BaseException as error:  # whatever ends this thread must reach those who wait for it
            self.fail(error)

    def _serve(self) -> None:
        while (batch := self._queue.take()) is not None:
            try:
                self._deliver(batch, self._run(batch))
            except Exception:
                self._retry_apart(batch)

    def _run(self, batch: Batch) -> tuple[EncodeStep, Floats]:
        model = self.models[batch.model]
        step = lay_out(batch.plan, batch.sequences(), model.served.positions)
        began = self._clock()
        self._running = (began, began + max(STUCK_SECONDS, STUCK_FACTOR * model.usual(step.shape)))
        try:
            output = model.runner.run(step.feeds(model.served.manifest.inputs))
        finally:
            self._running = None
            seconds = self._clock() - began
            for job in {job for job, _ in batch.chosen()}:
                job.infer_seconds += seconds
        self._queue.measured(step.input_ids.size, seconds)
        tokens = int((step.segment_ids != -1).sum())
        size, texts = step.input_ids.size, len(batch.chosen())
        self.on_step(StepDone(batch.model, step.shape, size, tokens, texts, seconds))
        if not all(np.isfinite(_of(output, p)).all() for p in step.placements):
            raise NonFiniteVector("a vector has NaN or infinity")
        return step, output

    def _deliver(self, batch: Batch, done: tuple[EncodeStep, Floats]) -> None:
        step, output = done
        for p in step.placements:
            for job, index in batch.members[p.item]:  # a copy each: requests share no memory
                job.deliver(index, job.sequences[index].finish(_of(output, p)))

    def _retry_apart(self, batch: Batch) -> None:
        """Run a failed step again request by request, so that only the one which carries the poison fails.

        A text with NaN spoils its whole row: a masked weight of 0 times NaN is NaN.
        """
        packing = self.models[batch.model].served.packing
        apart: dict[Job, list[int]] = {}
        for job, index in batch.chosen():
            apart.setdefault(job, []).append(index)
        for job, waiting in apart.items():
            try:
                while waiting:
                    plan = plan_step([job.items[i] for i in waiting], [], packing)
                    single = Batch(batch.model, plan, [[(job, i)] for i in waiting])
                    self._deliver(single, self._run(single))
                    done = {i for _, i in single.chosen()}
                    waiting = [i for i in waiting if i not in done]
            except NonFiniteVector as error:
                self._queue.withdraw(job, error)
            except Exception as error:
                log.error("an encode step failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
                self._queue.withdraw(job, InferenceFailed("the runtime raised"))

    # --- loading ---------------------------------------------------------------------------------------

    def _load(self) -> None:
        runners: dict[Bundle, Runner] = {}
        seconds: dict[Bundle, dict[EncodeShape, float]] = {}
        left: dict[Bundle, float] = {}  # of each one's time for warming up
        for loader in self._loaders:
            served = loader.settle()
            bundle = served.bundle
            if bundle not in runners:  # two labels of one bundle share its session
                runners[bundle] = loader.open(bundle)
                seconds[bundle] = {}
            model = LoadedModel(served, runners[bundle], time.time(), seconds[bundle])
            left[bundle] = self._warm_up(model, left.get(bundle, self._warm_up_seconds))
            self.models[loader.label] = model
            self._queue.add_model(loader.label, served.packing)

    def _warm_up(self, model: LoadedModel, budget: float) -> float:
        """Run the shapes, largest first, so that memory is taken now and no request pays for a first run.

        Leaves out what a time budget does not allow: on CPU nothing compiles, and what was not run rests on the
        memory model. The smallest shape goes before all: it tells how fast the machine is. Returns what is left of the
        budget, in seconds: labels of one bundle share it, as they share its session.
        """
        end = self._clock() + budget
        shapes = model.served.packing.shapes()
        for shape in (shapes[-1], *shapes):
            left = end - self._clock()
            if shape in model.seconds or left <= 0 or model.usual(shape) > left:
                continue
            start = self._clock()
            try:
                step = _blank_step(model.served, shape)
                model.runner.run(step.feeds(model.served.manifest.inputs))
            except Exception as error:
                raise FfwdError(
                    f"{model.served.label}: the shape {shape.rows}x{shape.seq} does not run: {_line(error)}; "
                    "a smaller --max-seq or --step-tokens needs less memory"
                ) from None
            model.seconds[shape] = self._clock() - start
        return max(0.0, end - self._clock())


def _of(output: Floats, p: Placement) -> Floats:
    """Take one text's vectors [count, dim] out of a step's output."""
    vectors: Floats = output[p.row, p.first : p.first + p.count]
    return vectors


def _line(error: Exception) -> str:
    """Say what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _blank_step(served: ServedModel, shape: EncodeShape) -> EncodeStep:
    """Make a step of the shape with one text as long as allowed in every row."""
    ids = np.full(min(shape.seq, served.cap.tokens), served.manifest.pad_id, np.int32)
    long = served.packing.is_long(shape.seq)
    slots = 1 if long else served.packing.slots(shape.seq)
    plan = Plan(shape, slots, tuple((row,) for row in range(shape.rows)), long)
    return lay_out(plan, [make_sequence(ids, served.pooling)] * shape.rows, served.positions)
