"""The engine with real sessions: same vector in any company, and an answer for every request whatever breaks."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.engine import CLOSED, FAILED, SERVING, Engine
from ffwd_ort.engine.model import Limits
from ffwd_ort.engine.sequences import Floats, Sequence, make_sequence
from ffwd_ort.engine.sessions import Runner, SessionSettings, open_runner
from ffwd_ort.errors import Abandoned, DeadlineExceeded, InferenceFailed, NonFiniteVector, NotReady, RefusedError
from ffwd_ort.loading import make_engine

SMALL_STEPS = Limits(step_tokens=128)
POISON = 99  # a token id that makes the faulty sessions below misbehave


class Faulty:
    """A session handed in through the engine's own seam: it runs the real one, then does what `fault` says."""

    def __init__(self, real: Runner, fault: Callable[[Mapping[str, Any], Floats], Floats]) -> None:
        self.real = real
        self.fault = fault
        self.provider = real.provider
        self.execution_providers = real.execution_providers

    def run(self, feeds: Mapping[str, Any]) -> Floats:
        return self.fault(feeds, self.real.run(feeds))


@pytest.fixture(scope="module")
def bundle(tiny: Path, cache_dir: Path) -> Bundle:
    return BundleCache(cache_dir).open(str(tiny))


Start = Callable[..., Engine]


@pytest.fixture
def start(bundle: Bundle) -> Iterator[Start]:
    """Start engines for the tiny model, each with a fault if one is given."""
    engines: list[Engine] = []

    def start_one(
        fault: Callable[[Mapping[str, Any], Floats], Floats] | None = None,
        labels: tuple[str, ...] = ("tiny",),
        limits: Limits = SMALL_STEPS,
        **options: Any,
    ) -> Engine:
        def open_session(bundle: Bundle, settings: SessionSettings) -> Runner:
            real = open_runner(bundle, settings)
            return Faulty(real, fault) if fault else real

        specs = [(ModelSpec(label, "unused"), bundle) for label in labels]
        engine = make_engine(specs, limits, SessionSettings("cpu"), open_session=open_session, **options)
        engines.append(engine)
        engine.start()
        assert engine.wait_until_loaded(30)
        return engine

    yield start_one
    for engine in engines:
        engine.close(timeout=5)


def texts(*lengths: int, seed: int = 0) -> list[Sequence]:
    random = np.random.default_rng(seed)
    return [make_sequence(random.integers(5, 90, n).astype(np.int32), ("mean",)) for n in lengths]


def poisoned() -> list[Sequence]:
    return [make_sequence(np.array([2, POISON, 3], np.int32), ("mean",))]


def poison_rows(feeds: Mapping[str, Any]) -> Any:
    return (feeds["input_ids"] == POISON).any(axis=1)


def test_a_vector_does_not_depend_on_its_company(start: Start) -> None:
    engine = start()
    sequences = texts(*range(2, 100, 3), 5, 5, 128)
    together = engine.encode("tiny", sequences).pooled
    alone = np.concatenate([engine.encode("tiny", [sequence]).pooled for sequence in sequences])
    backwards = engine.encode("tiny", sequences[::-1]).pooled[::-1]
    scale = np.linalg.norm(alone, axis=1, keepdims=True)
    assert np.abs((together - alone) / scale).max() < 5e-6
    assert np.abs((together - backwards) / scale).max() < 5e-6


def test_concurrent_requests_each_get_their_own_vectors_in_order(start: Start) -> None:
    engine = start()
    requests = [texts(*np.random.default_rng(i).integers(2, 120, 12), seed=i) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda request: engine.encode("tiny", request).pooled, requests))
    for request, vectors in zip(requests, found, strict=True):
        again = engine.encode("tiny", request).pooled
        assert np.abs(vectors - again).max() < 5e-6 * np.abs(again).max() * 10


def test_equal_texts_of_a_request_are_computed_once(start: Start) -> None:
    ran: list[int] = []
    engine = start(lambda feeds, output: (ran.append(int((feeds["segment_ids"] >= 0).sum())), output)[1])
    ran.clear()
    (one,) = texts(20)
    vectors = engine.encode("tiny", [one] * 50).pooled
    assert ran == [20]
    assert vectors.shape == (50, 48) and (vectors == vectors[0]).all()


def test_a_step_that_fails_fails_only_the_request_that_carries_the_poison(start: Start) -> None:
    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        if poison_rows(feeds).any():
            raise RuntimeError("a path in the message: /var/lib/model.onnx")
        return output

    engine = start(fault, wait_seconds=0.2)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(engine.encode, "tiny", texts(9, 30, seed=i)) for i in range(3)]
        bad = pool.submit(engine.encode, "tiny", poisoned())
        with pytest.raises(InferenceFailed):
            bad.result()
        assert all(np.isfinite(future.result().pooled).all() for future in good)
    assert engine.state == SERVING


