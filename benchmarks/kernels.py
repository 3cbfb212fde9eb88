"""python -m benchmarks.kernels: the same arithmetic in several forms of ONNX Runtime's operators, in turn.

What the exporters write and the sessions ask for was chosen from this table (benchmarks/results/kernels.json). Each
group is one question; times are relative to the form in use, at the top of its group. Medians of interleaved rounds.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from benchmarks.workloads import SEED, in_turn, table
from ffwd_ort.engine.machine import available_cores
from ffwd_ort.engine.sessions import import_onnxruntime

Array = npt.NDArray[Any]
TOKENS = 512  # of a CPU step
CONTRIB = "com.microsoft"
BASIC = "ORT_ENABLE_BASIC"
OFTEN = 5  # a round


@dataclass(frozen=True)
class Shape:
    """The measures of a model's layer that matter to its kernels."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    width: int


SHAPES = (Shape("MiniLM", 384, 1536, 12, 12, 32), Shape("Qwen3-0.6B", 1024, 3072, 16, 8, 128))


class Graph:
    """A graph being written, one call a node; weights and constants are drawn or given."""

    def __init__(self, **inputs: Array) -> None:
        self.feeds = dict(inputs)
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def weight(self, *shape: int) -> str:
        """Draw a weight."""
        return self.constant((self._random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def constant(self, value: Any) -> str:
        """Keep a value in the graph."""
        name = f"c{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; returns its output's name, or the list of them."""
        names = [f"v{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def initializer(self, name: str) -> Any:
        """Return a value kept in the graph."""
        return next(tensor for tensor in self._initializers if tensor.name == name)

    def open(self, output: str, threads: int, level: str = BASIC) -> Callable[[], Array]:
        """Open a session; returns a call that runs it once."""
        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in self.feeds.items()}
        graph = helper.make_graph(
            self._nodes,
            "kernel",
            [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in self.feeds.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self._initializers,
        )
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        ort = import_onnxruntime()
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, self.feeds)[0]


def states(rows: int, seq: int, width: int) -> Array:
    """Draw hidden states."""
    return np.random.default_rng(SEED).standard_normal((rows, seq, width)).astype(np.float32)


# --- linear layers: name -> (graph, output) -------------------------------------------------------------------------


def linear(form: str, shape: Shape) -> tuple[Graph, str]:
    """The MLP's first half: [4, 128, hidden] -> [4, 128, intermediate], bias included."""
    g = Graph(x=states(4, TOKENS // 4, shape.hidden))
    w, b = g.weight(shape.hidden, shape.intermediate), g.weight(shape.intermediate)
    if form == "MatMul + Add":
        return g, g.op("Add", g.op("MatMul", "x", w), b)
    flat = g.op("Reshape", "x", g.constant(np.array([-1, shape.hidden])))
    y = g.op("Gemm", flat, w, b)
    return g, g.op("Reshape", y, g.constant(np.array([4, -1, shape.intermediate])))


def approximate(form: str, shape: Shape) -> tuple[Graph, str]:
    """The same layer with weights of 8 bits: scaled by column and multiplied as integers, or by block."""
    g, _ = linear("MatMul + Add", shape)
    w = numpy_helper.to_array(g.initializer("c0"))
    if form == "float32":
        return g, "v1_0"
    g = Graph(**g.feeds)
    b = g.weight(shape.hidden, shape.intermediate)  # the same draw, and then the bias
    b = g.weight(shape.intermediate)
    if form == "int8, dynamic":
        scale = np.abs(w).max(axis=0) / 127
        q = g.constant(np.rint(w / scale).astype(np.int8))
        return g, g.op("DynamicQuantizeMatMul", "x", q, g.constant(scale), "", b, domain=CONTRIB)
    if form == "int8, by row":
        scale = np.abs(w).max(axis=0) / 127
        q, rows = g.constant(np.rint(w / scale).astype(np.int8)), TOKENS
        flat = g.op("Reshape", "x", g.constant(np.array([-1, shape.hidden])))
        largest = g.op("ReduceMax", g.op("Abs", flat), g.constant(np.array([1])), keepdims=0)
        steps = g.op("Mul", largest, g.constant(np.float32(1 / 127)))
        zeros = g.constant(np.full(rows, 128, np.uint8))
        codes = g.op("QuantizeLinear", flat, steps, zeros, axis=0)
        one, zero = g.constant(np.float32(1)), g.constant(np.uint8(128))
        y = g.op("MatMulIntegerToFloat", codes, q, one, g.constant(scale), zero, domain=CONTRIB)
        y = g.op("Mul", y, g.op("Unsqueeze", steps, g.constant(np.array([1]))))
        y = g.op("Add", y, b)
        return g, g.op("Reshape", y, g.constant(np.array([4, -1, shape.intermediate])))
    size = int(form.rpartition(" ")[2])
    blocks = w.T.reshape(shape.intermediate, -1, size)
    scales = np.abs(blocks).max(axis=2) / 127
    codes = g.constant((np.rint(blocks / scales[..., None]) + 128).astype(np.uint8))
    measures = {"K": shape.hidden, "N": shape.intermediate, "bits": 8, "block_size": size, "accuracy_level": 4}
    y = g.op("MatMulNBits", "x", codes, g.constant(scales.ravel()), domain=CONTRIB, **measures)
    return g, g.op("Add", y, b)


def norm(form: str, shape: Shape) -> tuple[Graph, str]:
    """A residual and its layer normalisation."""
    g = Graph(x=states(4, TOKENS // 4, shape.hidden), y=states(4, TOKENS // 4, shape.hidden))
    w, b = g.weight(shape.hidden), g.weight(shape.hidden)
    if form == "SkipLayerNormalization":
        return g, g.op(form, "x", "y", w, b, domain=CONTRIB)
    total = g.op("Add", "x", "y")
    if form == "Add, LayerNormalization":
        return g, g.op("LayerNormalization", total, w, b, axis=-1, epsilon=1e-12)
    axes = g.constant(np.array([-1]))
    centred = g.op("Sub", total, g.op("ReduceMean", total, axes))
    variance = g.op("ReduceMean", g.op("Mul", centred, centred), axes)
    root = g.op("Sqrt", g.op("Add", variance, g.constant(np.float32(1e-12))))
    return g, g.op("Add", g.op("Mul", g.op("Div", centred, root), w), b)


def gelu(form: str, shape: Shape) -> tuple[Graph, str]:
    """The activation, with the bias before it."""
    g = Graph(x=states(4, TOKENS // 4, shape.intermediate))
    b = g.weight(shape.intermediate)
    if form in ("BiasGelu", "FastGelu"):
        return g, g.op(form, "x", b, domain=CONTRIB)
    x = g.op("Add", "x", b)
    if form == "Gelu (erf)":
        return g, g.op("Gelu", x, approximate="none")
    if form == "Gelu (tanh)":
        return g, g.op("Gelu", x, approximate="tanh")
    half, one, root = (g.constant(np.float32(v)) for v in (0.5, 1.0, np.sqrt(0.5)))
    erf = g.op("Erf", g.op("Mul", x, root))
    return g, g.op("Mul", g.op("Mul", x, half), g.op("Add", erf, one))


def silu(form: str, shape: Shape) -> tuple[Graph, str]:
    """A gated MLP's activation."""
    g = Graph(x=states(4, TOKENS // 4, shape.intermediate), y=states(4, TOKENS // 4, shape.intermediate))
    if form == "QuickGelu":
        return g, g.op("Mul", g.op("QuickGelu", "x", domain=CONTRIB, alpha=1.0), "y")
    return g, g.op("Mul", g.op("Mul", "x", g.op("Sigmoid", "x")), "y")


# --- attention ------------------------------------------------------------------------------------------------------


def attention(form: str, shape: Shape, seq: int) -> tuple[Graph, str]:
    """One text of `seq` tokens, or as many rows as make a step; nothing is masked out, whatever the mask costs."""
    rows = max(1, TOKENS // seq)
    q = states(rows, seq, shape.heads * shape.width)
    k, v = states(rows, seq, shape.kv_heads * shape.width), states(rows, seq, shape.kv_heads * shape.width)
    g = Graph(q=q, k=k, v=v)
    heads = {"q_num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
    if form.startswith("Attention"):
        if form == "Attention, no mask":
            return g, g.op("Attention", "q", "k", "v", **heads)
        kind: Any = np.zeros((rows, 1, seq, seq), np.float32) if "float" in form else np.ones((rows, 1, seq, seq), bool)
        g.feeds["mask"] = kind
        return g, g.op("Attention", "q", "k", "v", "mask", **heads)
    if form == "GroupQueryAttention":
        g.feeds["last"] = np.full(rows, seq - 1, np.int32)
        g.feeds["total"] = np.array(seq, np.int32)
        inputs = ("q", "k", "v", "", "", "last", "total")
        counts = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
        return g, g.op(form, *inputs, outputs=3, domain=CONTRIB, do_rotary=0, **counts)[0]
    group = shape.heads // shape.kv_heads
    if form.startswith("MultiHeadAttention"):
        keys, values = (_repeat(g, x, shape, group) for x in ("k", "v"))
        more = ()
        if form.endswith("float mask"):
            g.feeds["bias"] = np.zeros((rows, 1, seq, seq), np.float32)
            more = ("", "", "bias")
        return g, g.op("MultiHeadAttention", "q", keys, values, *more, domain=CONTRIB, num_heads=shape.heads)
    # Decomposed: [rows, heads, seq, width], products over the last two axes, softmax between.
    g.feeds["bias"] = np.zeros((rows, 1, seq, seq), np.float32)
    keys, values = (_repeat(g, x, shape, group) for x in ("k", "v"))
    apart = g.constant(np.array([rows, seq, shape.heads, shape.width]))

    def split(x: str, perm: list[int]) -> str:
        return str(g.op("Transpose", g.op("Reshape", x, apart), perm=perm))

    scaled = g.op("Mul", "q", g.constant(np.float32(shape.width**-0.5)))
    scores = g.op("MatMul", split(scaled, [0, 2, 1, 3]), split(keys, [0, 2, 3, 1]))
    weights = g.op("Softmax", g.op("Add", scores, "bias"), axis=-1)
    out = g.op("Transpose", g.op("MatMul", weights, split(values, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
    return g, g.op("Reshape", out, g.constant(np.array([rows, seq, -1])))


def _repeat(g: Graph, x: str, shape: Shape, group: int) -> str:
    if group == 1:
        return x
    apart = g.op("Reshape", x, g.constant(np.array([0, 0, shape.kv_heads, 1, shape.width])))
    joined = g.op("Concat", *[apart] * group, axis=3)
    return str(g.op("Reshape", joined, g.constant(np.array([0, 0, -1]))))


LINEAR = ("MatMul + Add", "Gemm")
NORM = ("Add, LayerNormalization", "decomposed", "SkipLayerNormalization")
APPROXIMATE = (
    "float32",
    "int8, dynamic",
    "int8, by row",
    "int8, blocks of 32",
    "int8, blocks of 64",
    "int8, blocks of 128",
)
GELU = ("Gelu (erf)", "Erf, decomposed", "BiasGelu", "Gelu (tanh)", "FastGelu")
SILU = ("Sigmoid, Mul", "QuickGelu")
ATTENTION = ("Attention, bool mask", "Attention, float mask", "MultiHeadAttention, float mask", "decomposed")
UNMASKED = ("MultiHeadAttention", "Attention, no mask")
CAUSAL = ("GroupQueryAttention",)
SCORES_LIMIT = 2 << 30  # bytes: forms that keep more scores than this are left out


def groups(seqs: tuple[int, ...]) -> dict[str, dict[str, Callable[[], tuple[Graph, str]]]]:
    """List the questions, and the forms that answer each."""
    found: dict[str, dict[str, Callable[[], tuple[Graph, str]]]] = {}
    for shape in SHAPES:
        found[f"{shape.name}: linear layer with bias"] = {f: partial(linear, f, shape) for f in LINEAR}
        found[f"{shape.name}: approximate weights"] = {f: partial(approximate, f, shape) for f in APPROXIMATE}
        found[f"{shape.name}: residual and norm"] = {f: partial(norm, f, shape) for f in NORM}
        found[f"{shape.name}: bias and GELU"] = {f: partial(gelu, f, shape) for f in GELU}
        found[f"{shape.name}: gated SiLU"] = {f: partial(silu, f, shape) for f in SILU}
        for seq in seqs:
            kept = 8 * shape.heads * max(TOKENS, seq) * seq > SCORES_LIMIT  # scores and probabilities
            forms = (*(() if kept else ATTENTION), *UNMASKED[: 1 if kept else 2], *CAUSAL)
            found[f"{shape.name}: attention, {max(1, TOKENS // seq)}x{seq}"] = {
                f: partial(attention, f, shape, seq) for f in forms
            }
    return found


def compare(forms: dict[str, Callable[[], tuple[Graph, str]]], rounds: int, threads: int) -> dict[str, Any]:
    """Time the forms of one group in turn; `off` is the largest difference from the first form's values."""
    opened = {name: make() for name, make in forms.items()}
    calls = {name: graph.open(output, threads) for name, (graph, output) in opened.items()}
    first = next(iter(calls.values()))()
    off = {name: float(np.abs(call() - first).max()) for name, call in calls.items()}
    timings = in_turn({name: partial(_often, call) for name, call in calls.items()}, rounds, rest=0.0)
    base = next(iter(timings.values())).median
    return {
        name: {"ms": t.median / OFTEN * 1e3, "relative": t.median / base, "spread": t.spread, "off": off[name]}
        for name, t in timings.items()
    }


def _often(call: Callable[[], Array]) -> None:
    for _ in range(OFTEN):
        call()


def main() -> None:
    """Run every group, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seqs", type=int, nargs="+", default=[128, 256, 512, 2048, 8192])
    parser.add_argument("--only", default="", help="groups whose name contains this")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/kernels.json"))
    arguments = parser.parse_args()
    threads = available_cores()
    print(f"onnxruntime {version('onnxruntime')}, {threads} threads, {TOKENS} tokens a step")
    results: dict[str, Any] = {}
    for name, forms in groups(tuple(arguments.seqs)).items():
        if arguments.only not in name:
            continue
        seq = int(name.rpartition("x")[2]) if "attention" in name else 0
        results[name] = compare(forms, max(3, arguments.rounds * 512 // max(512, seq)), threads)
        rows = [
            [form, f"{r['ms']:.3f}", f"{r['relative']:.2f}", f"{r['spread']:.0%}", f"{r['off']:.1e}"]
            for form, r in results[name].items()
        ]
        print(f"\n{table([name, 'ms', 'relative', 'spread', 'differs by'], rows)}", flush=True)
    if not arguments.only:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
