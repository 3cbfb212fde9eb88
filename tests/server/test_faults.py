"""Faults under load: killed and recycled workers, a reload, a full disk, a clock that jumps, a stuck step, no memory.

A flood beyond the limit is in test_lifecycle.py, a full disk while a bundle is written in test_bundle.py.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from benchmarks.soak import wait_for_all, workers_of
from ffwd_ort.cache import BundleCache
from ffwd_ort_conformance.tiny import long_text
from tests.server.test_metrics import eventually, scrape, share, value
from tests.serving import Server, free_port

Serve = Callable[..., Server]
INPUTS = [[long_text(n), long_text(n + 3)] for n in range(3, 60, 7)]


class Clients:
    """Clients that ask until they are stopped, and again when a connection breaks; half keep theirs."""

    def __init__(self, server: Server, many: int = 8) -> None:
        self.port = server.port
        self.statuses: Counter[int] = Counter()
        self.broken: Counter[str] = Counter()
        self.wrong = 0
        self._right = [self._ask(HTTPConnection("127.0.0.1", self.port, timeout=60), i)[1] for i in range(len(INPUTS))]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=[i], daemon=True) for i in range(many)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def wait_for_more(self, answers: int = 150) -> None:
        """Wait until so many more requests were answered."""
        goal, deadline = self.statuses.total() + answers, time.monotonic() + 60
        while self.statuses.total() < goal:
            assert time.monotonic() < deadline, (self.statuses, self.broken)
            time.sleep(0.01)

    def _ask(self, connection: HTTPConnection, which: int) -> tuple[int, np.ndarray]:
        connection.request("POST", "/v1/embeddings", json.dumps({"model": "m", "input": INPUTS[which]}))
        reply = connection.getresponse()
        body = json.loads(reply.read())
        return reply.status, np.array([entry["embedding"] for entry in body.get("data", [])])

    def _run(self, which: int) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self._stop.is_set():
            try:
                status, vectors = self._ask(connection, which % len(INPUTS))
            except (OSError, HTTPException) as error:
                connection.close()
                with self._lock:
                    self.broken[type(error).__name__] += 1
                continue
            with self._lock:
                self.statuses[status] += 1
                right = self._right[which % len(INPUTS)]
                self.wrong += vectors.shape != right.shape or bool(np.abs(vectors - right).max() > 5e-6)
            if which % 2:
                connection.close()
        connection.close()

    def check(self, server: Server) -> None:
        """Hold the answers to 200 and the right vectors, and the counter to what was answered.

        A request whose connection broke may have been counted before its answer was lost.
        """
        assert set(self.statuses) == {200} and not self.wrong, (self.statuses, self.wrong)
        answered = self.statuses.total() + len(INPUTS)
        counted = value(scrape(server), "ffwd_requests_total", route="/v1/embeddings", status="200")
        assert answered <= counted <= answered + self.broken.total()


def until(check: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_killed_under_load_costs_no_request_and_its_successor_is_warm_before_it_accepts(
    serve: Serve, tiny: Path, tmp_path: Path
) -> None:
    numbers = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "numbers")}
    server = serve("--model", f"m={tiny}", "--workers", "2", env=numbers)
    wait_for_all(server, 2)
    prepared = server.get("/health").json()["models"][0]["prepared_shapes"]
    old = workers_of(server.process.pid)
    with Clients(server) as clients:
        clients.wait_for_more()
        os.kill(old[0], signal.SIGKILL)
        until(lambda: len(set(workers_of(server.process.pid)) - set(old)) == 1)
        (new,) = set(workers_of(server.process.pid)) - set(old)

        def serves() -> bool:
            health = server.get("/health")  # either's: neither is ever seen starting, or with fewer shapes
            assert (health.status, health.json()["models"][0]["prepared_shapes"]) == (200, prepared)
            counted = (tmp_path / "numbers" / f"counter_{new}.db").exists()
            return counted and share(server, new, "counter", "ffwd_requests_total", route="/v1/embeddings") > 20

        until(serves)
    clients.check(server)
    eventually(lambda: idle(server))


def idle(server: Server) -> None:
    series = scrape(server)
    assert value(series, "ffwd_inflight_requests") == 0 and value(series, "ffwd_queued_tokens") == 0


def test_in_a_reload_the_old_workers_serve_until_the_new_ones_do_and_no_request_fails(
    tiny: Path, cache_dir: Path, tmp_path: Path
) -> None:
    bundle, gate = BundleCache(cache_dir).open(str(tiny)).path, tmp_path / "gate"
    gate.touch()
    arguments = [str(bundle), f"loading:{gate}", "--workers", "2"]
    server = Server(arguments, tmp_path / "log", module="tests.server.edge.faulty")
    try:
        wait_for_all(server, 2)
        old = set(workers_of(server.process.pid))
        with Clients(server) as clients:
            clients.wait_for_more()
            gate.unlink()
            server.process.send_signal(signal.SIGHUP)
            until(lambda: len(set(workers_of(server.process.pid)) - old) == 2)
            clients.wait_for_more()  # the new ones load for as long as the gate is closed
            assert old < set(workers_of(server.process.pid))
            gate.touch()
            until(lambda: not old & set(workers_of(server.process.pid)))
            clients.wait_for_more()
        clients.check(server)
        assert len(workers_of(server.process.pid)) == 2
        server.terminate()
        assert server.wait() == 0
    finally:
        gate.touch()
        server.stop()


def test_recycling_workers_after_so_many_requests_shows_no_gap_while_the_other_serves(
    tiny: Path, cache_dir: Path, tmp_path: Path
) -> None:
    """gunicorn's own setting: with the jitter the two do not end at once."""
    server = Server.__new__(Server)
    server.port, server.log = free_port(), tmp_path / "log"
    given = {"MODEL": f"m={tiny}", "PORT": str(server.port), "CACHE_DIR": str(cache_dir), "WORKERS": "2"}
    command = [sys.executable, "-m", "gunicorn", "-c", "python:ffwd_ort.server.gunicorn_conf"]
    command += ["--max-requests", "300", "--max-requests-jitter", "300"]
    environment = {**os.environ, **{f"FFWD_{name}": text for name, text in given.items()}}
    with server.log.open("wb") as log:
        server.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for_all(server, 2)
        seen: set[int] = set()
        with Clients(server) as clients:
            while len(seen) < 5:
                clients.wait_for_more(10)
                seen |= set(workers_of(server.process.pid))
        clients.check(server)
    finally:
        server.stop()


