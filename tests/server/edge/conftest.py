"""The fleet of http.md section 16, on one real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort_conformance.tiny import TinyBert
from ffwd_ort_conformance.tiny_families import TinyDecoder, make_cross_encoder, write_bert, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Server


@pytest.fixture(scope="session")
def edge(minilm: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """mini, mrl, pp, ids, cosr, sealed, a/b, ctx, late, ce: as the specification describes them."""
    place = tmp_path_factory.mktemp("edge")
    last = TinyDecoder(hidden=64, head_norms=True, append_eos=True, prompts=(("query", "the tide: "),))
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    pairs = TinyBert(positions=512, seed=21)
    names = ("bert.pooler.dense", "classifier")
    ce = make_cross_encoder(write_bert(place / "ce", pairs), "BertForSequenceClassification", names, pairs)
    sealed = BundleCache(cache_dir).open(str(minilm)).path
    pp = write_decoder(place / "pp", pplx)
    arguments = [
        *("--model", f"mini={minilm}"),
        *("--model", f"mrl={write_decoder(place / 'mrl', last)}:min_dim=32"),
        *("--model", f"pp={pp}:api=perplexity:min_dim=4"),
        *("--model", f"ids={minilm}:token_ids=accept"),
        *("--model", f"cosr={minilm}:rerank=cosine"),
        *("--model", f"sealed={sealed}"),
        *("--model", f"a/b={minilm}"),
        *("--contextual-model", f"ctx={pp}"),
        *("--late-model", f"late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ce={ce}"),
        *("--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    yield server
    server.stop()
