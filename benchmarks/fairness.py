"""python -m benchmarks.fairness: what a single query waits for while others keep bulk requests in flight.

Both loads are `ffwd-ort bench`, each a process of its own: single short queries alone, and beside four clients that
keep 512-text requests in flight. The bar is the idle p99 plus two encode steps, as long as they are for bulk alone.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.workloads import table
from ffwd_ort.sources import DEMO_SOURCE
from tests.serving import Server

BULK_CLIENTS, BULK_TEXTS, BULK_WORDS = 4, 512, 60


def bench(server: Server, seconds: float, *options: str) -> subprocess.Popen[str]:
    """Start `ffwd-ort bench` against a server."""
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "bench", server.url, "--json", "--seconds", str(seconds)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)


def figures(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for its figures."""
    output, _ = process.communicate()
    return dict(json.loads(output))


def step_seconds(server: Server) -> tuple[float, float]:
    """Return the seconds that encode steps have taken, and how many there were."""
    page = server.get("/metrics").body.decode()
    total, count = (
        sum(float(n) for n in re.findall(rf"ffwd_encode_step_duration_seconds_{part}{{.*?}} (\S+)", page))
        for part in ("sum", "count")
    )
    return total, count


def round_of(server: Server, seconds: float) -> dict[str, Any]:
    """Measure single queries alone, then beside bulk."""
    alone = figures(bench(server, seconds, "--concurrency", "1"))
    load = ("--concurrency", str(BULK_CLIENTS), "--batch", str(BULK_TEXTS), "--words", str(BULK_WORDS))
    bulk = bench(server, seconds + 6, *load)
    time.sleep(2)  # until bulk is under way
    before = step_seconds(server)
    time.sleep(2)
    after = step_seconds(server)
    beside = figures(bench(server, seconds, "--concurrency", "1"))
    step = (after[0] - before[0]) / (after[1] - before[1])
    return {"alone": alone, "beside": beside, "bulk": figures(bulk), "step_ms": step * 1e3}


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/fairness.json"))
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        server = Server(["--model", f"m={DEMO_SOURCE}"], Path(folder) / "log")
        try:
            server.wait_ready()
            rounds = [round_of(server, arguments.seconds) for _ in range(arguments.rounds)]
        finally:
            server.stop()
    rows = [
        [
            str(i),
            *(f"{found[when][p]:.1f}" for when in ("alone", "beside") for p in ("p50_ms", "p99_ms")),
            f"{found['step_ms']:.1f}",
            f"{(found['beside']['p99_ms'] - found['alone']['p99_ms']) / found['step_ms']:.2f}",
            f"{found['bulk']['vectors_per_second']:.0f}",
        ]
        for i, found in enumerate(rounds, 1)
    ]
    header = [
        "round",
        "p50 alone",
        "p99 alone",
        "p50 beside",
        "p99 beside",
        "step ms",
        "p99 more, in steps",
        "bulk vectors/s",
    ]
    print(table(header, rows))
    more = statistics.median((r["beside"]["p99_ms"] - r["alone"]["p99_ms"]) / r["step_ms"] for r in rounds)
    print(f"\nbeside bulk a query's p99 is {more:.2f} encode steps longer (bar: 2)")
    arguments.json.write_text(json.dumps(rounds, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
