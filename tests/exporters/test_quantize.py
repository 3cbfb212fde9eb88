"""precision=int8: close, smaller, the same on every evaluator, and never unless it is asked for."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.cli.check import worst_difference
from ffwd_ort.cli.main import main
from ffwd_ort.errors import AdmissionError, BundleError
from ffwd_ort.export import INT8, OPTIMUM
from ffwd_ort_conformance.tiny import TEXTS, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, TinyEncoder, write_decoder, write_encoder, write_gemma3

WRITERS: dict[str, Callable[[Path], Path]] = {
    "bert": write_bert,
    "modernbert": lambda folder: write_encoder(folder, TinyEncoder(model_type="modernbert")),
    "qwen3": lambda folder: write_decoder(folder, TinyDecoder(head_norms=True)),
    "gemma3": write_gemma3,
}


@pytest.fixture(scope="module", params=WRITERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param) / "tiny")


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return BundleCache(folder.parent / "cache").open(str(folder), dtype=INT8)


def test_vectors_are_close_to_those_of_float32(folder: Path) -> None:
    cache = folder.parent / "cache"
    with (
        SentenceEncoder(folder, cache_dir=cache) as exact,
        SentenceEncoder(folder, precision=INT8, cache_dir=cache) as q,
    ):
        off = 1 - (exact.encode(TEXTS) * q.encode(TEXTS)).sum(axis=1)
        assert 1e-7 < off.max() < 0.01
        assert np.abs(q.encode(TEXTS) - np.stack([q.encode(text) for text in TEXTS])).max() < 0.02


def test_every_linear_layer_of_the_trunk_is_in_8_bits_and_nothing_else(bundle: Bundle) -> None:
    graph = onnx.load(bundle.graph, load_external_data=False).graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    heads = ("dense.",)  # what comes after the last state stays as it is
    left = [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights and n.input[1][:6] not in heads]
    made = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert not left and made
    assert all(weights[node.input[1]].data_type == onnx.TensorProto.INT8 for node in made)
    kinds = {tensor.data_type for name, tensor in weights.items() if not name.endswith("_int8")}
    assert onnx.TensorProto.INT8 not in kinds
    assert bundle.manifest.dtype == INT8


def test_the_evaluator_agrees(bundle: Bundle) -> None:
    # A product that falls on the other side of a rounding boundary is a whole step off.
    assert worst_difference(bundle) < 0.02


def test_a_token_of_zeros_and_one_that_is_not_finite_come_out_as_such(tmp_path: Path) -> None:
    import onnx_ir as ir
    import onnxruntime
    import onnxscript
    from onnx.reference import ReferenceEvaluator

    from ffwd_ort_exporters.blocks import Linear
    from ffwd_ort_exporters.quantize import quantize_linear_layers

    layer = Linear(4, 8, bias=False)
    graph = ir.Graph([], [], nodes=[], name="one", opset_imports={"": 23})
    builder = onnxscript.GraphBuilder(graph)
    y = layer(builder.op, builder.input("x", ir.DataType.FLOAT, ["rows", "seq", 4]))
    y.type, y.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["rows", "seq", 8])
    builder.add_output(y, "y")
    drawn = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    drawn[:, 3] = 0  # an output without weights
    layer.weight.const_value = ir.Tensor(drawn)
    model = ir.Model(graph, ir_version=11)
    quantize_linear_layers(model, [layer.weight])
    ir.save(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = np.array([[[1, -2, 3, 0.5], [0, 0, 0, 0], [1, np.inf, 0, 0], [1e30, -1e30, 0, 0], [1, -2, 3, 0.5]]], np.float32)
    (found,) = session.run(None, {"x": x})
    assert np.abs(found[0, 0] - x[0, 0] @ drawn).max() < 0.05
    assert (found[0, 1] == 0).all() and (found[0, :, 3][[0, 1, 3, 4]] == 0).all()
    assert not np.isfinite(found[0, 2]).all()
    assert np.allclose(found[0, 3], x[0, 3] @ drawn, rtol=0.05, atol=1e28)
    assert (found[0, 4] == found[0, 0]).all()  # whatever its neighbours are
    with np.errstate(invalid="raise", divide="raise"):  # no provider is left to say what 0 / 0 is
        ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"x": x[:, :2]})


def test_a_bundle_of_another_precision_is_refused_naming_the_command(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"holds int8 and f32 is asked for; .*ffwd-ort export tiny .*--dtype f32"):
        BundleCache(tmp_path).find(str(bundle.path))
    assert BundleCache(tmp_path).find(str(bundle.path), INT8) is not None


def test_export_takes_it_by_flag(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "-o", str(tmp_path / "bundle"), "--dtype", INT8, "--quiet"]) == 0
    assert main(["inspect", str(tmp_path / "bundle")]) == 0
    assert "int8 for cpu" in capsys.readouterr().out


def test_optimum_has_no_int8(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match="the exporter optimum writes f32, not int8"):
        BundleCache(tmp_path).open(str(tiny), exporter=OPTIMUM, dtype=INT8)
