"""Exports by optimum against transformers in the same environment: `make test-optimum`, skipped by name elsewhere."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optimum.exporters.onnx", reason="the extra [optimum] is not installed: make test-optimum")

import torch
import transformers
from safetensors.numpy import load_file, save_file

from ffwd_ort import SentenceEncoder
from ffwd_ort.bundle import open_bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.cli.main import main
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.errors import AdmissionError
from ffwd_ort.export import OPTIMUM
from ffwd_ort_conformance.tiny import TEXTS, Tiny, TinyBert, long_text, write_bert, write_json, write_modules
from ffwd_ort_conformance.tiny import write_tokenizer as write_word_piece
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder
from tests.serving import Server

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
# Architectures without a native graph: what config.json adds, and how the folder pools.
ARCHITECTURES: dict[str, tuple[dict[str, Any], str]] = {
    "electra": ({"embedding_size": 24}, "mean_tokens"),
    "albert": ({"embedding_size": 24}, "cls_token"),
    "deberta-v2": (DISENTANGLED | {"position_biased_input": False, "type_vocab_size": 0}, "mean_tokens"),
    "phi3": ({"num_key_value_heads": 3}, "lasttoken"),  # causal, with positions among its graph's inputs
}
ALL_TEXTS = (*TEXTS, long_text(128), long_text(70), long_text(17))


def write(folder: Path, model_type: str, changes: dict[str, Any], pooling: str = "mean_tokens") -> Path:
    """Write a sentence-transformers folder around a random model of transformers' own; returns the folder."""
    folder.mkdir(parents=True)
    config = transformers.CONFIG_MAPPING[model_type](vocab_size=write_word_piece(folder), **(SIZES | changes))
    torch.manual_seed(11)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too, so that every one of them matters
            spread = 0.2 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(parameter.round() + spread * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_modules(folder, Tiny(pooling=(pooling,)))
    return folder


def by_transformers(folder: Path, pooling: str) -> Floats:
    """Encode ALL_TEXTS one by one, in float32: [texts, dim] of unit length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in ALL_TEXTS:
        encoded = tokenizer(text, return_tensors="pt", padding=False, truncation=False)
        with torch.inference_mode():
            states = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"])[0][0]
        pooled = {"mean_tokens": states.mean(0), "cls_token": states[0], "lasttoken": states[-1]}[pooling]
        vectors.append(torch.nn.functional.normalize(pooled, dim=0).numpy())
    return np.stack(vectors)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """A checkpoint without a native family, how it pools, and its bundle, exported by the command line."""
    changes, pooling = ARCHITECTURES[request.param]
    place = tmp_path_factory.mktemp(request.param)
    folder = write(place / request.param, request.param, changes, pooling)
    arguments = ["export", str(folder), "-o", str(place / "bundle"), "--cache-dir", str(place / "cache")]
    assert main([*arguments, "--exporter", "optimum", "--kind", "embedding"]) == 0
    return folder, pooling, place / "bundle"


def test_the_vectors_are_those_of_transformers(exported: tuple[Path, str, Path]) -> None:
    folder, pooling, bundle = exported
    with SentenceEncoder(bundle) as encoder:
        ours = encoder.encode(ALL_TEXTS)
    theirs = by_transformers(folder, pooling)
    assert (ours * theirs).sum(1).min() >= 0.999999
    assert np.abs(ours - theirs).max() <= 2e-5
    assert np.abs(theirs[0] - theirs[1]).max() > 0.01, "the texts have vectors of their own"


def test_a_text_has_the_same_vector_alone_and_in_company(exported: tuple[Path, str, Path]) -> None:
    with SentenceEncoder(exported[2]) as encoder:
        together = encoder.encode(ALL_TEXTS)
        alone = np.stack([encoder.encode(text) for text in ALL_TEXTS])
        backwards = encoder.encode(ALL_TEXTS[::-1])[::-1]
    assert np.abs(together - alone).max() <= 5e-6
    assert np.abs(together - backwards).max() <= 5e-6


def test_the_manifest_and_inspect_say_padded_rows(
    exported: tuple[Path, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = open_bundle(exported[2]).manifest
    assert (manifest.family, manifest.exporter, manifest.packs) == ("optimum", "optimum", False)
    assert (manifest.positions, manifest.dim, manifest.kind, manifest.head) == (128, 48, "embedding", "pooled")
    assert {path.name for path in exported[2].iterdir()} == {*manifest.files, "manifest.json"}
    assert main(["inspect", str(exported[2]), "--verify"]) == 0
    assert "packing  padded rows, no packing" in capsys.readouterr().out


def test_a_server_answers_from_the_bundle(exported: tuple[Path, str, Path], serve: Callable[..., Server]) -> None:
    folder, pooling, bundle = exported
    server = serve("--model", f"x={bundle}")
    reply = server.post({"input": list(ALL_TEXTS)})
    assert reply.status == 200, reply.body
    ours = np.array([entry["embedding"] for entry in reply.json()["data"]], np.float32)
    assert np.abs(ours - by_transformers(folder, pooling)).max() <= 2e-5
    assert server.get("/health").json()["models"][0]["family"] == "optimum"


# --- what needs one architecture only -------------------------------------------------------------


@pytest.fixture(scope="module")
def electra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("one") / "electra", "electra", {"embedding_size": 24})


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_a_real_process_exports_without_a_word_and_serves_without_torch(electra: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    flags = ["-o", bundle, "--cache-dir", tmp_path / "cache", "--exporter", "optimum", "--check"]
    done = command("-m", "ffwd_ort.cli.main", "export", electra, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout.rsplit(maxsplit=1)[-1]) <= 1e-5, "the NumPy evaluator agrees"
    script = (
        "import sys; from ffwd_ort import SentenceEncoder\n"
        "with SentenceEncoder(sys.argv[1]) as encoder: encoder.encode('the tide falls')\n"
        "print(sorted({'torch', 'transformers', 'optimum', 'onnx_ir'} & set(sys.modules)))"
    )
    served = command("-c", script, bundle)
    assert (served.returncode, served.stdout) == (0, "[]\n"), served.stderr


def test_a_server_given_the_checkpoint_names_the_export(electra: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"x={electra}", wait=False)
    assert server.process.wait(60) == 3
    assert "`ffwd-ort export --exporter optimum`" in server.output


def test_a_native_family_gives_the_same_vectors_by_either_exporter(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert")
    cache = BundleCache(tmp_path / "cache")
    bundles = [cache.open(str(folder)), cache.open(str(folder), exporter=OPTIMUM)]
    assert cache.open(str(folder), exporter=OPTIMUM) == bundles[1] != bundles[0]
    assert [(b.manifest.family, b.manifest.exporter, b.manifest.packs) for b in bundles] == [
        ("bert", "bert", True),
        ("bert", "optimum", False),
    ]
    vectors = []
    for bundle in bundles:
        with SentenceEncoder(bundle.path) as encoder:
            vectors.append(encoder.encode(ALL_TEXTS))
    assert np.abs(vectors[0] - vectors[1]).max() <= 2e-5


# --- refusals --------------------------------------------------------------------------------------

UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "padding leaks into its convolutions": (
        "convbert",
        {"embedding_size": 48, "num_attention_heads": 4},
        "padding changes its vectors, by",
    ),
    "long texts are attended to in another way": (
        "big_bird",
        {"max_position_embeddings": 1024},
        "the graph differs from transformers in a text of 1024 tokens, by",
    ),
    "its positions begin after the pad token's": (
        "data2vec-text",
        {"pad_token_id": 1},
        "its model in transformers does not take 128 tokens: IndexError",
    ),
    "optimum does not know it": ("ernie", {}, "optimum does not export ErnieModel: KeyError: "),
    "it has a decoder too": ("bart", {"d_model": 48, "encoder_layers": 1}, "optimum's graph turns "),
}


@pytest.mark.parametrize("why", UNFIT)
def test_what_would_give_wrong_vectors_is_refused_by_name(why: str, tmp_path: Path) -> None:
    model_type, changes, message = UNFIT[why]
    folder = write(tmp_path / "unfit", model_type, changes)
    with pytest.raises(AdmissionError) as caught:
        BundleCache(tmp_path / "cache").open(str(folder), exporter=OPTIMUM)
    assert str(caught.value).startswith(f"--exporter optimum: unfit: {message}")
    assert not list((tmp_path / "cache" / "bundles").glob("*/")), "nothing is left behind"


def refusal(folder: Path, tmp_path: Path) -> str:
    with pytest.raises(AdmissionError) as caught:
        BundleCache(tmp_path / "cache").open(str(folder), exporter=OPTIMUM)
    return str(caught.value)


@pytest.mark.parametrize(("declared", "refused"), [(None, False), (True, False), (False, True)])
def test_a_decoder_that_should_see_both_ways_is_refused(declared: bool | None, refused: bool, tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "qwen2", TinyDecoder(model_type="qwen2", qkv_bias=True, layers=1))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | ({} if declared is None else {"is_causal": declared}))
    if refused:
        said = "config.json says is_causal false, but its model in transformers attends the other way"
        assert refusal(folder, tmp_path).endswith(said)
    else:
        BundleCache(tmp_path / "cache").open(str(folder), exporter=OPTIMUM)


def test_a_missing_weight_is_refused_rather_than_drawn(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert", TinyBert(layers=1))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("encoder.layer.0.output.dense.bias")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "the weights lack encoder.layer.0.output.dense.bias" in refusal(folder, tmp_path)


def test_an_architecture_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert", TinyBert(layers=1))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"model_type": "sprat", "architectures": ["SpratModel"]})
    said = refusal(folder, tmp_path)
    assert f"transformers {transformers.__version__} does not load it: ValueError: " in said
    assert "`sprat`" in said
