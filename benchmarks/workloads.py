"""Texts of exact token counts, and the measures that every benchmark shares."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ffwd_ort.bundle import Sizes
from ffwd_ort.engine.sessions import import_onnxruntime

# Each is one token of BERT's English vocabulary.
WORDS = [
    "the",
    "tide",
    "water",
    "low",
    "high",
    "falls",
    "rises",
    "boat",
    "sail",
    "bar",
    "port",
    "pilot",
    "east",
    "west",
    "season",
    "may",
    "light",
    "house",
    "red",
    "green",
]
SEED = 20261130


def text_of(tokens: int, random: np.random.Generator) -> str:
    """Make a text of this many tokens, the two special ones included; no two are alike."""
    return " ".join(random.choice(WORDS, max(1, tokens - 2)))


def workloads() -> dict[str, list[str]]:
    """Name the sets that engines are compared on."""
    random = np.random.default_rng(SEED)
    skewed = np.exp(random.uniform(np.log(8), np.log(512), 32)).astype(int)  # most are short, a few long
    one_batch, three_batches = random.integers(5, 257, 32), random.integers(5, 257, 96)

    def many(count: int, tokens: int) -> list[str]:
        return [text_of(tokens, random) for _ in range(count)]

    return {
        "one 8-token query": many(1, 8),
        "32 x 32 tokens": many(32, 32),
        "32 x 128 tokens": many(32, 128),
        "8 x 512 tokens": many(8, 512),
        # 32 is what sentence-transformers pads together; of 96 it sorts by length first, and pads less.
        "mixed, 32 x 5-256": [text_of(int(n), random) for n in one_batch],
        "mostly short, 32 x 8-512": [text_of(int(n), random) for n in skewed],
        "mixed, 96 x 5-256": [text_of(int(n), random) for n in three_batches],
    }


@dataclass(frozen=True)
class Timing:
    """Seconds of several rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / 2 / self.median
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / 2 / self.median


def in_turn(contenders: dict[str, Callable[[], object]], rounds: int, rest: float = 0.05) -> dict[str, Timing]:
    """Time contenders one after the other, round by round, so that a slow minute slows them all."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            time.sleep(rest)  # the other's threads stop spinning
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def linear_flops(sizes: Sizes) -> float:
    """Return the FLOPs of a token through the linear layers: q, k, v, output and the MLP's two."""
    return 2.0 * sizes.layers * sizes.hidden * (4 * sizes.hidden + 2 * sizes.intermediate)


class Ceiling:
    """ONNX Runtime's own MatMul alone: [1024, H] x [H, 4H] on the same threads (DESIGN.md section 6)."""

    ROWS = 1024

    def __init__(self, hidden: int, threads: int) -> None:
        weight = np.random.default_rng(SEED).standard_normal((hidden, 4 * hidden)).astype(np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "ceiling",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.ROWS, hidden])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [self.ROWS, 4 * hidden])],
            [numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        onnx.checker.check_model(model)
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._x = np.random.default_rng(SEED).standard_normal((self.ROWS, hidden)).astype(np.float32)
        self.flops = 2.0 * self.ROWS * hidden * 4 * hidden

    def run(self) -> None:
        """Multiply ten times."""
        for _ in range(10):
            self._session.run(None, {"x": self._x})

    def rate(self, timing: Timing) -> float:
        """Return FLOP/s from the timing of `run`."""
        return 10 * self.flops / timing.median


def minilm() -> Path:
    """all-MiniLM-L6-v2 from the user's cache, fetched if need be."""
    from ffwd_ort.sources import DEMO_SOURCE, default_cache_dir, resolve

    return resolve(DEMO_SOURCE, default_cache_dir()).path


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
