"""The exported graph: the contract of its inputs and outputs, standard operators, and BERT's arithmetic."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array
from safetensors.numpy import load_file, save_file

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.cli.main import main
from ffwd_ort.engine.reference import ReferenceRunner
from ffwd_ort.engine.sessions import SessionSettings, open_runner
from ffwd_ort.errors import AdmissionError, CheckpointError, RefusedError
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

SIZES: dict[str, Any] = {"layers": 2, "hidden": 12, "heads": 3, "intermediate": 16, "positions": 32}
EPSILON = 1e-12
TEXTS = ([2, 9, 30, 41, 3], [2, 17, 3], [2, 50, 51, 52, 53, 8, 3])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("native") / "tiny", TinyBert(**SIZES))


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Bundle:
    return export(checkpoint)


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(bundle.graph)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "tiny", TinyBert(**SIZES))


def export(folder: Path) -> Bundle:
    return BundleCache(folder.parent / "cache").open(str(folder))


def edit(folder: Path, **changes: Any) -> None:
    """Set keys of config.json."""
    write_json(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **changes})


def signature(values: Any) -> dict[str, tuple[int, list[int | str]]]:
    """Name, element type and dimensions of a graph's inputs or outputs."""
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
        )
        for value in values
    }


# --- the contract ----------------------------------------------------------------------------------


def test_inputs_and_output_have_the_names_types_and_symbolic_dims_of_the_contract(model: onnx.ModelProto) -> None:
    ints, floats = onnx.TensorProto.INT32, onnx.TensorProto.FLOAT
    assert signature(model.graph.input) == {
        "input_ids": (ints, ["rows", "seq"]),
        "position_ids": (ints, ["rows", "seq"]),
        "segment_ids": (ints, ["rows", "seq"]),
        "pool": (floats, ["rows", "slots", "seq"]),
    }
    assert signature(model.graph.output) == {"pooled": (floats, ["rows", "slots", 12])}


def test_the_manifest_lists_the_graphs_inputs_in_their_order(bundle: Bundle, model: onnx.ModelProto) -> None:
    assert bundle.manifest.inputs == tuple(value.name for value in model.graph.input)
    assert bundle.manifest.head == model.graph.output[0].name


def test_only_standard_operators_of_opset_23_are_used_and_the_checker_agrees(
    model: onnx.ModelProto, bundle: Bundle
) -> None:
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 23)]
    assert {node.domain for node in model.graph.node} == {""}
    assert len(model.functions) == 0
    assert {"Attention", "LayerNormalization", "Gelu"} <= {node.op_type for node in model.graph.node}
    onnx.checker.check_model(str(bundle.graph), full_check=True)


def test_weights_lie_aligned_in_their_own_file_and_the_graph_holds_only_small_ones(bundle: Bundle) -> None:
    model = onnx.load(bundle.graph, load_external_data=False)
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert outside
    for tensor in outside:
        place = {entry.key: entry.value for entry in tensor.external_data}
        assert place["location"] == "model.onnx.data"
        assert int(place.get("offset", 0)) % 4096 == 0
    assert all(len(tensor.raw_data) < 1024 for tensor in model.graph.initializer)


def test_every_parameter_has_its_checkpoint_name_and_every_tensor_is_used(
    model: onnx.ModelProto, checkpoint: Path
) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    fused = {re.sub(r"\.self\.(query|key|value)\.", ".self.qkv.", name) for name in tensors}
    parameters = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    assert parameters == fused
    assert "encoder.layer.1.attention.self.qkv.weight" in parameters


def test_linear_weights_are_transposed_and_query_key_and_value_fused_in_this_order(
    model: onnx.ModelProto, checkpoint: Path
) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    found = {tensor.name: to_array(tensor) for tensor in model.graph.initializer}
    layer = "encoder.layer.1"
    parts = [tensors[f"{layer}.attention.self.{part}.weight"] for part in ("query", "key", "value")]
    np.testing.assert_array_equal(found[f"{layer}.attention.self.qkv.weight"], np.concatenate(parts).T)
    biases = [tensors[f"{layer}.attention.self.{part}.bias"] for part in ("query", "key", "value")]
    np.testing.assert_array_equal(found[f"{layer}.attention.self.qkv.bias"], np.concatenate(biases))
    np.testing.assert_array_equal(found[f"{layer}.output.dense.weight"], tensors[f"{layer}.output.dense.weight"].T)
    name = "embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(found[name], tensors[name])


