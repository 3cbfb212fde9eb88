"""A soak: mixed load for minutes, and what it leaves behind. Memory and descriptors flat, no answer that is not right.

    python -m benchmarks.soak [--minutes 20] [--workers 2] [--source pypi://…] [--json figures.json]

Short queries, requests of 512 texts, reranking, token ids, requests that must be refused, bodies of megabytes and
clients that hang up, all at once and paced, against a server of its own on the loopback. Every answer is compared
with the one the idle server gave. Exits with 1 and the reasons if a worker's memory grows by more than 5% from the
second quarter of the time to the last, if it holds more descriptors, if it is replaced, or if an answer is not the
expected one.
"""

import argparse
import base64
import contextlib
import json
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.hostile import state
from ffwd_ort.server.errors import MAX_BODY_BYTES
from ffwd_ort.sources import DEMO_SOURCE
from ffwd_ort_conformance.tiny import WORDS
from tests.serving import Server

GROWTH = 0.05  # of resident memory, from the second quarter to the last
SPARE_DESCRIPTORS = 3  # a connection more or less at the moment of a sample is no leak
CLOSE = 1e-5  # of two right answers, batched differently
EMBED, RERANK = "/v1/embeddings", "/v1/rerank"


@dataclass(frozen=True)
class Ask:
    """One request and the status it must get; headers replace http.client's own."""

    path: str
    body: bytes
    status: int = 200
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of client: how many there are, the mean seconds between one's requests, and what they ask."""

    name: str
    clients: int
    pause: float
    asks: Sequence[Ask]


def embed(texts: object, status: int = 200, model: str = "m") -> Ask:
    """Ask for vectors, in the form that is cheap to read: the client shares the cores."""
    return Ask(EMBED, json.dumps({"model": model, "input": texts, "encoding_format": "base64"}).encode(), status)


