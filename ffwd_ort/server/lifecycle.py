"""The server's settings for gunicorn, and the life of a worker."""

import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffwd_ort.bundle import Bundle
from ffwd_ort.config import ServerConfig, bind_address
from ffwd_ort.engine.engine import SERVING, STARTING, Engine
from ffwd_ort.engine.machine import keep_memory_together
from ffwd_ort.errors import FfwdError
from ffwd_ort.loading import limits_of, make_engine, session_settings_of
from ffwd_ort.server.app import Application, create_app
from ffwd_ort.server.metrics import VARIABLE, metrics_folder, remove_folder, worker_died
from ffwd_ort.server.report import loading_failed, print_ready
from ffwd_ort.server.worker import FfwdWorker, Succession, end_process

log = logging.getLogger(__name__)

SPARE_THREADS = 64  # above the admission limit, or 429 could never be sent and /health would wait
IDLE_CONNECTIONS = 1024
BOOT_ERROR = 3  # gunicorn's own status for "do not try again"
WATCHDOG_SECONDS = 1.0
NO_ROOM_SECONDS = 1.0  # before a worker that found no room for its numbers is started anew
ANSWER_SECONDS = 2.0  # for threads to send their answers once the engine has failed

# The files in which prometheus_client keeps a worker's numbers, and their bytes: by themselves, and for each label.
# Measured with one label: 12 KiB of counters, 14 KiB of histograms.
NUMBERS = {
    "counter": (1 << 16, 1 << 15),
    "histogram": (1 << 16, 1 << 15),
    "gauge_livesum": (1 << 12, 0),
    "gauge_max": (1 << 12, 1 << 11),
}


def settings(config: ServerConfig) -> dict[str, Any]:
    """Return gunicorn's settings for a server's."""
    threads = config.requests_per_worker + SPARE_THREADS
    return {
        "bind": config.bind,
        "workers": config.workers,
        "worker_class": FfwdWorker,
        "threads": threads,
        "worker_connections": threads + IDLE_CONNECTIONS,
        "backlog": 2048,
        "keepalive": 75,
        "timeout": 120,
        "graceful_timeout": config.graceful_timeout,
        "limit_request_line": 4094,
        "limit_request_fields": 100,
        "limit_request_field_size": 8190,
        "control_socket_disable": True,
        "loglevel": "info" if config.verbose else "warning",
        "proc_name": "ffwd-server",
        "on_starting": lambda arbiter: begin(arbiter, config),
        "on_reload": lambda arbiter: arbiter.succession.begin(arbiter.worker_age),
        "pre_fork": introduce,
        "post_fork": lambda arbiter, worker: settle_in(arbiter, worker, len(config.models)),
        "post_worker_init": start_engine,
        "worker_exit": close_engine,
        "child_exit": bury,
        "on_exit": end_metrics,
    }


def begin(arbiter: Any, config: ServerConfig) -> None:
    """Make what the workers share, before there are any: the folder of their numbers, and what a reload tells them."""
    arbiter.succession = Succession()
    arbiter.metrics_given = VARIABLE in os.environ
    try:
        arbiter.metrics_folder = metrics_folder()
        try:
            for worker in range(config.workers):
                reserve_numbers(arbiter.metrics_folder, f"room{worker}", len(config.models))
        finally:
            for room in arbiter.metrics_folder.glob("*_room*.db"):
                room.unlink()
    except OSError as error:
        _say(_no_room(error))
        end_metrics(arbiter)
        sys.exit(BOOT_ERROR)


def introduce(arbiter: Any, worker: Any) -> None:
    """Give a worker what it shares with the others, before it is forked."""
    worker.succession = arbiter.succession


def settle_in(arbiter: Any, worker: Any, labels: int) -> None:
    """Take the room of a worker's numbers, in it and before anything else; without room it is started anew."""
    try:
        reserve_numbers(arbiter.metrics_folder, worker.pid, labels)
    except OSError as error:
        _say(_no_room(error))
        time.sleep(NO_ROOM_SECONDS)
        end_process(1)


