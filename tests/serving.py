"""A real ffwd-server in a process of its own, and raw HTTP to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any


class Reply:
    """One HTTP answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])

    @property
    def param(self) -> str | None:
        return self.json()["error"]["param"]  # type: ignore[no-any-return]


class Server:
    """ffwd-server on a free port. Its output goes to a file, so that a full pipe never blocks it."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        env: dict[str, str] | None = None,
        module: str = "ffwd_ort.cli.server",
    ) -> None:
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", module, *arguments, "--port", str(self.port)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.output}")
            with contextlib.suppress(OSError):
                if self.get("/ready").status == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready after {seconds} s: {self.output}")

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, body: Any, path: str = "/v1/embeddings", headers: Mapping[str, str] | None = None) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, raw, {"Content-Type": "application/json", **(headers or {})})

    def raw(self, *pieces: bytes, close_write: bool = False, timeout: float = 20) -> bytes:
        """Send bytes as they are and return everything that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            for piece in pieces:
                connection.sendall(piece)
            if close_write:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            with contextlib.suppress(TimeoutError):
                while piece := connection.recv(65536):
                    received += piece
            return received

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


def free_port() -> int:
    """Find a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait half a minute at most for something to come true."""
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
