"""Linear layers in 8 bits (`precision=int8`): approximate and opt-in.

Weights have a scale for each output, a layer's input one for each token: ONNX Runtime's own dynamic quantisation has
one for the whole step, so that a text's vector would depend on its neighbours. Measured in benchmarks/kernels.py.
"""

from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

from ffwd_ort_exporters.blocks import Weight

MOST = 127  # codes are symmetric, -127 to 127
MIDDLE = 128  # added to a token's codes: products of unsigned by signed bytes are several times faster
SMALLEST = 1e-30  # of a scale, so that a token of zeros is not divided by 0


def quantize_linear_layers(model: ir.Model, weights: Collection[Weight]) -> None:
    """Replace every MatMul by one of these weights [in, out], which are bound already."""
    graph = model.graph
    by_name = {weight.name: weight for weight in weights}
    for node in list(graph):
        if node.op_type == "MatMul" and node.inputs[1] is not None and node.inputs[1].name in by_name:
            new = tape.Tape()
            out = _matmul(new, node, by_name[node.inputs[1].name])
            graph.insert_before(node, list(new.nodes))
            for value in new.initializers:
                graph.register_initializer(value)
            ir.convenience.replace_all_uses_with(node.outputs[0], out, replace_graph_outputs=True)
            graph.remove(node, safe=True)
    for name in by_name:
        if not graph.initializers[str(name)].uses():
            del graph.initializers[str(name)]


def _matmul(op: tape.Tape, node: ir.Node, weight: Weight) -> ir.Value:
    """Write x W in 8 bits: [rows, seq, in] -> [rows, seq, out]."""
    x, name = node.inputs[0], str(weight.name)
    assert x is not None and weight.shape is not None
    width, outputs = (int(d) for d in weight.shape)  # type: ignore[arg-type]

    def constant(suffix: str, value: np.ndarray) -> ir.Value:
        return op.initializer(ir.Tensor(value, name=f"{name}_{suffix}"))

    flat = op.op("Reshape", [x, constant("flat", np.array([-1, width]))])
    largest = op.op("ReduceMax", [op.op("Abs", [flat]), constant("axis", np.array([1]))], {"keepdims": 0})
    scale = op.op("Mul", [largest, constant("step", np.array(1 / MOST, np.float32))])
    scale = op.op("Max", [scale, constant("least", np.array(SMALLEST, np.float32))])  # [tokens]
    zeros = op.op("Expand", [constant("middle", np.array([MIDDLE], np.uint8)), op.op("Shape", [scale])])
    codes = op.op("QuantizeLinear", [flat, scale, zeros], {"axis": 0})
    bits, scales = _tensors(weight, name, (width, outputs))
    middle = constant("zero", np.array(MIDDLE, np.uint8))
    product = op.op("MatMulInteger", [codes, op.initializer(bits), middle])
    y = op.op("Cast", [product], {"to": ir.DataType.FLOAT})
    y = op.op("Mul", [y, op.op("Unsqueeze", [scale, constant("axis_1", np.array([1]))])])
    y = op.op("Mul", [y, op.initializer(scales)])
    rows = op.op("Shape", [x], {"start": 0, "end": 2})
    shape = op.op("Concat", [rows, constant("outputs", np.array([outputs]))], {"axis": 0})
    out = op.op("Reshape", [y, shape])
    out.type, out.shape = node.outputs[0].type, node.outputs[0].shape
    return out


def _tensors(weight: Weight, name: str, shape: tuple[int, int]) -> tuple[ir.LazyTensor, ir.LazyTensor]:
    """Return a weight's codes int8 [in, out] and its scales float32 [out], both read when the graph is saved."""
    value = weight.const_value
    assert value is not None

    def scales(array: np.ndarray) -> np.ndarray:
        return np.maximum(np.abs(array).max(axis=0) / np.float32(MOST), np.float32(SMALLEST))

    def lazy(
        make: Callable[[np.ndarray], np.ndarray], dtype: ir.DataType, dims: tuple[int, ...], what: str
    ) -> ir.LazyTensor:
        def read() -> ir.Tensor:
            return ir.Tensor(make(value.numpy()))

        return ir.LazyTensor(read, dtype=dtype, shape=ir.Shape(dims), name=f"{name}_{what}")

    codes = lazy(lambda w: np.rint(w / scales(w)).astype(np.int8), ir.DataType.INT8, shape, "int8")
    return codes, lazy(scales, ir.DataType.FLOAT, shape[1:], "scale")
