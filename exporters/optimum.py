"""The fallback: an architecture's PyTorch code in transformers, traced by Hugging Face optimum (extra `[optimum]`).

Nothing in such a graph keeps texts of one row apart, so rows hold one text each, padded on the right. torch is
imported only while a checkpoint is exported. What came out is compared with transformers before it is kept:
a trace may have fixed what depends on the text, and some architectures let padding into their vectors.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir

from ffwd_ort.bundle import GRAPH, Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.engine.packing import Plan, Positions, lay_out
from ffwd_ort.engine.sequences import Floats, Ids, Sequence, Slot
from ffwd_ort.engine.sessions import import_onnxruntime
from ffwd_ort.engine.shapes import EncodeShape
from ffwd_ort.errors import AdmissionError, RefusedError
from ffwd_ort.export import OPTIMUM, Exporter, GraphFacts, GraphOrder, Progress
from ffwd_ort_exporters.native import load_once, save_graph

TASK = "feature-extraction"
STATES = "last_hidden_state"
ROWS = ["rows", "seq"]
# What the graph may differ from transformers by, relative to the largest value: a thousand times float32's rounding.
TOLERANCE = 1e-4
SEED = 20261130
NEIGHBOUR = 33  # tokens of the text beside a shorter one that is padded; optimum traces 16
LONGEST_COMPARED = 4096  # tokens: attention keeps seq * seq scores of each head, here and in torch


def write(order: GraphOrder, folder: Path, progress: Progress) -> GraphFacts:
    """Write the graph and the weights of a checkpoint's trunk, with `pool @ states` as its output.

    Raises RefusedError if the extra is not installed, AdmissionError if transformers or optimum do not take the
    checkpoint, or if the graph is not what transformers computes.
    """
    import_onnxruntime()  # here, so that what is missing is said before the weights are read
    checkpoint = order.checkpoint
    with _quiet(), TemporaryDirectory(dir=folder) as scratch:
        progress("reading", 0, 1)
        model = _load(checkpoint)
        samples = _samples(model, checkpoint, order.positions)  # before optimum puts its hands on the model
        progress("tracing", 0, 1)
        traced = Path(scratch) / GRAPH
        _trace(model, checkpoint, traced)
        graph = ir.load(traced)
        _rewrite(graph, checkpoint)
        save_graph(graph, folder, progress)
    inputs = tuple(value.name or "" for value in graph.graph.inputs)
    _compare(load_once(folder / GRAPH), inputs, checkpoint, samples)
    return GraphFacts(inputs, _sizes(model, samples[0]), packs=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Import the extra, and keep its libraries from writing to the terminal: tracing warns of every branch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import optimum.exporters.onnx  # noqa: F401
            import transformers
            from optimum.utils import logging
        except ImportError as error:
            raise RefusedError(
                f"--exporter {OPTIMUM} needs its extra ({error}): pip install 'ffwd_ort[{OPTIMUM}]'"
            ) from None
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        logging.set_verbosity_error()
        yield


def _load(checkpoint: Checkpoint) -> Any:
    """Load the trunk in float32; raise AdmissionError if transformers does not, or finds no weight for a parameter."""
    import torch
    from transformers import AutoModel, __version__

    try:
        model, found = AutoModel.from_pretrained(
            str(checkpoint.weight_files[0].parent),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # whatever an architecture's code raises
        raise _refusal(checkpoint, f"transformers {__version__} does not load it: {_line(error)}") from None
    # What is missing would be random. The pooler is no part of the states.
    missing = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
    wrong = [*missing, *(str(key) for key in found["mismatched_keys"])]
    if wrong:
        problem = f"the weights lack {wrong[0]}, or have it in another shape ({len(wrong)} in all)"
        raise _refusal(checkpoint, problem)
    model.config.use_cache = False
    return model.eval()


def _trace(model: Any, checkpoint: Checkpoint, path: Path) -> None:
    """Have optimum write the graph; raise AdmissionError if it cannot."""
    from optimum.exporters.onnx import export
    from optimum.exporters.tasks import TasksManager

    try:
        make = TasksManager.get_exporter_config_constructor("onnx", model=model, task=TASK, library_name="transformers")
        export(model, make(model.config), path)
    except Exception as error:  # whatever an architecture's code raises
        problem = f"optimum does not export {type(model).__name__}: {_line(error)}"
        raise _refusal(checkpoint, problem) from None


def _rewrite(model: ir.Model, checkpoint: Checkpoint) -> None:
    """Give the graph the inputs and the output of the contract (DESIGN.md section 3), in place."""
    graph, nodes = model.graph, []

    def node(op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        nodes.append(ir.node(op, inputs, attributes))
        return nodes[-1].outputs[0]

    def tokens(name: str) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape(ROWS))

    ids, places, segments = tokens("input_ids"), tokens("position_ids"), tokens("segment_ids")
    none = ir.tensor(np.zeros((), np.int32))
    made = {
        "input_ids": lambda: ids,
        "attention_mask": lambda: node("GreaterOrEqual", segments, node("Constant", value=none)),
        "token_type_ids": lambda: node("Sub", ids, ids),  # zeros: pairs are not served
        "position_ids": lambda: places,
    }
    wanted = {value.name: value for value in graph.inputs}
    unknown = set(wanted) - set(made)
    outputs = [value.name for value in graph.outputs]
    if unknown or outputs != [STATES]:
        problem = f"optimum's graph turns {', '.join(map(str, wanted))} into {', '.join(map(str, outputs))}"
        raise _refusal(checkpoint, f"{problem}; a text has {', '.join(made)}, and its states are wanted")
    for key, value in wanted.items():
        replaced = node("Cast", made[key](), to=int(value.dtype))
        ir.convenience.replace_all_uses_with(value, replaced)
    graph.insert_before(graph[0], nodes)
    pool = ir.Value(name="pool", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["rows", "slots", "seq"]))
    states = graph.outputs[0]
    last = ir.node("MatMul", [pool, states])
    graph.append(last)
    pooled = last.outputs[0]
    pooled.name, pooled.type = "pooled", ir.TensorType(ir.DataType.FLOAT)
    pooled.shape = ir.Shape(["rows", "slots", states.shape[-1] if states.shape else None])
    graph.outputs[:] = [pooled]
    graph.inputs[:] = [ids, *([places] if "position_ids" in wanted else []), segments, pool]
    for each in graph.all_nodes():
        each.metadata_props.clear()
        each.doc_string = None


@dataclass(frozen=True)
class Sample:
    """A text, and its states in transformers."""

    ids: Ids  # [tokens]
    states: Floats  # [tokens, hidden]


def _samples(model: Any, checkpoint: Checkpoint, positions: int) -> list[Sample]:
    """Encode random texts by transformers: one as long as the positions allow, a shorter one and its beginning.

    In that order: BigBird, once it has seen a short text, attends to long ones in another way.
    """
    import torch

    ids = np.setdiff1d(np.arange(_vocabulary(model), dtype=np.int32), checkpoint.pad_id)
    random = np.random.default_rng(SEED)
    longest, neighbour = (random.choice(ids, min(positions, n)) for n in (LONGEST_COMPARED, NEIGHBOUR))
    samples = []
    for text in (longest, neighbour, neighbour[: len(neighbour) // 3]):
        row = torch.from_numpy(text.astype(np.int64))[None]
        try:
            with torch.inference_mode():
                states = model(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0].numpy()
        except Exception as error:  # whatever an architecture's code raises
            problem = f"its model in transformers does not take {len(text)} tokens: {_line(error)}"
            raise _refusal(checkpoint, problem) from None
        samples.append(Sample(text, states))
    return samples


def _compare(session: Any, inputs: tuple[str, ...], checkpoint: Checkpoint, samples: list[Sample]) -> None:
    """Raise AdmissionError if the graph gives other states than transformers, or padding changes them."""
    longest, neighbour, short = samples
    alone = _run(session, inputs, checkpoint, [longest.ids])[0]
    beside, padded = _run(session, inputs, checkpoint, [neighbour.ids, short.ids])
    padded = padded[: len(short.ids)]
    differences = (
        ("the graph differs from transformers", beside, neighbour.states),
        (f"the graph differs from transformers in a text of {len(longest.ids)} tokens", alone, longest.states),
        ("padding changes its vectors", padded, short.states),
    )
    for problem, found, expected in differences:
        if not _apart(found, expected) <= TOLERANCE:  # NaN is not
            raise _refusal(checkpoint, f"{problem}, by {_apart(found, expected):.0e} of the largest value")
    causal = _apart(beside[: len(padded)], padded) <= TOLERANCE  # the short text is how the other one begins
    if checkpoint.is_causal not in (None, causal):
        says = f"config.json says is_causal {str(checkpoint.is_causal).lower()}"
        raise _refusal(checkpoint, f"{says}, but its model in transformers attends the other way")


def _run(session: Any, inputs: tuple[str, ...], checkpoint: Checkpoint, texts: list[Ids]) -> Floats:
    """Run texts as the engine does, a row each, with every token in a slot of its own: [texts, seq, hidden]."""
    sequences = [Sequence(ids, tuple(Slot(i, np.ones(1, np.float32)) for i in range(len(ids)))) for ids in texts]
    seq = max(map(len, texts))
    plan = Plan(EncodeShape(len(texts), seq), seq, tuple((row,) for row in range(len(texts))))
    step = lay_out(plan, sequences, Positions(checkpoint.pad_id))
    try:
        states: Floats = session.run(None, step.feeds(inputs))[0]
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise _refusal(
            checkpoint, f"the graph does not run {len(texts)} texts of {seq} tokens: {_line(error)}"
        ) from None
    return states


def _apart(a: Floats, b: Floats) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def _refusal(checkpoint: Checkpoint, problem: str) -> AdmissionError:
    return AdmissionError(f"--exporter {OPTIMUM}: {checkpoint.path.name}: {problem}")


def _line(error: Exception) -> str:
    """Return the first line of what a library says, at a bearable length."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said[:200]}"


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().num_embeddings)


def _sizes(model: Any, sample: Sample) -> Sizes:
    """Read the measures from transformers' config, whose names are nearly the same for every architecture."""
    config, hidden = model.config, sample.states.shape[-1]
    return Sizes(
        layers=config.num_hidden_layers,
        hidden=hidden,
        heads=config.num_attention_heads,
        intermediate=getattr(config, "intermediate_size", None) or 4 * hidden,
        vocabulary=_vocabulary(model),
    )


EXPORTER = Exporter(OPTIMUM, write, "what transformers has a model of; padded rows, no packing")
