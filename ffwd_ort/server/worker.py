"""The gunicorn worker: gthread, with a deadline for headers and bodies, JSON errors and a complete drain.

gunicorn does the HTTP: parsing, chunking, keep-alive, `100 Continue`, limits on headers. Here is what it
leaves to us: it would wait for ever for a header that comes a byte a second, answers its own errors in
HTML, lets connections that wait in the backlog be reset when it stops, and lingers on each connection it
closes for up to 2 s in the one thread that accepts (500 clients that kept their side open took minutes).
"""

import contextlib
import logging
import mmap
import os
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from gunicorn.http import errors as http_errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from ffwd_ort.errors import Draining
from ffwd_ort.server import responses
from ffwd_ort.server.errors import ANSWERS
from ffwd_ort.server.metrics import NO_ROUTE
from ffwd_ort.server.middleware import request_id

log = logging.getLogger(__name__)

HEADER_SECONDS = 10.0  # from when a request is waited for to the end of its headers
SEND_SECONDS = 60.0  # for a client to take a piece of its answer
LINGER_SECONDS = 2.0  # for a client to close after us, so that its unread bytes do not reset our answer
LINGER_BYTES = 1 << 16  # read and thrown away meanwhile, at most
DRAIN_MARGIN = 1.0  # before the graceful timeout, to answer what cannot be finished
SUCCESSOR_SECONDS = 0.05  # between two looks at whether a successor serves

# Which answer each of gunicorn's own refusals is; what is not listed is a bad request.
HTTP_ERRORS: dict[type[Exception], str] = {
    http_errors.LimitRequestLine: "uri_too_long",
    http_errors.LimitRequestHeaders: "headers_too_large",
    http_errors.ExpectationFailed: "expectation",
}


