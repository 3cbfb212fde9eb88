"""python -m benchmarks.http_path: queries of eight tokens over HTTP, by concurrency and workers, in turn.

The load is wrk (from Debian's packages), which takes little of the cores that the server needs; without it, `ffwd-ort
bench`, whose own Python takes about half of them. Also says what a bare `session.run` of the query's shape takes.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.workloads import in_turn, minilm, table
from ffwd_ort import SentenceEncoder
from ffwd_ort.engine.engine import _blank_step
from ffwd_ort.engine.shapes import EncodeShape
from ffwd_ort.sources import DEMO_SOURCE
from tests.serving import Server

CONCURRENCY = (1, 8, 64, 256)
# Eight tokens with the two special ones; no two alike, or they would be computed once.
SCRIPT = """
local words = {"tide", "water", "low", "high", "boat", "sail", "bar", "port", "pilot", "east", "west", "season"}
request = function()
  local text = {}
  for i = 1, 6 do text[i] = words[math.random(#words)] end
  local body = '{"input":"' .. table.concat(text, " ") .. '","encoding_format":"base64"}'
  return wrk.format("POST", "/v1/embeddings", {["Content-Type"] = "application/json"}, body)
end
"""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def wrk(server: Server, script: Path, concurrency: int, seconds: float) -> dict[str, float]:
    """Run wrk; returns queries a second and percentiles in ms."""
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--latency", "--timeout", "30s", "-s", str(script)]
    said = subprocess.run([*command, server.url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(said)
    found = {"qps": float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])}
    for share, value, unit in re.findall(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)", said, re.M):
        found[f"p{share}_ms"] = float(value) * UNITS[unit]
    return found


def bench(server: Server, _script: Path, concurrency: int, seconds: float) -> dict[str, float]:
    """Run `ffwd-ort bench`; returns the same."""
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "bench", server.url, "--json", "--words", "6"]
    options = ["--seconds", str(seconds), "--concurrency", str(concurrency)]
    said = json.loads(subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout)
    return {"qps": said["vectors_per_second"], "p50_ms": said["p50_ms"], "p99_ms": said["p99_ms"]}


def bare() -> float:
    """Return the ms of the query's shape, run alone."""
    with SentenceEncoder(minilm(), provider="cpu") as encoder:
        model = encoder._engine.models["model"]
        feeds = _blank_step(model.served, EncodeShape(1, 16)).feeds(model.served.manifest.inputs)
        timing = in_turn({"run": lambda: [model.runner.run(feeds) for _ in range(50)]}, 9, rest=0.0)["run"]
    return timing.median / 50 * 1e3


def main() -> None:
    """Measure every setting in turn, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/http_path.json"))
    arguments = parser.parse_args()
    load = wrk if shutil.which("wrk") else bench
    print(f"load: {load.__name__}")
    run_ms = bare()
    seen: dict[tuple[int, int], list[dict[str, float]]] = {}
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        script = Path(scratch) / "queries.lua"
        script.write_text(SCRIPT)
        servers = {
            n: Server(["--model", f"m={DEMO_SOURCE}", "--workers", str(n)], Path(scratch) / f"log{n}") for n in (1, 2)
        }
        for server in servers.values():
            stack.callback(server.stop)
            server.wait_ready()
        for _ in range(arguments.rounds):
            for concurrency in CONCURRENCY:
                for workers, server in servers.items():
                    seen.setdefault((workers, concurrency), []).append(
                        load(server, script, concurrency, arguments.seconds)
                    )
    results: list[dict[str, Any]] = []
    for (workers, concurrency), rounds in sorted(seen.items()):
        middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        spread = (max(r["qps"] for r in rounds) - min(r["qps"] for r in rounds)) / 2 / middle["qps"]
        results.append({"workers": workers, "concurrency": concurrency, **middle, "spread": spread})
    rows = [
        [
            f"{r['workers']} worker(s), {r['concurrency']} at a time",
            *(f"{r[key]:.{digits}f}" for key, digits in (("qps", 0), ("p50_ms", 1), ("p99_ms", 1))),
            f"{r['spread']:.0%}",
        ]
        for r in results
    ]
    print(table(["eight-token queries", "queries/s", "p50 ms", "p99 ms", "spread"], rows))
    times = results[0]["p50_ms"] / run_ms
    print(f"\na bare session.run of 1x16 takes {run_ms:.2f} ms; the p50 over HTTP is {times:.2f} times that")
    report = {"load": load.__name__, "run_ms": run_ms, "results": results}
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