def ends_with(server: Server) -> int:
    """Return the code with which a server ends by itself; it is ended if it does not."""
    try:
        return server.wait(30)
    finally:
        server.stop()


def test_a_cache_folder_that_takes_no_bundle_ends_the_server_with_3_and_the_reason(tiny: Path, tmp_path: Path) -> None:
    server = Server(["--model", f"m={tiny}", "--cache-dir", str(tmp_path / "cache")], tmp_path / "log")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))
    assert ends_with(server) == 3
    assert server.output.startswith("ffwd-server: cannot write the bundle ") and server.output.count("\n") == 1
    assert "is the disk full?" in server.output


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a disk to fill cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Write until there is no room; returns the file."""
    with (disk / "filler").open("ab", 0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1024))
    return disk / "filler"


def test_a_server_without_room_for_its_numbers_ends_with_3_and_the_reason(
    tiny: Path, cache_dir: Path, tmp_path: Path, disk: Path
) -> None:
    fill(disk)
    numbers = {"PROMETHEUS_MULTIPROC_DIR": str(disk / "numbers")}
    server = Server(["--model", f"m={tiny}", "--cache-dir", str(cache_dir)], tmp_path / "log", numbers)
    assert ends_with(server) == 3
    assert server.output.startswith(f"ffwd-server: the workers' numbers cannot be kept in {disk / 'numbers'}: ")
    assert "No space left on device" in server.output and server.output.count("\n") == 1


def test_workers_that_serve_go_on_while_the_disk_of_their_log_and_numbers_is_full(
    tiny: Path, cache_dir: Path, disk: Path
) -> None:
    """A write to a mapped page that the full disk does not have would be SIGBUS."""
    numbers = {"PROMETHEUS_MULTIPROC_DIR": str(disk / "numbers")}
    arguments = ["--model", f"m={tiny}:rerank=cosine", "--workers", "2", "--cache-dir", str(cache_dir)]
    server = Server(arguments, disk / "log", numbers)
    try:
        wait_for_all(server, 2)
        before = workers_of(server.process.pid)
        filler = fill(disk)
        with Clients(server) as clients:
            clients.wait_for_more()
            for path in ("/v1/embeddings", "/v1/rerank", "/embed", "/v1/tokenize", "/nowhere"):  # series not there yet
                assert {server.post(b"{", path).status for _ in range(20)} <= {422, 404}
            assert workers_of(server.process.pid) == before
            os.kill(before[0], signal.SIGKILL)
            seen = set(before)
            while len(seen) < 5:  # three successors that found no room
                fill(disk)  # what the dead one left is given back, and would be room for the log
                clients.wait_for_more(10)
                seen |= set(workers_of(server.process.pid))
            assert server.get("/metrics").status == 200
            filler.unlink()
            wait_for_all(server, 2)
            clients.wait_for_more()
        clients.check(server)
        assert before[1] in workers_of(server.process.pid), "it served all the time"
        server.terminate()
        assert server.wait() == 0
    finally:
        server.stop()


def test_a_clock_that_jumps_by_a_day_ends_no_request_and_no_worker(serve: Serve, tiny: Path, tmp_path: Path) -> None:
    """Python's wall clock alone, in gunicorn and in us: what waits is to go by the monotonic one."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, time\n"
        f"offset, seconds, nanoseconds = pathlib.Path({str(offset)!r}), time.time, time.time_ns\n"
        "time.time = lambda: seconds() + int(offset.read_text() or 0)\n"
        "time.time_ns = lambda: nanoseconds() + int(offset.read_text() or 0) * 10**9\n"
    )
    server = serve("--model", f"m={tiny}", "--batch-wait-us", "50000", env={"PYTHONPATH": str(tmp_path)})
    wait_for_all(server, 1)
    before = workers_of(server.process.pid)
    with Clients(server) as clients:
        for jump in (86_400, -86_400, 0):
            clients.wait_for_more(50)
            offset.write_text(str(jump))
            time.sleep(1.1)  # for the watchdog and the master to look
            assert workers_of(server.process.pid) == before
    assert not clients.broken
    clients.check(server)
    offset.write_text("86400")
    loaded = server.get("/v1/models").json()["data"][0]["created"]
    assert abs(loaded - time.time()) < 3600, "the clock did jump, and only later"


