"""One server of several labels, shared by the tests that only ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffwd_ort_conformance.tiny import TinyBert, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder
from tests.serving import Server


@pytest.fixture(scope="session")
def fleet(
    tiny: Path, tiny_prompts: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Labels: tiny; mrl (min_dim 16, two prompts); ids (takes token ids); a/b (two poolings); pp (perplexity)."""
    both = write_bert(tmp_path_factory.mktemp("fleet") / "both", TinyBert(pooling=("cls_token", "mean_tokens")))
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    pp = write_decoder(tmp_path_factory.mktemp("fleet") / "pp", pplx)
    server = Server(
        [
            *("--model", f"tiny={tiny}"),
            *("--model", f"mrl={tiny_prompts}:min_dim=16"),
            *("--model", f"ids={tiny}:token_ids=accept"),
            *("--model", f"a/b={both}"),
            *("--model", f"pp={pp}:api=perplexity:min_dim=4"),
            *("--cache-dir", str(cache_dir)),
        ],
        tmp_path_factory.mktemp("fleet") / "server.log",
    )
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mini(minilm: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """all-MiniLM-L6-v2 as label mini."""
    arguments = ["--model", f"mini={minilm}", "--cache-dir", str(cache_dir)]
    server = Server(arguments, tmp_path_factory.mktemp("mini") / "server.log")
    server.wait_ready()
    yield server
    server.stop()
