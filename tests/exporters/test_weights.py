"""Weights by name: every form they are published in, and every damage named by file or tensor."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array
from safetensors.numpy import load_file, save_file

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.cli.main import main
from ffwd_ort.errors import CheckpointError
from ffwd_ort_conformance.tiny import TinyBert, old_name, write_bert, write_json
from ffwd_ort_exporters.weights import clean_name, open_weights

SIZES: dict[str, Any] = {"layers": 2, "hidden": 12, "heads": 3, "intermediate": 16, "positions": 32}
QUERY = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "tiny", TinyBert(**SIZES))


def export(folder: Path) -> Bundle:
    return BundleCache(folder.parent / "cache").open(str(folder))


def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Have the export refused, by the library and by the command; return its one line."""
    with pytest.raises(CheckpointError) as caught:
        export(folder)
    out = folder.parent / "out"
    out.mkdir()
    assert main(["export", str(folder), "-o", str(out / "bundle"), "--cache-dir", str(folder.parent / "cache")]) == 3
    assert list(out.iterdir()) == []
    bundles = folder.parent / "cache" / "bundles"
    assert [path for path in bundles.iterdir() if path.suffix != ".lock"] == []
    errors = capsys.readouterr().err
    # Of several tensors that are wrong, the safetensors library names any.
    assert errors.startswith(f"ffwd-ort: {str(caught.value).partition(': ')[0]}")
    assert errors.count("\n") == 1
    return errors


def change(folder: Path, edit: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def rewrite_header(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a safetensors file and leave its data alone."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    edit(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


def initializers(bundle: Bundle) -> dict[str, np.ndarray]:
    return {tensor.name: to_array(tensor) for tensor in onnx.load(bundle.graph).graph.initializer}


# --- damaged files ---------------------------------------------------------------------------------


def grow(header: dict[str, Any]) -> None:
    header[QUERY]["data_offsets"][1] += 10_000_000


def overlap(header: dict[str, Any]) -> None:
    header[QUERY]["data_offsets"] = header["embeddings.LayerNorm.bias"]["data_offsets"]


def give_twice(path: Path) -> None:
    """Write a tensor's entry twice, at two places: which one counts is not for us to guess."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].decode().rstrip()
    entry = json.dumps(json.loads(header)["embeddings.LayerNorm.bias"])
    header = f'{header[:-1]},"{QUERY}":{entry}}}'
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + content[8 + length :])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"\x00" * 5),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 this is a zip, or a pickle" * 40),
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}"),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: rewrite_header(path, grow),
        lambda path: rewrite_header(path, overlap),
        lambda path: rewrite_header(path, lambda header: header[QUERY].update(dtype="F99")),
        lambda path: rewrite_header(path, lambda header: header[QUERY].update(shape=[12, 13])),
        lambda path: rewrite_header(path, lambda header: header.update(__metadata__={"x": "y" * 100_000_000})),
        lambda path: rewrite_header(path, lambda header: header.update(__metadata__={"x": {"y": "z"}})),
        give_twice,
    ],
    ids=[
        "cut off in the data",
        "cut off in the header",
        "five bytes",
        "empty",
        "something else",
        "a header larger than the file",
        "bytes after the end",
        "an offset outside the file",
        "offsets that overlap",
        "an unknown type",
        "a shape that is not its size",
        "a header of 100 MB",
        "metadata that is no text",
        "a tensor given twice",
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_left(
    folder: Path, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder / "model.safetensors")
    assert "tiny/model.safetensors is not a sound safetensors file: " in refusal(folder, capsys)


def test_a_damaged_shard_is_the_one_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(**SIZES, shards=3))
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "tiny/model-00002-of-00003.safetensors is not a sound" in refusal(folder, capsys)


# --- wrong tensors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.LayerNorm.bias",
        "encoder.layer.1.attention.self.key.weight",
        "encoder.layer.1.attention.self.value.bias",
        "encoder.layer.0.output.dense.weight",
    ],
)
def test_a_missing_tensor_is_named(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder, lambda tensors: tensors.pop(name))
    assert f"the tensor {name} is missing" in refusal(folder, capsys)


def test_a_missing_layer_is_named_by_its_first_tensor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "num_hidden_layers": 3})
    assert "the tensor encoder.layer.2." in refusal(folder, capsys)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embeddings.word_embeddings.weight", (5, 12)),
        ("embeddings.position_embeddings.weight", (31, 12)),
        ("embeddings.LayerNorm.weight", (13,)),
        ("embeddings.LayerNorm.weight", (1, 12)),
        ("embeddings.LayerNorm.weight", ()),
        (QUERY, (12, 13)),
        (QUERY, (24, 12)),
        (QUERY, (144,)),
        ("encoder.layer.0.intermediate.dense.weight", (12, 16)),
        ("encoder.layer.0.output.dense.bias", ()),
    ],
)
def test_a_misshaped_tensor_is_named_with_the_shape_that_config_json_makes_it(
    folder: Path, name: str, shape: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, lambda tensors: tensors.update({name: np.zeros(shape, np.float32)}))
    line = refusal(folder, capsys)
    assert name in line
    assert "config.json makes it [" in line


def test_query_key_and_value_that_only_fit_together_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sum of their rows is right; each alone is wrong."""

    def shift(tensors: dict[str, np.ndarray]) -> None:
        key = QUERY.replace("query", "key")
        tensors[QUERY], tensors[key] = np.zeros((13, 12), np.float32), np.zeros((11, 12), np.float32)

    change(folder, shift)
    assert QUERY in refusal(folder, capsys)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["embeddings.word_embeddings.weight", QUERY, "encoder.layer.1.output.LayerNorm.bias"])
def test_weights_that_are_not_finite_are_named(
    folder: Path, name: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    def poison(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[-1] = value

    change(folder, poison)
    assert f"model.safetensors: {name} holds NaN or infinity" in refusal(folder, capsys)


@pytest.mark.parametrize(("dtype", "name"), [(np.int8, "I8"), (np.int64, "I64"), (np.float64, "F64"), (bool, "BOOL")])
def test_a_tensor_of_another_type_is_named_with_the_types_that_are_read(
    folder: Path, dtype: type, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, lambda tensors: tensors.update({QUERY: np.ones((12, 12), dtype)}))
    assert f"model.safetensors: {QUERY} has type {name}; read here are F32, F16, BF16" in refusal(folder, capsys)


def test_a_tensor_that_is_there_twice_after_clean_up_is_refused_in_one_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, lambda tensors: tensors.update({old_name("embeddings.LayerNorm.weight"): np.ones(12, np.float32)}))
    line = refusal(folder, capsys)
    assert "LayerNorm" in line
    assert "is there twice, also in model.safetensors" in line


def test_a_tensor_that_is_there_twice_after_clean_up_is_refused_across_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(**SIZES, shards=2))
    first, second = (folder / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    name = next(iter(load_file(first)))
    save_file({**load_file(second), f"bert.{name}": np.ones(3, np.float32)}, second)
    assert f"{second}: bert.{name} is there twice, also in {first.name}" in refusal(folder, capsys)


def test_tensors_that_the_graph_does_not_use_do_no_harm(folder: Path) -> None:
    plain = initializers(export(folder))

    def add(tensors: dict[str, np.ndarray]) -> None:
        tensors["pooler.dense.weight"] = np.full((12, 12), np.nan, np.float32)
        tensors["embeddings.position_ids"] = np.arange(32)
        tensors["cls.predictions.bias"] = np.zeros(3, np.float32)

    change(folder, add)
    extended = initializers(export(folder))
    assert {name: value.tobytes() for name, value in extended.items()} == {
        name: value.tobytes() for name, value in plain.items()
    }


# --- every published form --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("encoder.layer.0.output.dense.weight", "encoder.layer.0.output.dense.weight"),
        ("bert.encoder.layer.0.output.dense.weight", "encoder.layer.0.output.dense.weight"),
        ("0.auto_model.encoder.layer.0.output.dense.weight", "encoder.layer.0.output.dense.weight"),
        ("model.encoder.layer.0.output.dense.weight", "encoder.layer.0.output.dense.weight"),
        ("bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"),
        ("bert.embeddings.LayerNorm.beta", "embeddings.LayerNorm.bias"),
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("encoder.gamma", "encoder.gamma"),
        ("my_bert.LayerNorm.weight", "my_bert.LayerNorm.weight"),
    ],
)
def test_wrappers_prefixes_and_old_norm_names_are_cleaned(raw: str, clean: str) -> None:
    assert clean_name(raw, "bert.") == clean