def reserve_numbers(folder: Path, name: object, labels: int) -> None:
    """Have the disk hold every byte of a worker's files: they are mapped, and a write that finds none is SIGBUS.

    They appear whole, since a sibling may read them at any time. Raises OSError if there is no room.
    """
    for kind, (size, each) in NUMBERS.items():
        file, scratch = folder / f"{kind}_{name}.db", folder / f"{kind}_{name}.new"
        numbers = file.read_bytes() if file.exists() else b""  # of a dead worker that had the same pid
        try:
            scratch.write_bytes(numbers.ljust(size + each * labels, b"\0"))
            scratch.replace(file)
        finally:
            scratch.unlink(missing_ok=True)


def bury(arbiter: Any, worker: Any) -> None:
    """Take a dead worker out of the sums over live ones; its counters stay, in no more room than they need."""
    worker_died(worker.pid)
    for file in arbiter.metrics_folder.glob(f"*_{worker.pid}.db"):
        with contextlib.suppress(OSError), file.open("r+b") as numbers:
            numbers.truncate(max(8, int.from_bytes(numbers.read(4), sys.byteorder)))  # how much is in use


def end_metrics(arbiter: Any) -> None:
    """Remove the folder of the workers' numbers once they have ended."""
    if (folder := getattr(arbiter, "metrics_folder", None)) is not None:
        remove_folder(folder, arbiter.metrics_given)


def _no_room(error: OSError) -> FfwdError:
    return FfwdError(
        f"the workers' numbers cannot be kept in {os.environ.get(VARIABLE, tempfile.gettempdir())}: {error}"
    )


def load_app(config: ServerConfig, bundles: Sequence[Bundle]) -> Application:
    """Make a worker's application; nothing is opened before its engine is started."""
    engine = make_engine(
        list(zip(config.models, bundles, strict=True)),
        limits_of(config),
        session_settings_of(config),
        wait_seconds=config.batch_wait_us / 1e6,
    )
    return create_app(engine, config)


def start_engine(worker: Any) -> None:
    """Start the engine after the fork. The first workers accept at once and answer `starting`.

    A worker that replaces another loads before it accepts, so that its sibling's death never shows.
    """
    keep_memory_together()
    app: Application = worker.wsgi
    engine = app.engine
    bound = _bound_address(worker) if worker.age == 1 else None  # one of several speaks for all
    engine.on_serving = lambda: _serving(app, bound)
    engine.on_failure = lambda error: _end(engine, error)
    engine.start()
    if worker.age > worker.cfg.workers:
        while not engine.wait_until_loaded(1.0):
            worker.notify()
        worker.succession.serves(worker.age)
    threading.Thread(target=_watch, args=[engine], name="ffwd-watchdog", daemon=True).start()


def close_engine(_arbiter: Any, worker: Any) -> None:
    """Close the engine as the worker ends; also called for workers that never started one."""
    app = getattr(worker, "wsgi", None)
    if app is not None and worker.pid == os.getpid():
        app.engine.close()


def _serving(app: Application, bound: str | None) -> None:
    app.publish_metrics()
    if bound is None:
        return
    with contextlib.suppress(OSError):  # nobody reads standard output any more: that ends no engine
        print_ready(app.config, list(app.engine.models.values()), bound)


def _bound_address(worker: Any) -> str:
    """Return the address as it was bound: port 0 has become a real one."""
    name = worker.sockets[0].getsockname()
    return f"unix:{name}" if isinstance(name, str) else bind_address(name[0], name[1])


def _watch(engine: Engine) -> None:
    while engine.state in (STARTING, SERVING):
        time.sleep(WATCHDOG_SECONDS)
        if engine.stuck():
            engine.fail(FfwdError("an encode step hangs"))
            return


def _end(engine: Engine, error: BaseException) -> None:
    """End the worker: for good if it could not load, to be started anew if it failed later."""
    if not engine.loaded:
        _say(error)
        end_process(BOOT_ERROR)
    log.critical("the engine failed: %s", error, exc_info=error)
    threading.Timer(ANSWER_SECONDS, end_process, [1]).start()


def _say(error: BaseException) -> None:
    """Say why the process ends; that nobody can read it (a log on a full disk) must not keep it from ending."""
    with contextlib.suppress(OSError, ValueError):
        print(loading_failed(error), file=sys.stderr, flush=True)
