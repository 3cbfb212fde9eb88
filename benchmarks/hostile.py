"""A hostile hour in small: slow clients, clients that leave, bodies at the limit; what do the others notice?

    python -m benchmarks.hostile [--seconds 60] [--source pypi://…]

Prints p50 and p99 of a short query idle and under fire, how long bodies at the limit hold the process, and threads,
file descriptors and memory of the worker before and after. Sends to a server of its own on the loopback alone.
"""

import argparse
import contextlib
import json
import multiprocessing
import random
import socket
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ffwd_ort.server.errors import MAX_BODY_BYTES
from ffwd_ort.sources import DEMO_SOURCE
from tests.serving import Server

SLOW, LEAVING, NORMAL = 200, 50, 4
QUERY = json.dumps({"input": "when does the last ferry sail?"}).encode()


def bodies() -> dict[str, bytes]:
    """Make bodies of 64 MiB: nothing but brackets, one text, 512 texts."""
    text = b'{"input":"' + b"a " * ((MAX_BODY_BYTES - 12) // 2)
    each = b"a " * ((MAX_BODY_BYTES // 512 - 8) // 2)
    return {
        "brackets": b"[" * MAX_BODY_BYTES,
        "one text": text[: MAX_BODY_BYTES - 2] + b'"}',
        "512 texts": b'{"input":[' + b",".join([b'"' + each + b'"'] * 512) + b"]}",
    }


Huge = tuple[str, float, float, int, str]  # body, began, ended, status, Server-Timing


def fire(port: int, stop: Any, told: Any) -> None:
    """Run the hostile clients in a process of their own: the others' answers are not to wait for its lock."""
    hostile = Hostile(port, stop)
    runs = [hostile.slow] * SLOW + [hostile.leaving] * LEAVING + [hostile.huge]
    threads = [threading.Thread(target=run, daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    stop.wait()
    threads[-1].join(60)
    told.send(hostile.parsing)


class Hostile:
    """Hostile clients, until `stop` is set."""

    def __init__(self, port: int, stop: Any) -> None:
        self.port, self.stop = port, stop
        self.parsing: list[Huge] = []
        self.bodies = bodies()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def slow(self) -> None:
        """Send a byte a second: of the headers, or of a body."""
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        while not self.stop.is_set():
            with contextlib.suppress(OSError), self.connect() as connection:
                if random.random() < 0.5:
                    connection.sendall(head + b"\r\n")
                for byte in head:
                    if self.stop.wait(1.0):
                        return
                    connection.sendall(bytes([byte]))

    def leaving(self) -> None:
        """Ask for much and hang up."""
        texts = json.dumps({"input": ["the tide falls and the ferry sails"] * 256}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(texts)}\r\n\r\n".encode()
        while not self.stop.wait(random.random() * 2):
            with contextlib.suppress(OSError), self.connect() as connection:
                connection.sendall(head + texts[: random.choice([10, len(texts)])])
                self.stop.wait(0.05)

    def huge(self) -> None:
        """Send bodies at the limit, one after the other."""
        while not self.stop.wait(2.0):
            for name, body in self.bodies.items():
                if self.stop.is_set():
                    return
                began = time.monotonic()
                connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
                with contextlib.suppress(OSError), contextlib.closing(connection):
                    connection.request("POST", "/v1/embeddings", body)
                    reply = connection.getresponse()
                    reply.read()
                    timing = reply.headers.get("Server-Timing", "")
                    self.parsing.append((name, began, time.monotonic(), reply.status, timing))


def ask(port: int, stop: threading.Event, seen: list[tuple[float, float, int]]) -> None:
    """Send one short query after the other; note when each began, how long it took and its status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    while not stop.is_set():
        began = time.monotonic()
        try:
            connection.request("POST", "/v1/embeddings", QUERY)
            reply = connection.getresponse()
            reply.read()
            seen.append((began, time.monotonic() - began, reply.status))
        except OSError:
            connection.close()
            seen.append((began, time.monotonic() - began, 0))


def measure(port: int, seconds: float) -> list[tuple[float, float, int]]:
    """Run the normal clients for a time."""
    stop = threading.Event()
    seen: list[tuple[float, float, int]] = []
    threads = [threading.Thread(target=ask, args=[port, stop, seen]) for _ in range(NORMAL)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
    return seen


def measure_under_fire(port: int, seconds: float) -> tuple[list[tuple[float, float, int]], list[Huge]]:
    """Run the normal clients beside the hostile ones; return what both saw."""
    context = multiprocessing.get_context("spawn")
    stop, (told, telling) = context.Event(), context.Pipe(duplex=False)
    process = context.Process(target=fire, args=[port, stop, telling], daemon=True)
    process.start()
    time.sleep(3)  # for it to start
    seen = measure(port, seconds)
    stop.set()
    parsing: list[Huge] = told.recv() if told.poll(90) else []
    process.join(10)
    return seen, parsing


def state(pid: int) -> dict[str, int]:
    """Read a process's threads, open files and resident MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    fds = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "threads": int(field["Threads"]),
        "fds": fds,
        "MiB": int(field["VmRSS"]) // 1024,
        "peak": int(field["VmHWM"]) // 1024,
    }


def worker_of(pid: int) -> int:
    """Return the worker's pid: gunicorn's only child."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def say(name: str, seen: list[tuple[float, float, int]]) -> float:
    """Print one line of figures; returns the p99 in ms."""
    times = np.array([seconds for _, seconds, status in seen if status == 200]) * 1000
    others = {status: sum(s == status for _, _, s in seen) for status in {s for _, _, s in seen} - {200}}
    p50, p99 = np.percentile(times, [50, 99])
    figures = f"p50 {p50:7.1f} ms, p99 {p99:7.1f} ms, max {times.max():7.1f}"
    print(f"{name:<34} {len(times):6} answers, {figures}, others {others}", flush=True)
    return float(p99)


def main() -> None:
    """Measure idle, then under fire, then what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--source", default=DEMO_SOURCE)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        server = Server(["--model", f"m={arguments.source}"], Path(scratch) / "log")
        try:
            server.wait_ready(120)
            worker = worker_of(server.process.pid)
            measure(server.port, 5)  # warm
            before = state(worker)
            idle = say("idle", measure(server.port, 15))
            under, parsing = measure_under_fire(server.port, arguments.seconds)
            say("under fire, everything", under)
            apart = [s for s in under if not any(b < s[0] + s[1] and s[0] < e for _, b, e, _, _ in parsing)]
            fired = say("under fire, apart from huge bodies", apart)
            print(f"p99 under fire is {fired / idle:.2f} times the idle one (3 is permitted)")
            for name in bodies():
                mine = [(e - b, status, timing) for n, b, e, status, timing in parsing if n == name]
                if mine:
                    longest = max(mine)
                    print(f"  {name}: {len(mine)} sent, longest {longest[0]:.2f} s, status {longest[1]}, {longest[2]}")
            time.sleep(35)  # connections linger for their time
            say("idle again", measure(server.port, 10))
            print(f"before {before}\nafter  {state(worker)}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
