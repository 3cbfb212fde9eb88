"""python -m benchmarks.session_options: what ONNX Runtime's options do to real bundles, in turn.

MiniLM, and two layers in the shape of Qwen3-0.6B. `base` is what the engine asks for (ffwd_ort/engine/sessions.py);
figures are times relative to it, medians of interleaved rounds, so 1.10 is 10% slower.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.startup import write_large
from benchmarks.workloads import in_turn, minilm, table
from ffwd_ort import SentenceEncoder
from ffwd_ort.engine.engine import _blank_step
from ffwd_ort.engine.machine import available_cores
from ffwd_ort.engine.sessions import import_onnxruntime
from ffwd_ort.engine.shapes import EncodeShape

SHAPES = (EncodeShape(1, 16), EncodeShape(4, 128), EncodeShape(1, 512))
Change = Callable[[Any, Any], None]  # of the options, given the module


def level(name: str) -> Change:
    """Ask for another level of graph optimisation."""

    def change(options: Any, ort: Any) -> None:
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)

    return change


def entry(key: str, value: str) -> Change:
    """Set one of the options that are named by a string."""
    return lambda options, _: options.add_session_config_entry(key, value)


def attribute(name: str, value: Any) -> Change:
    """Set one of the others."""
    return lambda options, _: setattr(options, name, value)


VARIANTS: dict[str, Change] = {
    "base": lambda options, ort: None,
    "graph as it is (DISABLE_ALL)": level("ORT_DISABLE_ALL"),
    "EXTENDED fusions": level("ORT_ENABLE_EXTENDED"),
    "ALL": level("ORT_ENABLE_ALL"),
    "no spinning": entry("session.intra_op.allow_spinning", "0"),
    "spinning stops with the run": entry("session.force_spinning_stop", "1"),
    "spins 100 us": entry("session.intra_op.spin_duration_us", "100"),
    "denormals as zero": entry("session.set_denormal_as_zero", "1"),
    "no memory pattern": attribute("enable_mem_pattern", False),
    "no arena": attribute("enable_cpu_mem_arena", False),
    "one thread": attribute("intra_op_num_threads", 1),
    "no prepacking": entry("session.disable_prepacking", "1"),
}


def compare(source: Path, cache: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Time every variant on every shape; returns variant -> shape -> time relative to base."""
    ort = import_onnxruntime()
    with SentenceEncoder(source, provider="cpu", max_seq=512, cache_dir=cache) as encoder:
        served = encoder.model
    found: dict[str, dict[str, float]] = {name: {} for name in VARIANTS}
    sessions = {}
    for name, change in VARIANTS.items():
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.intra_op_num_threads = available_cores()
        options.log_severity_level = 3
        change(options, ort)
        sessions[name] = ort.InferenceSession(served.bundle.graph, options, providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        feeds = _blank_step(served, shape).feeds(served.manifest.inputs)
        often = max(1, 256 // shape.tokens)
        calls = {name: partial(_run, session, feeds, often) for name, session in sessions.items()}
        timings = in_turn(calls, rounds, rest=0.15)  # until the threads of the one before no longer spin
        for name, timing in timings.items():
            ratios = np.divide(timing.seconds, timings["base"].seconds)
            found[name][f"{shape.rows}x{shape.seq}"] = float(statistics.median(ratios))
    return found


def _run(session: Any, feeds: dict[str, Any], often: int) -> None:
    for _ in range(often):
        session.run(None, feeds)


def main() -> None:
    """Compare on both models, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/session_options.json"))
    arguments = parser.parse_args()
    results = {}
    with TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        models = {"MiniLM": minilm(), "two layers of Qwen3-0.6B": write_large(Path(scratch) / "large", layers=2)}
        for name, source in models.items():
            results[name] = compare(source, cache, arguments.rounds)
            shapes = [f"{shape.rows}x{shape.seq}" for shape in SHAPES]
            rows = [[variant, *(f"{times[s]:.2f}" for s in shapes)] for variant, times in results[name].items()]
            print(f"\n{table([name, *shapes], rows)}", flush=True)
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