@pytest.mark.parametrize("form", [{"old_names": True}, {"shards": 3}, {"old_names": True, "shards": 2}])
def test_old_names_and_shards_give_the_same_bytes_as_one_plain_file(
    folder: Path, tmp_path: Path, form: dict[str, Any]
) -> None:
    plain = export(folder)
    other = export(write_bert(tmp_path / "other", TinyBert(**SIZES, **form)))
    for name in ("model.onnx", "model.onnx.data"):
        assert (other.path / name).read_bytes() == (plain.path / name).read_bytes()


@pytest.mark.parametrize("prefix", ["bert.", "model.", "0.auto_model."])
def test_each_wrappers_prefix_gives_the_same_bytes(folder: Path, prefix: str) -> None:
    plain = export(folder)

    def wrap(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    change(folder, wrap)
    wrapped = export(folder)
    assert wrapped.path != plain.path
    for name in ("model.onnx", "model.onnx.data"):
        assert (wrapped.path / name).read_bytes() == (plain.path / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_are_the_float32_ones_rounded_once(folder: Path, tmp_path: Path, dtype: str) -> None:
    plain = initializers(export(folder))
    half = initializers(export(write_bert(tmp_path / "half", TinyBert(**SIZES, dtype=dtype))))
    assert set(half) == set(plain)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    floats = [name for name, value in plain.items() if value.dtype == np.float32]
    assert len(floats) > 10
    for name in floats:
        assert half[name].dtype == np.float32
        np.testing.assert_array_equal(half[name], plain[name].astype(kind).astype(np.float32), err_msg=name)
        assert name == "bias" or not np.array_equal(half[name], plain[name])


def test_a_tensor_is_read_as_float32_by_its_clean_name(tmp_path: Path) -> None:
    values = {"bert.a.LayerNorm.gamma": np.array([0.5, -2.0], np.float16), "b": np.array([[3.0]], ml_dtypes.bfloat16)}
    save_file(values, tmp_path / "x.safetensors")
    with open_weights([tmp_path / "x.safetensors"], own_prefix="bert.") as weights:
        with pytest.raises(CheckpointError, match=r"bert\.a\.LayerNorm\.gamma is missing"):
            weights.shape("bert.a.LayerNorm.gamma")
        assert weights.shape("b") == (1, 1)
        for name, expected in (("a.LayerNorm.weight", [0.5, -2.0]), ("b", [[3.0]])):
            tensor = weights.read(name)
            assert tensor.dtype == np.float32
            assert tensor.tolist() == expected