def test_the_manifest_has_the_trunks_measures(bundle: Bundle, checkpoint: Path) -> None:
    sizes = bundle.manifest.sizes
    vocabulary = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.intermediate) == (2, 12, 3, 16)
    assert sizes.vocabulary == vocabulary
    assert (bundle.manifest.dim, bundle.manifest.positions, bundle.manifest.position_offset) == (12, 32, 0)
    assert bundle.manifest.seqs == (16, 32)
    assert bundle.manifest.special_tokens["[CLS]"] == 2


# --- arithmetic ------------------------------------------------------------------------------------


def feeds(*rows: tuple[list[int], ...], seq: int) -> dict[str, np.ndarray]:
    """Pack texts into rows; `pool` picks every token, so that the answer is the hidden states."""
    arrays = {name: np.zeros((len(rows), seq), np.int32) for name in ("input_ids", "position_ids", "segment_ids")}
    arrays["segment_ids"][:] = -1
    for row, texts in enumerate(rows):
        start = 0
        for segment, ids in enumerate(texts):
            end = start + len(ids)
            arrays["input_ids"][row, start:end] = ids
            arrays["position_ids"][row, start:end] = range(len(ids))
            arrays["segment_ids"][row, start:end] = segment
            start = end
    return {**arrays, "pool": np.tile(np.eye(seq, dtype=np.float32), (len(rows), 1, 1))}


