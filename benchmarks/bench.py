"""make bench: the engine beside the same graph padded, and sentence-transformers on torch, in one run.

Ratios are what to read: machines are shared and noisy, so contenders take turns and medians are compared.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.http_load import HttpLoad
from benchmarks.workloads import Ceiling, Timing, in_turn, linear_flops, minilm, table, workloads
from ffwd_ort import SentenceEncoder
from ffwd_ort.engine.machine import available_cores
from ffwd_ort.engine.packing import EncodeStep

BATCH = 32  # what sentence-transformers pads together by default


class Padded:
    """The engine's own session, one text a row, every row as long as the batch's longest."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self._model = encoder.model
        self._runner = encoder._engine.models["model"].runner

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode in batches, in the order given."""
        pooled = [self._batch(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return self._model.finish(np.concatenate(pooled), dimensions=None)

    def _batch(self, texts: Sequence[str]) -> np.ndarray:
        encoded = self._model.tokenizer.encode(texts)
        rows, seq = len(encoded), max(len(text.ids) for text in encoded)
        ids = np.zeros((rows, seq), np.int32)
        segments = np.full((rows, seq), -1, np.int32)
        pool = np.zeros((rows, 1, seq), np.float32)
        for row, text in enumerate(encoded):
            n = len(text.ids)
            ids[row, :n], segments[row, :n] = text.ids, 0
            pool[row, 0, :n] = 1 / n
        positions = np.tile(np.arange(seq, dtype=np.int32), (rows, 1))
        feeds = {"input_ids": ids, "position_ids": positions, "segment_ids": segments, "pool": pool}
        return self._runner.run(feeds)[:, 0]


class Watch:
    """Records the steps of an encoder, for their padding."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.real = self.computed = 0
        engine = encoder._engine
        inner = engine._run

        def run(batch: Any) -> tuple[EncodeStep, Any]:
            step, output = inner(batch)
            self.real += int((step.segment_ids >= 0).sum())
            self.computed += step.shape.tokens
            return step, output

        engine._run = run  # type: ignore[method-assign]

    def fill(self) -> float:
        """Return real tokens over computed ones since the last call."""
        share = self.real / max(1, self.computed)
        self.real = self.computed = 0
        return share


def reference(folder: Path, threads: int) -> Any:
    """Load sentence-transformers on torch with the same threads and length limit."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    model.max_seq_length = 512
    return model


def compare_engines(encoder: SentenceEncoder, folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Time every workload on each contender; return the rows of the first table."""
    padded, torch_model, watch = Padded(encoder), reference(folder, threads), Watch(encoder)
    ceiling = Ceiling(encoder.model.manifest.sizes.hidden, threads)
    flops = linear_flops(encoder.model.manifest.sizes)
    results: dict[str, Any] = {}
    for name, texts in workloads().items():
        tokens = sum(len(text.ids) for text in encoder.model.tokenizer.encode(texts))
        repeat = 20 if len(texts) == 1 else 1
        timings = in_turn(
            {
                "engine": partial(_repeat, repeat, partial(encoder.encode, texts)),
                "padded": partial(_repeat, repeat, partial(padded.encode, texts)),
                "torch": partial(_repeat, repeat, partial(_torch_encode, torch_model, texts)),
                "ceiling": ceiling.run,
            },
            rounds,
        )
        watch.fill()
        encoder.encode(texts)
        engine = timings["engine"].median / repeat
        results[name] = {
            "tokens": tokens,
            "engine_ms": engine * 1e3,
            "padded_ratio": _ratio(timings["padded"], timings["engine"]),
            "torch_ratio": _ratio(timings["torch"], timings["engine"]),
            "tokens_per_second": tokens / engine,
            "fill": watch.fill(),
            "ceiling_share": tokens * flops / engine / ceiling.rate(timings["ceiling"]),
            "spread": {key: timing.spread for key, timing in timings.items()},
        }
    return results


def _repeat(times: int, run: Any) -> None:
    for _ in range(times):
        run()


def _torch_encode(model: Any, texts: list[str]) -> Any:
    return model.encode(texts, batch_size=BATCH, convert_to_numpy=True, normalize_embeddings=True)


def _ratio(other: Timing, mine: Timing) -> float:
    return other.median / mine.median


def compare_http(encoder: SentenceEncoder, folder: Path, rounds: int) -> dict[str, Any]:
    """Time requests over HTTP against the same texts on the bare engine, as many at a time."""
    sets = workloads()
    results: dict[str, Any] = {}
    with HttpLoad(folder) as load:
        for name, requests in (
            ("one 8-token query", {1: 100, 8: 400, 64: 800}),
            ("32 x 128 tokens", {1: 4, 8: 16, 64: 64}),
        ):
            for concurrency, count in requests.items():
                texts = sets[name]
                timings = in_turn(
                    {
                        "http": partial(load.run, texts, concurrency, count),
                        "engine": partial(_bare, encoder, texts, concurrency, count),
                    },
                    rounds if concurrency < 64 or len(texts) == 1 else 1,
                )
                results[f"{name}, {concurrency} at a time"] = {
                    "texts_per_second": count * len(texts) / timings["http"].median,
                    "engine_share": timings["engine"].median / timings["http"].median,
                    "spread": {key: timing.spread for key, timing in timings.items()},
                }
    return results


def _bare(encoder: SentenceEncoder, texts: list[str], concurrency: int, count: int) -> None:
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(lambda _: encoder.encode(texts), range(count)))


def main() -> None:
    """Run both comparisons, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["engines", "http"], help="one of the two tables")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/bench.json"))
    arguments = parser.parse_args()
    threads, folder = available_cores(), minilm()
    packages = ("onnxruntime", "torch", "sentence-transformers", "gunicorn")
    print(f"all-MiniLM-L6-v2, float32, {threads} threads, {platform.machine()}, Python {platform.python_version()}")
    print(", ".join(f"{name} {version(name)}" for name in packages), flush=True)
    results: dict[str, Any] = {}
    with SentenceEncoder(folder, provider="cpu") as encoder:
        if arguments.only != "http":
            results["engines"] = compare_engines(encoder, folder, arguments.rounds, threads)
            print_engines(results["engines"])
        if arguments.only != "engines":
            results["http"] = compare_http(encoder, folder, max(1, arguments.rounds // 2))
            print_http(results["http"])
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {arguments.json}")


def print_engines(engines: dict[str, Any]) -> None:
    """Print the first table."""
    rows = [
        [
            name,
            f"{r['engine_ms']:.1f}",
            f"{r['padded_ratio']:.2f}",
            f"{r['torch_ratio']:.2f}",
            f"{r['tokens_per_second']:.0f}",
            f"{r['fill']:.2f}",
            f"{r['ceiling_share']:.0%}",
            f"{max(r['spread'].values()):.0%}",
        ]
        for name, r in engines.items()
    ]
    header = ["texts", "engine ms", "padded /", "torch /", "tokens/s", "fill", "of ceiling", "spread"]
    print("\n" + table(header, rows))
    print("padded /, torch /: how many times longer the same graph padded, and sentence-transformers, take", flush=True)


def print_http(http: dict[str, Any]) -> None:
    """Print the second table."""
    rows = [
        [name, f"{r['texts_per_second']:.0f}", f"{r['engine_share']:.0%}", f"{max(r['spread'].values()):.0%}"]
        for name, r in http.items()
    ]
    print("\n" + table(["HTTP requests", "texts/s", "of bare engine", "spread"], rows))


if __name__ == "__main__":
    sys.exit(main())
