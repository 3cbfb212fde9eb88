"""python -m benchmarks.planner: ways of choosing a step's shape, in turn on one engine and the same texts.

`first-fit` takes the shortest rows that hold the longest text; `two terms` also tries longer ones and takes what does
most real tokens for its reckoned cost (packing.py); `measured` does so with each shape's own measured time.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.texts import peer_texts
from benchmarks.workloads import in_turn, minilm, table, workloads
from ffwd_ort import SentenceEncoder
from ffwd_ort.engine.engine import StepDone, _blank_step
from ffwd_ort.engine.packing import Packing
from ffwd_ort.engine.shapes import EncodeShape


@dataclass(frozen=True)
class Measured(Packing):
    """Costs as they were measured, in seconds."""

    seconds: dict[EncodeShape, float] = field(default_factory=dict)

    def cost(self, shape: EncodeShape) -> float:
        """Return the median time of the shape."""
        return self.seconds[shape]


def texts() -> dict[str, list[str]]:
    """Name the sets: made ones, and real passages and queries where they are at hand."""
    sets = {name: made for name, made in workloads().items() if len(made) > 8}
    real, source = peer_texts(60)
    print(f"passages and queries: {source}")
    return sets | real


def measure(encoder: SentenceEncoder, rounds: int = 5) -> dict[EncodeShape, float]:
    """Time every shape."""
    model = encoder._engine.models["model"]
    served = model.served
    shapes = served.packing.shapes()
    runs = {
        f"{s.rows}x{s.seq}": partial(model.runner.run, _blank_step(served, s).feeds(served.manifest.inputs))
        for s in shapes
    }
    timings = in_turn(runs, rounds, rest=0.0)
    return {shape: timings[f"{shape.rows}x{shape.seq}"].median for shape in shapes}


def main() -> None:
    """Compare, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/planner.json"))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with SentenceEncoder(minilm(), provider="cpu") as encoder:
        packing = encoder.model.packing
        known = {f.name: getattr(packing, f.name) for f in fields(packing)}
        policies: dict[str, Packing] = {
            "two terms": packing,
            "first-fit": replace(packing, wider=0),
            "measured": Measured(**known, seconds=measure(encoder)),
        }
        filled = [0, 0]
        encoder.on_step(lambda step: _count(filled, step))

        def run(policy: str, wanted: list[str]) -> None:
            encoder._engine._queue.add_model("model", policies[policy])
            encoder.encode(wanted, truncate=True)

        for name, wanted in texts().items():
            calls: dict[str, Callable[[], None]] = {p: partial(run, p, wanted) for p in policies}
            timings = in_turn(calls, arguments.rounds)
            fills = {}
            for policy in policies:
                filled[:] = [0, 0]
                run(policy, wanted)
                fills[policy] = filled[0] / filled[1]
            base = timings["two terms"]
            results[name] = {
                policy: {
                    "ms": t.median * 1e3,
                    "ratio": statistics.median(np.divide(t.seconds, base.seconds)),
                    "spread": t.spread,
                    "fill": fills[policy],
                }
                for policy, t in timings.items()
            }
    rows = [
        [name, *(f"{r['ms']:.0f} ms, x{r['ratio']:.3f}, fill {r['fill']:.2f}" for r in found.values())]
        for name, found in results.items()
    ]
    print(table(["texts", *policies], rows))
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _count(filled: list[int], step: StepDone) -> None:
    filled[0] += step.tokens
    filled[1] += step.size


if __name__ == "__main__":
    sys.exit(main())
