"""ffwd-ort bench: a closed loop of requests to a server, or to the engine in this process."""

import http.client
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from ffwd_ort.engine.packing import LONG_FROM
from ffwd_ort.errors import FfwdError, UsageError

VOCABULARY = (
    "the tide falls and rises at low water while a pilot keeps the red buoy to port east of the bar when kelp season "
    "opens in may and the last ferry sails at nine past the green light on the rock"
)
SEED = 20261130
WARM_UP_SECONDS = 1.0

# A client's call: texts -> tokens that the answer counts, or None where the engine's steps say.
Call = Callable[[Sequence[str]], int | None]


@dataclass(frozen=True)
class Load:
    """What is sent: `concurrency` clients, each one request of `batch` texts after the other, for a time."""

    concurrency: int
    seconds: float
    batch: int
    texts: Sequence[str]


@dataclass(frozen=True)
class Figures:
    """What came of it. `fill` is the share of computed tokens that were real; None where nobody could say."""

    target: str
    concurrency: int
    batch: int
    seconds: float
    requests: int
    errors: int
    vectors_per_second: float
    tokens_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    fill: float | None

    def lines(self) -> Iterator[str]:
        """Write the figures for people."""
        yield f"{self.target}: {self.concurrency} clients, {self.batch} texts a request, {self.seconds:.1f} s"
        yield f"{self.requests} requests, {self.errors} errors"
        yield f"{self.vectors_per_second:.1f} vectors/s, {self.tokens_per_second:.0f} tokens/s"
        yield f"p50 {self.p50_ms:.1f} ms, p95 {self.p95_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"
        if self.fill is not None:
            yield f"fill {self.fill:.2f}"


def make_texts(words: int, count: int = 512) -> list[str]:
    """Make texts of so many words, the same on every machine."""
    draw, vocabulary = random.Random(SEED), VOCABULARY.split()
    return [" ".join(draw.choices(vocabulary, k=words)) for _ in range(count)]


def read_texts(path: Path) -> list[str]:
    """Read texts, one a line; raise UsageError if there is none."""
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file {str(path)!r} cannot be read: {error}") from None
    if not texts:
        raise UsageError(f"--file {str(path)!r} holds no text")
    return texts


def measure(target: str, load: Load, *, model: str | None, api_key: str | None, cache_dir: Path | None) -> Figures:
    """Put a load on a server (http://host:port), or on a source that is loaded here."""
    opened = _server(target, model, api_key) if target.startswith("http://") else _engine(target, cache_dir)
    with opened as (make_call, read_fill):
        _run(Load(load.concurrency, WARM_UP_SECONDS, load.batch, load.texts), make_call)
        before = read_fill()
        seen, errors, tokens, seconds = _run(load, make_call)
        after = read_fill()
    if not seen:
        raise FfwdError(f"bench: all {errors} requests failed")
    computed = after[1] - before[1]
    p50, p95, p99 = np.percentile(np.array(seen) * 1000, [50, 95, 99])
    return Figures(
        target=target,
        concurrency=load.concurrency,
        batch=load.batch,
        seconds=seconds,
        requests=len(seen),
        errors=errors,
        vectors_per_second=len(seen) * load.batch / seconds,
        tokens_per_second=(tokens or after[0] - before[0]) / seconds,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        fill=(after[0] - before[0]) / computed if computed else None,
    )


def _run(load: Load, make_call: Callable[[], Call]) -> tuple[list[float], int, int, float]:
    """Run the clients; return their times in seconds, how many requests failed, the tokens and the time in all."""
    end = time.monotonic() + load.seconds
    lock = threading.Lock()
    seen: list[float] = []
    totals = {"errors": 0, "tokens": 0}

    def client(seed: int) -> None:
        draw, call = random.Random(seed), make_call()
        while time.monotonic() < end:
            texts = draw.choices(load.texts, k=load.batch)
            began = time.monotonic()
            try:
                tokens = call(texts)
            except (OSError, FfwdError, http.client.HTTPException):
                with lock:
                    totals["errors"] += 1
                continue
            with lock:
                seen.append(time.monotonic() - began)
                totals["tokens"] += tokens or 0

    began = time.monotonic()
    threads = [threading.Thread(target=client, args=[i], daemon=True) for i in range(load.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen, totals["errors"], totals["tokens"], time.monotonic() - began


Opened = tuple[Callable[[], Call], Callable[[], tuple[float, float]]]  # clients; tokens (real, computed) so far


@contextmanager
def _server(url: str, model: str | None, api_key: str | None) -> Iterator[Opened]:
    where = urlsplit(url)
    if where.hostname is None:
        raise UsageError(f"bench {url!r}: http://HOST:PORT is permitted")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    host, port = where.hostname, where.port or 80

    def make_call() -> Call:
        connection = http.client.HTTPConnection(host, port, timeout=600)

        def call(texts: Sequence[str]) -> int:
            body = {"input": list(texts), "encoding_format": "base64"} | ({"model": model} if model else {})
            try:
                connection.request("POST", "/v1/embeddings", json.dumps(body), headers)
                reply = connection.getresponse()
                answer = reply.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                raise
            if reply.status != 200:
                raise FfwdError(f"status {reply.status}: {answer[:200].decode(errors='replace')}")
            return int(json.loads(answer)["usage"]["prompt_tokens"])

        return call

    def read_fill() -> tuple[float, float]:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("GET", "/metrics", headers=headers)
            reply = connection.getresponse()
            page = reply.read().decode(errors="replace") if reply.status == 200 else ""
        except (OSError, http.client.HTTPException) as error:
            raise FfwdError(f"bench: {url} does not answer: {error}") from None
        finally:
            connection.close()
        shapes = re.findall(r'ffwd_encode_steps_total\{.*?rows="(\d+)",seq="(\d+)"\} ([\d.e+]+)', page)
        if any(int(seq) > LONG_FROM and float(count) for _, seq, count in shapes):
            return 0.0, 0.0  # a long row is run at its text's own length, which no series has
        computed = sum(int(rows) * int(seq) * float(count) for rows, seq, count in shapes)
        padding = sum(float(n) for n in re.findall(r'ffwd_tokens_total\{kind="padding".*?\} ([\d.e+]+)', page))
        return computed - padding, computed

    yield make_call, read_fill


@contextmanager
def _engine(source: str, cache_dir: Path | None) -> Iterator[Opened]:
    from ffwd_ort.api import SentenceEncoder
    from ffwd_ort.engine.engine import StepDone

    counted = [0.0, 0.0]

    def count(step: StepDone) -> None:
        counted[0] += step.tokens
        counted[1] += step.size

    with SentenceEncoder(source, cache_dir=cache_dir) as encoder:
        encoder.on_step(count)

        def call(texts: Sequence[str]) -> None:
            encoder.encode(list(texts), truncate=True)

        yield lambda: call, lambda: (counted[0], counted[1])


def report(figures: Figures, as_json: bool) -> None:
    """Print the figures."""
    print(json.dumps(asdict(figures)) if as_json else "\n".join(figures.lines()))