def test_a_vector_that_is_not_finite_never_leaves_and_spoils_no_neighbour(start: Start) -> None:
    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        output = output.copy()
        output[poison_rows(feeds)] = np.nan  # a NaN spoils its whole row
        return output

    engine = start(fault, wait_seconds=0.2)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(engine.encode, "tiny", texts(9, 30, seed=i)) for i in range(3)]
        bad = pool.submit(engine.encode, "tiny", poisoned())
        with pytest.raises(NonFiniteVector):
            bad.result()
        assert all(np.isfinite(future.result().pooled).all() for future in good)


def test_when_the_engine_thread_dies_every_request_is_answered_and_the_state_says_failed(start: Start) -> None:
    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        if poison_rows(feeds).any():
            raise SystemExit("the thread ends here")
        return output

    failures: list[BaseException] = []
    engine = start(fault, on_failure=failures.append, wait_seconds=0.2)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(engine.encode, "tiny", texts(50, 60, seed=i)) for i in range(6)]
        futures.append(pool.submit(engine.encode, "tiny", poisoned()))
        for future in futures:
            assert isinstance(future.exception(timeout=10), InferenceFailed | type(None))
        assert isinstance(futures[-1].exception(), InferenceFailed)
    assert engine.state == FAILED and len(failures) == 1
    with pytest.raises(NotReady):
        engine.encode("tiny", texts(5))


def test_a_stuck_step_is_noticed_and_what_waits_is_answered(start: Start) -> None:
    hold = threading.Event()

    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        if poison_rows(feeds).any():
            hold.wait(20)
        return output

    now = [0.0]
    engine = start(fault, clock=lambda: now[0])
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(engine.encode, "tiny", poisoned())
        while engine.running_since is None:
            pass
        waiting = pool.submit(engine.encode, "tiny", texts(5))
        while not engine.queued_tokens:
            pass
        assert not engine.stuck()
        now[0] += 31
        assert engine.stuck()
        engine.fail(RuntimeError("hangs"))
        assert isinstance(running.exception(5), InferenceFailed)
        assert isinstance(waiting.exception(5), InferenceFailed)
        hold.set()


def test_the_deadline_bounds_the_wait_for_the_first_step(start: Start) -> None:
    hold = threading.Event()

    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        if poison_rows(feeds).any():
            hold.wait(20)
        return output

    engine = start(fault)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.encode, "tiny", poisoned(), timeout=0.2)
        while engine.running_since is None:
            pass
        with pytest.raises(DeadlineExceeded):
            engine.encode("tiny", texts(5), timeout=0.1)
        hold.set()
        assert running.result(5).pooled.shape == (1, 48), "work that has begun is finished"


def test_a_caller_that_left_is_not_computed_for(start: Start) -> None:
    ran: list[Any] = []
    hold = threading.Event()

    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        ran.append(feeds["input_ids"].copy())
        if poison_rows(feeds).any():
            hold.wait(20)
        return output

    engine = start(fault)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.encode, "tiny", poisoned())
        while engine.running_since is None:
            pass
        with pytest.raises(Abandoned):
            engine.encode("tiny", texts(77), gone=lambda: True)
        before = len(ran)
        hold.set()
        running.result(5)
        engine.encode("tiny", texts(5))
    assert len(ran) == before + 1, "only the last request ran"


def test_closing_finishes_what_was_taken_and_may_be_repeated(start: Start) -> None:
    engine = start()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(engine.encode, "tiny", texts(*[100] * 20, seed=i)) for i in range(4)]
        while not engine.queued_tokens:
            pass
        engine.close()
        assert all(future.result(20).pooled.shape == (20, 48) for future in futures if not future.exception())
        assert any(future.exception() is None for future in futures)
    engine.close()
    assert engine.state == CLOSED


def test_who_drains_still_finishes_requests_that_were_admitted(start: Start) -> None:
    engine = start()
    engine.drain()
    assert engine.encode("tiny", texts(5)).pooled.shape == (1, 48)


def test_lone_queries_do_not_make_the_machine_seem_slow(start: Start) -> None:
    """A wait is reckoned from tokens computed: the 4 of a query in a row of 16 would say a quarter of the speed."""
    hold, now = threading.Event(), [0.0]

    def fault(feeds: Mapping[str, Any], output: Floats) -> Floats:
        now[0] += 0.01
        if poison_rows(feeds).any():
            hold.wait(20)
        return output

    engine = start(fault, clock=lambda: now[0])
    for _ in range(5):
        engine.encode("tiny", texts(4))  # 16 tokens computed in 0.01 s: 1600 a second
    with ThreadPoolExecutor(3) as pool:
        pool.submit(engine.encode, "tiny", poisoned())
        while engine.running_since is None:
            pass
        bulk = pool.submit(engine.encode, "tiny", texts(*[128] * 10, seed=1))
        while not engine.queued_tokens:
            pass
        query = pool.submit(engine.encode, "tiny", texts(5), timeout=2.0)  # 1280 tokens ahead: 0.8 s
        while engine.queued_tokens < 1285 and not query.done():
            pass
        hold.set()
        assert query.result(10).pooled.shape == (1, 48) and bulk.result(10).pooled.shape == (10, 48)