class DeadlineSocket(socket.socket):
    """A connection whose reads must be over by `deadline` (monotonic seconds), however slowly bytes come."""

    deadline: float | None = None

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive, or raise TimeoutError once the deadline has passed."""
        if self.deadline is None or flags:
            return super().recv(size, flags)
        left = self.deadline - time.monotonic()
        if (own := self.gettimeout()) is not None:  # gunicorn's, while it drains a body that nobody read
            left = min(left, own)
        if left <= 0:
            raise TimeoutError("the deadline for this request's bytes has passed")
        self.settimeout(left)
        try:
            return super().recv(size)
        finally:
            self.settimeout(SEND_SECONDS)


@dataclass
class Lingering:
    """A connection that we have shut down, until its client closes too."""

    conn: TConn
    deadline: float
    bytes_left: int = LINGER_BYTES


class Succession:
    """What a reload's workers know of each other: two ages in memory that the master shares with all it forks.

    gunicorn forks the successors and sends SIGTERM to the others at once, as if the server were to end.
    """

    def __init__(self) -> None:
        self._ages = memoryview(mmap.mmap(-1, 16)).cast("Q")  # the oldest to stay is above [0]; [1] serves

    def begin(self, newest: int) -> None:
        """Say, in the master, that every worker up to this age is to be replaced."""
        self._ages[0] = newest

    def serves(self, age: int) -> None:
        """Say, in a worker, that it is about to accept connections."""
        self._ages[1] = max(self._ages[1], age)

    def replaces(self, age: int) -> bool:
        """Tell whether a worker of this age is one of those to be replaced."""
        return age <= self._ages[0]

    def wait(self, seconds: float) -> None:
        """Wait until a successor serves, but no longer than this."""
        end = time.monotonic() + seconds
        while self._ages[1] <= self._ages[0] and time.monotonic() < end:
            time.sleep(SUCCESSOR_SECONDS)


class FfwdWorker(ThreadWorker):  # type: ignore[misc]
    """One process with one engine. Whoever forks it sets `succession`."""

    succession: Succession

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lingering: deque[Lingering] = deque()
        self._handing_over = False

    def enqueue_req(self, conn: TConn) -> None:
        """Give a new connection a socket with a deadline."""
        if not isinstance(conn.sock, DeadlineSocket):
            plain = conn.sock
            conn.sock = DeadlineSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        super().enqueue_req(conn)

    def handle(self, conn: TConn) -> Any:
        """Read and answer one request; its headers must come within their time."""
        conn.sock.deadline = time.monotonic() + HEADER_SECONDS
        try:
            return super().handle(conn)
        finally:
            conn.sock.deadline = None

    def finish_request(self, conn: TConn, future: Any) -> None:
        """Keep a connection, or close it without waiting for its client: this is the thread that accepts."""
        if future.cancelled() or future.exception() is not None or future.result():
            super().finish_request(conn, future)
            return
        with contextlib.suppress(OSError):
            conn.sock.shutdown(socket.SHUT_WR)
            conn.sock.setblocking(False)
            waiting = Lingering(conn, time.monotonic() + LINGER_SECONDS)
            self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._discard, waiting))
            self._lingering.append(waiting)
            return
        self.nr_conns -= 1
        conn.close()

    def _discard(self, waiting: Lingering, _sock: Any) -> None:
        """Throw away what a client still sends; be done with it once it closes or has sent enough."""
        piece = b""
        with contextlib.suppress(OSError):
            piece = socket.socket.recv(waiting.conn.sock, 4096)
        waiting.bytes_left -= len(piece)
        if not piece or waiting.bytes_left <= 0:
            self._lingering.remove(waiting)
            self._drop(waiting)

    def murder_pending(self) -> None:
        """Be done with every connection whose time is over."""
        super().murder_pending()
        while self._lingering and self._lingering[0].deadline <= time.monotonic():
            self._drop(self._lingering.popleft())

    def _drop(self, waiting: Lingering) -> None:
        self.poller.unregister(waiting.conn.sock)
        self.nr_conns -= 1
        waiting.conn.close()

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what gunicorn itself refuses as JSON, then close."""
        if isinstance(exc, http_errors.ParseException | http_errors.NoMoreData):
            kind = next((k for error, k in HTTP_ERRORS.items() if isinstance(exc, error)), "bad_http")
        else:
            kind = "internal"
            log.error("a request could not be answered", exc_info=exc)
        answer = ANSWERS[kind]
        self.wsgi.metrics.answered(NO_ROUTE, "", answer.status, kind, None)
        body = responses.encode(responses.plain_error(answer))
        head = (
            f"HTTP/1.1 {answer.status} {answer.message.partition('(')[0].strip()}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Request-Id: {request_id(None)}\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            client.sendall(head.encode() + body)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain: new requests get 503, those in flight are finished. In a reload, hand over first."""
        if self.alive:
            patience = max(0.1, self.cfg.graceful_timeout - DRAIN_MARGIN)
            if self.succession.replaces(self.age) and not self._handing_over:  # a second signal means it
                self._handing_over = True
                threading.Thread(target=self._hand_over, args=[patience], daemon=True).start()
                return
            self.wsgi.engine.drain()
            self._close_engine_after(patience)
        super().handle_exit(sig, frame)

    def _hand_over(self, patience: float) -> None:
        """Serve until a successor does; then take no more connections, and answer what still comes on open ones."""
        began = time.monotonic()
        self.succession.wait(patience)
        self._close_engine_after(max(0.1, began + patience - time.monotonic()))
        super().handle_exit(0, None)

    def _close_engine_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self.wsgi.engine.close, [Draining("out of time"), 0.0])
        timer.daemon = True
        timer.start()

    def set_accept_enabled(self, enabled: bool) -> None:
        """When stopping, take what waits in the backlog, then refuse new connections at once."""
        stopping = not enabled and not self.alive and self._accepting
        if stopping:
            for listener in self.sockets:
                self._empty_backlog(listener)
        super().set_accept_enabled(enabled)
        if stopping:
            for listener in self.sockets:
                listener.close()

    def _empty_backlog(self, listener: Any) -> None:
        # gunicorn's accept() swallows "nothing waits", so the count tells.
        while True:
            before = self.nr_conns
            self.accept(listener)
            if self.nr_conns == before:
                return


def end_process(status: int) -> None:
    """End this worker from any thread, at once: gunicorn reads the status (3 ends the server, others restart it)."""
    logging.shutdown()
    os._exit(status)
