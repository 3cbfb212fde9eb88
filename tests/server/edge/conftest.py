"""The fleet of http.md section 16, on one real server."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ffwd_ort.cache import BundleCache
from ffwd_ort_conformance.tiny import TinyBert
from ffwd_ort_conformance.tiny_families import TinyDecoder, make_cross_encoder, write_bert, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Server

CE_LAYERS = ("bert.pooler.dense", "classifier")


def write_ce(folder: Path) -> Path:
    """Write a cross-encoder of 512 positions."""
    tiny = TinyBert(positions=512, seed=21)
    make_cross_encoder(write_bert(folder, tiny), "BertForSequenceClassification", CE_LAYERS, tiny)
    return folder


def write_hot(folder: Path) -> Path:
    """Write the same with logits near 40, whose sigmoids are all 1.0 in float32."""
    write_ce(folder)
    tensors = load_file(folder / "model.safetensors")
    hot = {"classifier.bias": np.full(1, 40, np.float32)}
    save_file(tensors | hot, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def edge_arguments(minilm: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """mini, mrl, pp, ids, cosr, sealed, a/b, ctx, late, ce: as the specification describes them; hot: see there."""
    place = tmp_path_factory.mktemp("edge")
    last = TinyDecoder(hidden=64, head_norms=True, append_eos=True, prompts=(("query", "the tide: "),))
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    sealed = BundleCache(cache_dir).open(str(minilm)).path
    pp = write_decoder(place / "pp", pplx)
    return [
        *("--model", f"mini={minilm}"),
        *("--model", f"mrl={write_decoder(place / 'mrl', last)}:min_dim=32"),
        *("--model", f"pp={pp}:api=perplexity:min_dim=4"),
        *("--model", f"ids={minilm}:token_ids=accept"),
        *("--model", f"cosr={minilm}:rerank=cosine"),
        *("--model", f"sealed={sealed}"),
        *("--model", f"a/b={minilm}"),
        *("--contextual-model", f"ctx={pp}"),
        *("--late-model", f"late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ce={write_ce(place / 'ce')}"),
        *("--reranker-model", f"hot={write_hot(place / 'hot')}"),
        *("--cache-dir", str(cache_dir)),
    ]


@pytest.fixture(scope="session")
def edge(edge_arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The fleet with default flags."""
    server = Server(edge_arguments, tmp_path_factory.mktemp("edge") / "server.log")
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def edge_400(edge: Server, edge_arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same fleet with the other validation status; `edge` has made the bundles."""
    log = tmp_path_factory.mktemp("edge") / "server.log"
    server = Server([*edge_arguments, "--validation-status", "400"], log)
    server.wait_ready()
    yield server
    server.stop()