def test_an_engine_that_never_started_closes(bundle: Bundle) -> None:
    engine = make_engine([(ModelSpec("tiny", ""), bundle)], Limits(), SessionSettings("cpu"))
    engine.close()


def test_submitting_from_another_process_is_refused_by_name(start: Start) -> None:
    engine = start()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.submit("tiny", texts(5), 1e9)
            os.write(writer, b"taken")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert str(os.getpid()).encode() in os.read(reader, 1000)
    os.close(reader)


def test_two_labels_of_one_bundle_share_its_session(start: Start) -> None:
    engine = start(labels=("a", "b"))
    assert engine.models["a"].runner is engine.models["b"].runner
    (sequence,) = texts(9)
    assert np.array_equal(engine.encode("a", [sequence]).pooled, engine.encode("b", [sequence]).pooled)


def test_every_shape_is_run_before_the_first_request_the_smallest_first_to_tell_the_speed_then_largest_first(
    start: Start,
) -> None:
    shapes: list[Any] = []
    engine = start(lambda feeds, output: (shapes.append(feeds["input_ids"].shape), output)[1])
    expected = [(shape.rows, shape.seq) for shape in engine.models["tiny"].served.packing.shapes()]
    assert shapes == [expected[-1], *expected[:-1]] and len(expected) > 4


def test_a_model_that_fails_to_load_fails_the_engine_with_its_reason(bundle: Bundle) -> None:
    failures: list[BaseException] = []
    limits = Limits(memory_utilization=1e-9)
    engine = make_engine([(ModelSpec("tiny", ""), bundle)], limits, SessionSettings("cpu"), on_failure=failures.append)
    engine.start()
    engine.wait_until_loaded(10)
    assert engine.state == FAILED and not engine.loaded
    assert isinstance(failures[0], RefusedError) and "memory" in str(failures[0])


@pytest.mark.parametrize("provider", ["cuda", "coreml"])
def test_a_provider_asked_for_and_not_obtained_is_an_error(bundle: Bundle, provider: str) -> None:
    import onnxruntime

    if {"cuda": "CUDA", "coreml": "CoreML"}[provider] in str(onnxruntime.get_available_providers()):
        pytest.skip(f"this machine has {provider}")
    with pytest.raises(RefusedError, match=f"--provider {provider}.*CPUExecutionProvider"):
        open_runner(bundle, SessionSettings(provider))


def test_the_numpy_evaluator_agrees_with_the_runtime(start: Start, bundle: Bundle) -> None:
    engine = start()
    sequences = texts(3, 20, 40)
    reference = make_engine(
        [(ModelSpec("tiny", ""), bundle)], Limits(step_tokens=64), SessionSettings("numpy"), warm_up_seconds=0
    )
    reference.start()
    try:
        assert reference.wait_until_loaded(30)
        found = reference.encode("tiny", sequences).pooled
        assert reference.models["tiny"].runner.provider == "numpy"
    finally:
        reference.close()
    assert np.abs(found - engine.encode("tiny", sequences).pooled).max() < 1e-5


def test_the_runtime_reports_nothing_to_its_makers(bundle: Bundle, tmp_path: Path) -> None:
    """Left to itself it writes a device id beside its queue of events within a tenth of a second."""
    script = (
        "import sys, time; from pathlib import Path; from ffwd_ort.bundle import open_bundle\n"
        "from ffwd_ort.engine.sessions import SessionSettings, open_runner\n"
        "open_runner(open_bundle(Path(sys.argv[1])), SessionSettings('cpu')); time.sleep(1)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORT_", "XDG_"))} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script, str(bundle.path)], env=environment, check=True, timeout=60)
    assert list(tmp_path.rglob("*")) == []


def test_requests_that_ask_for_the_same_text_share_a_step_s_vector_but_no_memory(start: Start) -> None:
    computed: list[int] = []
    engine = start(
        lambda feeds, out: (computed.append(int((feeds["segment_ids"] >= 0).sum())), out)[1], wait_seconds=0.5
    )
    computed.clear()
    (mine, _), (theirs, _) = (engine.submit("tiny", texts(20), engine._clock() + 60) for _ in range(2))
    (first,), (second,) = mine.future.result(30), theirs.future.result(30)
    assert computed == [20]
    assert (first == second).all() and not np.shares_memory(first, second)


def test_labels_of_one_bundle_share_the_time_in_which_its_shapes_are_run(start: Start) -> None:
    def runs(*labels: str) -> int:
        seen: list[int] = []
        ticks = itertools.count()
        start(
            lambda feeds, out: (seen.append(1), out)[1],
            labels=labels,
            clock=lambda: next(ticks) * 0.5,
            warm_up_seconds=12.0,
        )
        return len(seen)

    few = runs("one")
    assert 1 < few == runs("one", "two", "three")