ACTIVATIONS = {
    "gelu": np.vectorize(lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def bert(folder: Path, ids: list[int], activation: str = "gelu") -> np.ndarray:
    """Compute BERT's last hidden states of one text in float64, from the paper: [tokens, hidden]."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    embedded = tensors["embeddings.word_embeddings.weight"][ids]
    embedded = embedded + tensors["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", embedded + tensors["embeddings.token_type_embeddings.weight"][0])
    for i in range(SIZES["layers"]):
        layer = f"encoder.layer.{i}"
        shape = (len(ids), SIZES["heads"], -1)
        q, k, v = (
            linear(f"{layer}.attention.self.{part}", x).reshape(shape).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]))
        heads = (scores / scores.sum(-1, keepdims=True)) @ v
        attended = linear(f"{layer}.attention.output.dense", heads.swapaxes(0, 1).reshape(len(ids), -1))
        x = norm(f"{layer}.attention.output.LayerNorm", x + attended)
        inner = ACTIVATIONS[activation](linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", inner))
    return x


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_graph_computes_bert_with_each_activation(folder: Path, activation: str) -> None:
    edit(folder, hidden_act=activation)
    runner = open_runner(export(folder), SessionSettings("cpu"))
    for ids in TEXTS:
        states = runner.run(feeds((ids,), seq=16))[0, : len(ids)]
        np.testing.assert_allclose(states, bert(folder, ids, activation), atol=1e-5)


def test_texts_that_share_a_row_do_not_see_each_other_or_the_padding(bundle: Bundle, checkpoint: Path) -> None:
    runner = open_runner(bundle, SessionSettings("cpu"))
    states = runner.run(feeds(TEXTS, (TEXTS[2],), seq=16))
    assert np.isfinite(states).all()
    start = 0
    for ids in TEXTS:
        np.testing.assert_allclose(states[0, start : start + len(ids)], bert(checkpoint, ids), atol=1e-5)
        start += len(ids)
    np.testing.assert_allclose(states[1, : len(TEXTS[2])], bert(checkpoint, TEXTS[2]), atol=1e-5)


def test_pooling_is_a_product_with_the_weights_that_are_given(bundle: Bundle) -> None:
    runner = open_runner(bundle, SessionSettings("cpu"))
    arrays = feeds((TEXTS[0],), seq=16)
    states = runner.run(arrays)[0]
    weights = np.random.default_rng(5).random((1, 3, 16), np.float32)
    np.testing.assert_allclose(runner.run({**arrays, "pool": weights})[0], weights[0] @ states, atol=1e-5)


def test_the_numpy_evaluator_agrees_with_onnx_runtime(bundle: Bundle) -> None:
    arrays = feeds(TEXTS, (TEXTS[1],), seq=16)
    mine, theirs = open_runner(bundle, SessionSettings("cpu")).run(arrays), ReferenceRunner(bundle).run(arrays)
    assert np.abs(mine - theirs).max() < 1e-5


def test_export_check_prints_a_difference_below_1e_5(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(checkpoint), "-o", str(tmp_path / "bundle"), "--cache-dir", str(tmp_path), "--check"]
    assert main(arguments) == 0
    said = re.search(r"^worst difference from the NumPy evaluator: (\d\.\de-\d+)$", capsys.readouterr().out, re.M)
    assert said is not None
    assert 0 < float(said[1]) < 1e-5


# --- what cannot be computed -----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["mish", "GELU", "", None, 5])
def test_an_unknown_activation_is_refused_with_the_ones_there_are(folder: Path, value: object) -> None:
    edit(folder, hidden_act=value)
    with pytest.raises(AdmissionError) as caught:
        export(folder)
    assert f"hidden_act is {value!r}; there are gelu, gelu_python, gelu_new" in str(caught.value)


@pytest.mark.parametrize("value", ["relative_key", "relative_key_query", None])
def test_positions_of_another_kind_are_refused(folder: Path, value: object) -> None:
    edit(folder, position_embedding_type=value)
    with pytest.raises(AdmissionError, match=rf"position_embedding_type is {value!r}; only 'absolute'"):
        export(folder)


def test_a_width_that_its_heads_do_not_divide_is_refused(folder: Path) -> None:
    edit(folder, num_attention_heads=5)
    with pytest.raises(AdmissionError, match=r"hidden_size 12 is no multiple of 5 heads"):
        export(folder)


@pytest.mark.parametrize("flag", ["is_decoder", "add_cross_attention"])
def test_a_decoder_is_refused(folder: Path, flag: str) -> None:
    edit(folder, **{flag: True})
    with pytest.raises(AdmissionError, match=flag):
        export(folder)


def test_a_causal_bert_is_refused_since_its_attention_goes_both_ways(folder: Path) -> None:
    edit(folder, is_causal=True)
    with pytest.raises(AdmissionError, match=r"is_causal"):
        export(folder)


def test_a_token_id_beyond_the_embedding_is_refused_with_both_numbers(folder: Path) -> None:
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tensors = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    save_file({**tensors, name: tensors[name][:-1].copy()}, folder / "model.safetensors")
    edit(folder, vocab_size=rows - 1)
    expected = rf"tokenizer\.json: token id {rows - 1} has no row in the embedding of {rows - 1} rows"
    with pytest.raises(CheckpointError, match=expected):
        export(folder)


def test_an_added_token_beyond_the_embedding_is_refused(folder: Path) -> None:
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {"id": rows, "content": "[NEW]", "special": True, "single_word": False}
    added |= {"lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=rf"token id {rows} has no row"):
        export(folder)


def test_a_larger_embedding_than_the_tokenizer_needs_is_fine(folder: Path) -> None:
    """Real checkpoints pad theirs to a multiple of 64."""
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tensors = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    padded = np.concatenate([tensors[name], np.zeros((3, 12), np.float32)])
    save_file({**tensors, name: padded}, folder / "model.safetensors")
    edit(folder, vocab_size=rows + 3)
    assert export(folder).manifest.sizes.vocabulary == rows + 3


@pytest.mark.parametrize("pad", [-1, 100_000])
def test_a_padding_id_without_a_row_is_refused(folder: Path, pad: int) -> None:
    edit(folder, pad_token_id=pad)
    with pytest.raises(RefusedError, match=rf"pad_token_id is {pad}"):
        export(folder)


def test_padding_and_truncation_baked_into_the_tokenizer_are_off_in_the_bundle(
    bundle: Bundle, checkpoint: Path
) -> None:
    theirs, ours = (json.loads(path.read_text()) for path in (checkpoint / "tokenizer.json", bundle.tokenizer))
    assert theirs["padding"] is not None
    assert theirs["truncation"] is not None
    assert (ours["padding"], ours["truncation"]) == (None, None)
    assert ours["model"] == theirs["model"]
