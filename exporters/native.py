"""Write a family's graph in the shape of the contract (DESIGN.md section 3), with its weights beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxscript
from onnxscript import nn

from ffwd_ort.bundle import GRAPH, WEIGHTS, Sizes
from ffwd_ort.checkpoint import Checkpoint
from ffwd_ort.engine.packing import LONG_FROM
from ffwd_ort.engine.sessions import import_onnxruntime
from ffwd_ort.errors import CheckpointError, RefusedError
from ffwd_ort.export import DTYPES, INT8, Exporter, GraphFacts, GraphOrder, Progress
from ffwd_ort_exporters.attention import Tokens
from ffwd_ort_exporters.blocks import Weight, pool
from ffwd_ort_exporters.heads import Classifier, DenseHead
from ffwd_ort_exporters.quantize import quantize_linear_layers
from ffwd_ort_exporters.weights import open_weights

OPSET = 23
IR_VERSION = 11
TOKEN_INPUTS = ("input_ids", "position_ids", "segment_ids")


class Trunk(nn.Module):
    """A family's graph up to the last hidden states; `sizes` are its measures.

    With `token_types` pairs of texts have an input that tells them apart. `has_long_form`: it attends by `Attend`
    alone; `span` is then what attention.py's function says.
    """

    sizes: Sizes
    token_types = False
    has_long_form = True
    span = 0

    def forward(self, op: Any, tokens: Tokens) -> ir.Value:
        """[rows, seq] of tokens -> float32 [rows, seq, hidden]."""
        raise NotImplementedError


def native_exporter(
    family: str,
    trunk: Callable[[Checkpoint], Trunk],
    classifier: Callable[[int], Classifier] | None = None,
    prefix: str = "",
) -> Exporter:
    """Make the exporter of a family from the module that is its graph.

    `classifier` makes the head of the family's cross-encoders, from the hidden width. `prefix` stands before the
    trunk's tensors in files that hold more than the trunk.
    """

    def write(graph: GraphOrder, folder: Path, progress: Progress) -> GraphFacts:
        import_onnxruntime()  # here, so that what is missing is said before the weights are written
        checkpoint, scores = graph.checkpoint, graph.head == "scores"
        module = trunk(checkpoint)
        if scores and classifier is None:
            raise RefusedError(f"the exporter {family} makes no classifier, so it cannot export a cross-encoder")
        last = classifier(module.sizes.hidden) if scores and classifier else DenseHead(checkpoint.dense_modules)
        inputs = [*TOKEN_INPUTS, *(["token_type_ids"] if scores and module.token_types else [])]
        inputs += ["packed"] if module.has_long_form and graph.positions > LONG_FROM else []
        model = _build(module, last, family, inputs, graph.head)
        files = {f"dense.{i}.": dense.weights for i, dense in enumerate(checkpoint.dense_modules)}
        with open_weights(checkpoint.weight_files, files, prefix) as weights:
            for parameter in _parameters(module, last, model):
                if isinstance(parameter, Weight):  # the others are computed, and have their values
                    parameter.bind(weights)
            if graph.dtype == INT8:
                linear = [p for p in dict(module.named_parameters()).values() if isinstance(p, Weight) and p.transpose]
                quantize_linear_layers(model, linear)
            save_graph(model, folder, progress)
        load_once(folder / GRAPH)
        return GraphFacts(tuple(value.name or "" for value in model.graph.inputs), module.sizes, module.span)

    return Exporter(family, write, dtypes=DTYPES)


def _build(module: Trunk, head: DenseHead | Classifier, family: str, inputs: Sequence[str], output: str) -> ir.Model:
    opsets = {"": OPSET} | ({"com.microsoft": 1} if "packed" in inputs else {})
    graph = ir.Graph([], [], nodes=[], name=family, opset_imports=opsets)
    builder = onnxscript.GraphBuilder(graph)
    x = module(builder.op, Tokens(**{name: _token_input(builder, name) for name in inputs}))
    if output != "tokens":
        x = pool(builder.op, builder.input("pool", ir.DataType.FLOAT, ["rows", "slots", "seq"]), x)
    result = head(builder.op, x)
    result.type = ir.TensorType(ir.DataType.FLOAT)
    result.shape = ir.Shape(["rows", "seq" if output == "tokens" else "slots", head.width or module.sizes.hidden])
    builder.add_output(result, output)
    for node in graph.all_nodes():
        node.metadata_props.clear()  # where the builder was called from: two fifths of the file
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="ffwd_ort")


def _token_input(builder: Any, name: str) -> ir.Value:
    if name == "packed":
        return builder.input(name, ir.DataType.BOOL, [])
    return builder.input(name, ir.DataType.INT32, ["rows", "seq"])


def _parameters(module: Trunk, head: DenseHead | Classifier, model: ir.Model) -> list[nn.Parameter]:
    """Return every parameter, each checked to stand in the graph under its checkpoint name."""
    named = {**dict(module.named_parameters()), **dict(head.named_parameters(head.name or ""))}
    for name, parameter in named.items():
        if parameter.name != name or model.graph.initializers.get(name) is not parameter:
            raise RefusedError(f"exporter defect: the parameter {name} stands in the graph as {parameter.name}")
    return list(named.values())


def save_graph(model: ir.Model, folder: Path, progress: Progress) -> None:
    """Write model.onnx, and its weights beside it."""

    def report(_tensor: Any, info: Any) -> None:
        progress("weights", info.index + 1, info.total)

    # Small constants (axes, for one) stay in the graph: ONNX Runtime needs them while it loads it.
    try:
        ir.save(
            model,
            folder / GRAPH,
            external_data=WEIGHTS,
            size_threshold_bytes=1024,
            alignment=4096,
            align_threshold=0,
            callback=report,
        )
    except ir.serde.SerdeError as error:  # what reading a small weight raised, wrapped several times
        raise _innermost(error) from None
    if not (folder / WEIGHTS).exists():
        (folder / WEIGHTS).write_bytes(b"")  # a model so small that all of it is inline


def _innermost(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _innermost(error.__cause__)


def load_once(path: Path) -> Any:
    """Have ONNX Runtime read the graph: a misspelt op or attribute is only found by it. Returns the session."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise CheckpointError(f"ONNX Runtime refuses the exported graph: {error}") from None
