"""python -m benchmarks.startup: seconds to ready and memory of ffwd-server, by model and workers.

Memory is a worker's resident set: its peak (VmHWM) and what is left after a minute's load in small (RssAnon is its own,
RssFile mapped and shared with its siblings). `--large` adds a random checkpoint in the shape of Qwen3-0.6B, which takes
2.4 GB of disk, and its share of the ceiling (DESIGN.md section 6).
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.workloads import SEED, Ceiling, in_turn, minilm, table, text_of
from ffwd_ort import SentenceEncoder
from ffwd_ort.engine.machine import available_cores
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder
from tests.serving import Server

LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, INTERMEDIATE, VOCABULARY = 28, 1024, 16, 8, 128, 3072, 151_936


def write_large(folder: Path, layers: int = LAYERS) -> Path:
    """Write random bfloat16 weights in the shape of Qwen3-0.6B, or its first layers, around a tiny tokenizer."""
    write_decoder(folder, TinyDecoder(head_norms=True, append_eos=True, layers=1))
    config = json.loads((folder / "config.json").read_text()) | {
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(SEED)

    def draw(*shape: int) -> Any:
        return (random.standard_normal(shape, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)

    def ones(n: int) -> Any:
        return np.ones(n, ml_dtypes.bfloat16)

    tensors = {"model.embed_tokens.weight": draw(VOCABULARY, HIDDEN), "model.norm.weight": ones(HIDDEN)}
    linear = {
        "self_attn.q_proj": (HEADS * WIDTH, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * WIDTH),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    norms |= {"self_attn.q_norm": WIDTH, "self_attn.k_norm": WIDTH}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}{name}.weight": draw(*shape) for name, shape in linear.items()}
        tensors |= {f"{prefix}{name}.weight": ones(n) for name, n in norms.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def children(pid: int) -> list[int]:
    """List a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory(pid: int) -> dict[str, float]:
    """Read a process's memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = {"peak": "VmHWM", "now": "VmRSS", "own": "RssAnon", "mapped": "RssFile"}
    return {name: int(re.findall(rf"{key}:\s+(\d+)", status)[0]) / 1024 for name, key in fields.items()}


def serve(source: Path, workers: int, labels: int, scratch: Path) -> dict[str, Any]:
    """Start a server whose bundle is cached, load it a little, and look at it."""
    arguments = [part for n in range(labels) for part in ("--model", f"m{n}={source}")]
    arguments += ["--cache-dir", str(scratch / "cache")]
    began = time.monotonic()
    server = Server([*arguments, "--workers", str(workers)], scratch / "log")
    try:
        server.wait_ready(300)
        seconds = time.monotonic() - began
        while len(children(server.process.pid)) < workers:
            time.sleep(0.1)
        ended = time.monotonic() + 12
        random = np.random.default_rng(SEED)
        while time.monotonic() < ended:
            texts = [text_of(int(n), random) for n in random.integers(5, 200, 16)]
            server.post({"model": "m0", "input": texts})
        found = [memory(pid) for pid in children(server.process.pid)]
    finally:
        server.stop()
    return {"ready_seconds": seconds, **{key: max(each[key] for each in found) for key in found[0]}}


def ceiling_share(folder: Path, scratch: Path, rounds: int) -> float:
    """Return the share of the ceiling that texts of 128 tokens reach: the linear layers alone are counted."""
    threads = available_cores()
    flops = 2.0 * LAYERS * (HIDDEN * WIDTH * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * INTERMEDIATE)
    with SentenceEncoder(folder, provider="cpu", max_seq=128, cache_dir=scratch / "cache") as encoder:
        random = np.random.default_rng(SEED)
        texts = [text_of(60, random) for _ in range(16)]
        tokens = sum(min(128, len(text.ids)) for text in encoder.model.tokenizer.encode(texts))
        ceiling = Ceiling(HIDDEN, threads)
        timings = in_turn({"engine": lambda: encoder.encode(texts, truncate=True), "ceiling": ceiling.run}, rounds)
    return tokens * flops / timings["engine"].median / ceiling.rate(timings["ceiling"])


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="a model in the shape of Qwen3-0.6B, too")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/startup.json"))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = {"MiniLM": minilm()} | (
            {"Qwen3-0.6B's shape": write_large(scratch / "large")} if arguments.large else {}
        )
        for name, source in models.items():
            with SentenceEncoder(source, provider="cpu", max_seq=128, cache_dir=scratch / "cache") as encoder:
                weights = encoder.model.manifest.files["model.onnx.data"].size / 2**20
            for workers, labels in ((1, 1), (1, 2), (2, 1)):
                found = serve(source, workers, labels, scratch)
                results[f"{name}, {workers} worker(s), {labels} label(s)"] = {"weights": weights, **found}
        if arguments.large:
            share = ceiling_share(models["Qwen3-0.6B's shape"], scratch, 3)
            print(f"Qwen3-0.6B's shape at up to 128 tokens: {share:.0%} of the ceiling")
            results["ceiling_share"] = share
    columns = ("weights", "ready_seconds", "peak", "now", "own", "mapped")
    rows = [
        [name, *(f"{found[key]:.{1 if key == 'ready_seconds' else 0}f}" for key in columns)]
        for name, found in results.items()
        if isinstance(found, dict)
    ]
    header = ["MiB a worker", "weights", "ready s", "peak", "after load", "its own", "mapped"]
    print(table(header, rows))
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