def kinds() -> list[Kind]:
    """Make every kind of request, the same ones on every run."""
    draw = random.Random(8)

    def text(low: int, high: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(low, high)))

    def rerank(documents: int) -> Ask:
        body = {"model": "m", "query": text(4, 9), "documents": [text(10, 60) for _ in range(documents)]}
        return Ask(RERANK, json.dumps(body).encode())

    ids = [[[draw.randint(5, 100) for _ in range(draw.randint(3, 60))] for _ in range(8)] for _ in range(8)]
    long = " ".join(WORDS * 500)
    refused = [
        embed("", 422),
        embed([], 422),
        embed(["x"] * 513, 422),
        embed(long, 422),
        embed("x", 422, model="none"),
        Ask(EMBED, b'{"input": "x"', 422),
        Ask("/nowhere", b"{}", 404),
        Ask(EMBED, b"", 405, "GET"),
        Ask("/v1/chat/completions", b"{}", 400),
        # Its body never comes: what is sent next on that connection would be taken for it.
        Ask(EMBED, b"", 413, headers=(("Content-Length", str(MAX_BODY_BYTES + 1)), ("Connection", "close"))),
        Ask(EMBED, b'{"input":"x"}', 415, headers=(("Content-Encoding", "gzip"),)),
    ]
    mib = 1 << 20
    large = [
        embed("tide " * (16 * mib // 5), 422),
        embed(["tide " * (mib // 100)] * 512, 422),
        Ask(EMBED, b"[" * (40 * mib), 422),
    ]
    return [
        Kind("short query", 3, 0.1, [embed(text(3, 12)) for _ in range(16)]),
        Kind("512 texts", 1, 3.0, [embed([text(3, 40) for _ in range(512)]) for _ in range(3)]),
        Kind("rerank", 1, 0.5, [rerank(n) for n in (1, 10, 20)]),
        Kind("token ids", 1, 0.3, [embed(batch, model="ids") for batch in ids]),
        Kind("refused", 1, 0.2, refused),
        Kind("large body", 1, 5.0, large),
    ]


def numbers(path: str, body: bytes) -> npt.NDArray[np.float32]:
    """Return what an answer says: its vectors one after the other, or its scores in the documents' order."""
    answer = json.loads(body)
    if path == RERANK:
        scores = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
        return np.array([scores[index] for index in sorted(scores)], np.float32)
    return np.frombuffer(b"".join(base64.b64decode(entry["embedding"]) for entry in answer["data"]), np.float32)


@dataclass
class Tally:
    """What one kind of client saw: milliseconds of its answers, and everything that was not as expected."""

    milliseconds: list[float] = field(default_factory=list)
    unexpected: Counter[str] = field(default_factory=Counter)


class Load:
    """The clients: `learn`, then from `start` to `stop`."""

    def __init__(self, port: int, mix: Sequence[Kind], leaving: int = 2) -> None:
        self.port, self.mix = port, mix
        self.tallies = {kind.name: Tally() for kind in mix} | {"leaves": Tally()}
        self._right: dict[Ask, npt.NDArray[np.float32]] = {}
        self._stop = threading.Event()
        runs = [partial(self._client, kind) for kind in mix for _ in range(kind.clients)]
        runs += [partial(self._leaves)] * leaving
        self._threads = [threading.Thread(target=run, daemon=True) for run in runs]

    def learn(self) -> None:
        """Ask everything once while the server is idle, to know what is right."""
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            for kind in self.mix:
                for ask in kind.asks:
                    status, body = self._send(connection, ask)
                    if status != ask.status:
                        raise RuntimeError(f"{kind.name}: {status} for {ask.status} when idle: {body[:300]!r}")
                    if status == 200:
                        self._right[ask] = numbers(ask.path, body)

    def start(self) -> None:
        """Let the clients begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have every client finish what it asked, and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _send(self, connection: HTTPConnection, ask: Ask) -> tuple[int, bytes]:
        connection.request(ask.method, ask.path, ask.body or None, dict(ask.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _client(self, kind: Kind) -> None:
        tally = self.tallies[kind.name]
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        while not self._stop.wait(random.uniform(0, 2 * kind.pause)):
            ask = random.choice(kind.asks)
            began = time.monotonic()
            try:
                status, body = self._send(connection, ask)
            except (OSError, HTTPException) as error:
                connection.close()
                tally.unexpected[type(error).__name__] += 1
                continue
            tally.milliseconds.append((time.monotonic() - began) * 1000)
            if status != ask.status:
                tally.unexpected[f"{status} for {ask.status}"] += 1
            elif status == 200 and not np.allclose(numbers(ask.path, body), self._right[ask], rtol=0, atol=CLOSE):
                tally.unexpected["wrong numbers"] += 1
        connection.close()

    def _leaves(self) -> None:
        """Hang up somewhere: in the headers, in the body, or before the answer."""
        body = embed(["the tide falls and the ferry sails"] * 64).body
        message = f"POST {EMBED} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        tally = self.tallies["leaves"]
        while not self._stop.wait(random.uniform(0, 0.5)):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
                    connection.sendall(message[: random.choice((10, len(message) // 2, len(message)))])
                    tally.milliseconds.append(0.0)
            except OSError as error:
                tally.unexpected[type(error).__name__] += 1


Sample = dict[int, dict[str, int]]  # by the worker's pid: MiB, fds, threads, peak


def workers_of(pid: int) -> list[int]:
    """Return the pids of gunicorn's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sample(pid: int) -> Sample:
    """Read every worker's state; one that ends meanwhile is left out."""
    found: Sample = {}
    for worker in workers_of(pid):
        with contextlib.suppress(OSError, KeyError):  # it ended between two lines
            found[worker] = state(worker)
    return found


def quarters(samples: Sequence[Sample], worker: int, what: str) -> list[float]:
    """Return the median of a figure in each quarter of the time."""
    series = [each[worker][what] for each in samples]
    size = max(1, len(series) // 4)
    parts = [series[i * size : (i + 1) * size] for i in range(3)] + [series[3 * size :]]
    return [statistics.median(part or series[-1:]) for part in parts]


def verdict(idle: Sample, samples: Sequence[Sample], after: Sample, tallies: dict[str, Tally]) -> list[str]:
    """Say what is wrong, if anything: `idle` is from before the load, `after` from when its connections had closed."""
    wrong = [f"{name}: {what} ({n} times)" for name, t in tallies.items() for what, n in t.unexpected.items()]
    wrong += [f"{name}: nothing was answered" for name, tally in tallies.items() if not tally.milliseconds]
    if any(set(each) != set(idle) for each in (*samples, after)):
        return [*wrong, f"the workers changed: {sorted(idle)} at first, {sorted(after)} at last"]
    for worker in idle:
        _, second, _, last = quarters(samples, worker, "MiB")
        if last > second * (1 + GROWTH):
            wrong.append(f"worker {worker}: memory grew from {second:.0f} to {last:.0f} MiB")
        _, second, _, last = quarters(samples, worker, "fds")
        if last > second + SPARE_DESCRIPTORS:
            wrong.append(f"worker {worker}: descriptors grew from {second:.0f} to {last:.0f} under load")
        before, left = idle[worker]["fds"], after[worker]["fds"]
        if left > before:
            wrong.append(f"worker {worker}: {left} descriptors are left of {before} before the load")
    return wrong


def wait_for_all(server: Server, workers: int) -> None:
    """Wait until every worker serves: it has then mapped the file of what it says of its models."""
    server.wait_ready(120)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # one ended meanwhile
            pids = workers_of(server.process.pid)
            if len(pids) >= workers and all(f"gauge_max_{p}.db" in Path(f"/proc/{p}/maps").read_text() for p in pids):
                return
        time.sleep(0.05)
    raise RuntimeError("not every worker is ready")


def settled(pid: int, idle: Sample, seconds: float = 20.0) -> Sample:
    """Wait for the load's connections to be closed, for a while; return what is left."""
    deadline = time.monotonic() + seconds
    while True:
        found = sample(pid)
        rest = any(found[worker]["fds"] > idle[worker]["fds"] for worker in found if worker in idle)
        if not rest or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def soak(server: Server, workers: int, seconds: float, mix: Sequence[Kind]) -> tuple[list[str], dict[str, object]]:
    """Run the load against a server; return what is wrong, and the figures."""
    pid = server.process.pid
    wait_for_all(server, workers)
    load = Load(server.port, mix)
    for _ in range(4 * workers - 3):  # on a connection each: every worker is to have seen the large bodies
        load.learn()
    time.sleep(1.0)  # for their connections to be closed
    idle, samples = sample(pid), list[Sample]()
    load.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(5.0, seconds / 40))
        samples.append(sample(pid))
    load.stop()
    after = settled(pid, idle)
    figures = {
        "seconds": seconds,
        "requests": {name: _summary(tally) for name, tally in load.tallies.items()},
        "workers": {
            str(worker): {what: quarters(samples, worker, what) for what in ("MiB", "fds", "threads")}
            | {"before": idle[worker], "after": after.get(worker)}
            for worker in idle
            if all(worker in each for each in samples)
        },
    }
    return verdict(idle, samples, after, load.tallies), figures


def _summary(tally: Tally) -> dict[str, object]:
    p50, p99 = np.percentile(tally.milliseconds or [np.nan], [50, 99]).round(1).tolist()
    return {"count": len(tally.milliseconds), "p50_ms": p50, "p99_ms": p99, "unexpected": dict(tally.unexpected)}


def table(figures: dict[str, Any]) -> str:
    """Write the figures for people."""
    requests, workers = figures["requests"], figures["workers"]
    lines = [f"{'clients':<14}{'answers':>9}{'p50 ms':>10}{'p99 ms':>10}  unexpected"]
    for name, row in requests.items():
        lines.append(f"{name:<14}{row['count']:>9}{row['p50_ms']:>10}{row['p99_ms']:>10}  {row['unexpected'] or '-'}")
    lines.append(f"{'worker':<14}{'':>9}{'before':>8}  median of each quarter{'':>12}{'after':>8}")
    for worker, row in workers.items():
        for what in ("MiB", "fds", "threads"):
            medians = "".join(f"{median:>8.0f}" for median in row[what])
            after = row["after"][what] if row["after"] else "gone"
            lines.append(f"{worker:<14}{what:>9}{row['before'][what]:>8}  {medians}  {after:>8}")
    return "\n".join(lines)


def main() -> None:
    """Soak a server of one checkpoint under two labels, say what was seen, and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--source", default=DEMO_SOURCE)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        server = Server(server_arguments(arguments.source, arguments.workers), Path(scratch) / "log")
        try:
            wrong, figures = soak(server, arguments.workers, arguments.minutes * 60, kinds())
        finally:
            server.stop()
    figures = {"source": arguments.source, "wrong": wrong, **figures}
    print(table(figures), json.dumps(figures), *(f"wrong: {reason}" for reason in wrong), sep="\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


def server_arguments(source: str, workers: int) -> list[str]:
    """Name one checkpoint twice: the labels share its session, and only one takes token ids."""
    labels = ("--model", f"m={source}:rerank=cosine", "--model", f"ids={source}:token_ids=accept")
    return [*labels, "--workers", str(workers)]


if __name__ == "__main__":
    main()
