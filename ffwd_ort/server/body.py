"""Read request bodies: whole, within a deadline, and within what a worker may hold at once."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ffwd_ort.engine.machine import give_memory_back
from ffwd_ort.server.errors import MAX_BODY_BYTES, HttpFault

MIB = 1 << 20
CHUNK = MIB  # each read gives the GIL away and waits to get it back
BODY_SECONDS = 30.0  # for a body in all, plus a second for each MiB
LARGE_BODY = 4 * MIB
BUDGET_BYTES = 256 * MIB
LARGE_BODIES = 2


class BodyBudget:
    """Bounds the bodies that one worker holds: bytes over all requests, and large bodies parsed at a time."""

    def __init__(self, total: int = BUDGET_BYTES, large: int = LARGE_BODIES) -> None:
        self._lock = threading.Lock()
        self._bytes = total
        self._large = large

    def take(self, size: int) -> None:
        """Reserve bytes; raise HttpFault 429 if there are not that many left."""
        with self._lock:
            if size > self._bytes:
                raise HttpFault("overloaded")
            self._bytes -= size

    def give(self, size: int) -> None:
        """Return bytes."""
        with self._lock:
            self._bytes += size

    @contextmanager
    def parsing(self, size: int) -> Iterator[None]:
        """Hold one of the places for large bodies while a body is parsed; raise HttpFault 429 if none is free."""
        large = int(size > LARGE_BODY)
        with self._lock:
            if self._large < large:
                raise HttpFault("overloaded")
            self._large -= large
        try:
            yield
        finally:
            with self._lock:
                self._large += large


def check_declared(environ: dict[str, Any]) -> None:
    """Refuse by its headers a body that is too large or encoded (checks 8 of http.md section 3.1)."""
    coding = environ.get("HTTP_TRANSFER_ENCODING", "chunked").strip().lower()
    if coding not in ("chunked", "identity"):  # `gzip, chunked` reaches the application
        raise HttpFault("bad_http")
    if environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in ("identity", ""):
        raise HttpFault("content_encoding")
    if int(environ.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES:
        raise HttpFault("body_too_large")


@contextmanager
def read_body(
    environ: dict[str, Any], budget: BodyBudget, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytearray]:
    """Read the body from the raw WSGI input, and hold its bytes against the budget while it is in use.

    Falcon's bounded stream is empty for a chunked body. Raises HttpFault: ended early, stalled, too large,
    broken chunk, or over the budget.
    """
    declared = environ.get("CONTENT_LENGTH")
    began = clock()
    body = bytearray()
    held = int(declared or 0)
    budget.take(held)
    # A worker of ours hands out a socket with a deadline (worker.py); another server's own timeouts apply.
    socket = environ.get("gunicorn.socket")
    try:
        while True:
            if socket is not None and hasattr(socket, "deadline"):
                socket.deadline = began + BODY_SECONDS + max(len(body), held) / MIB
            piece = _read_piece(environ["wsgi.input"])
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise HttpFault("body_too_large")
            if len(body) > held:
                budget.take(len(body) - held)
                held = len(body)
            if not piece:
                break
        if declared and len(body) < int(declared):
            raise HttpFault("incomplete_body")
        yield body
    finally:
        budget.give(held)
        if held > LARGE_BODY:
            body.clear()
            give_memory_back()


def _read_piece(stream: Any) -> bytes:
    try:
        piece: bytes = stream.read(CHUNK)
    except TimeoutError:
        raise HttpFault("stalled_body") from None
    except OSError:  # the stream ended inside a chunk, or the connection broke
        raise HttpFault("incomplete_body") from None
    except Exception:  # gunicorn's parse errors for broken chunks share no base worth naming
        raise HttpFault("bad_http") from None
    return piece
