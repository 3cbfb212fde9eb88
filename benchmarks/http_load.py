"""A closed loop of requests to a server of our own, from a process of its own."""

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.serving import free_port

SECONDS_TO_START = 60


def send(port: int, body: bytes, concurrency: int, count: int) -> None:
    """Send `count` equal requests, `concurrency` at a time, each thread on one kept connection."""

    def worker(share: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=600)
        for _ in range(share):
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {text[:300]!r}")
        connection.close()

    shares = [count // concurrency + (i < count % concurrency) for i in range(concurrency)]
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(worker, shares))


def _client(pipe: Any) -> None:
    while (job := pipe.recv()) is not None:
        try:
            send(*job)
            pipe.send(None)
        except Exception as error:  # passed on to the process that asked
            pipe.send(error)


class HttpLoad:
    """ffwd-server with one label, and a client process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "ffwd_ort.cli.server", "--model", f"m={folder}", "--port", str(self._port)]
        self._server = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._client = context.Process(target=_client, args=[theirs], daemon=True)
        self._client.start()

    def run(self, texts: Sequence[str], concurrency: int, count: int) -> None:
        """Send requests of these texts and wait for the last answer."""
        body = json.dumps({"input": list(texts), "encoding_format": "base64"}).encode()
        self._pipe.send((self._port, body, concurrency, count))
        error = self._pipe.recv()
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline:
            try:
                connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the server did not become ready")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.send(None)
        self._client.join(5)
        self._server.terminate()
        self._server.wait(30)