def test_a_step_that_hangs_is_answered_500_and_its_worker_is_replaced(
    tiny: Path, cache_dir: Path, tmp_path: Path
) -> None:
    bundle, gate = BundleCache(cache_dir).open(str(tiny)).path, tmp_path / "gate"
    server = Server([str(bundle), str(gate)], tmp_path / "log", module="tests.server.fast_clock")
    try:
        wait_for_all(server, 1)
        before = workers_of(server.process.pid)
        reply = server.post({"input": "the tide"})
        assert (reply.status, reply.code) == (500, "inference_failed")
        gate.touch()
        until(lambda: workers_of(server.process.pid) not in ([], before))
        wait_for_all(server, 1)
        assert server.post({"input": "the tide"}).status == 200
        assert "the engine failed: an encode step hangs" in server.output
        assert value(scrape(server), "ffwd_requests_total", route="/v1/embeddings", status="500") == 1
    finally:
        gate.touch()
        server.stop()


def test_a_largest_shape_that_finds_no_memory_ends_the_server_with_3_naming_it_and_what_to_lower(
    serve: Serve, tiny: Path
) -> None:
    large = ("--step-tokens", "65536", "--max-batch-tokens", "65536", "--threads", "1")
    serve("--model", f"m={tiny}").stop()  # the bundle is exported by now
    server = serve("--model", f"m={tiny}", *large, wait=False, env={"OPENBLAS_NUM_THREADS": "1"})
    # A limit that the plan does not read, and of which the libraries take a share: the first large step fails.
    resource.prlimit(server.process.pid, resource.RLIMIT_DATA, (300 << 20, 300 << 20))
    assert server.wait(30) == 3
    said = (
        r"^ffwd-server: m: the shape 512x128 does not run: .*; a smaller --max-seq or --step-tokens needs less memory$"
    )
    assert re.search(said, server.output, re.MULTILINE | re.DOTALL)
    assert "Traceback" not in server.output
