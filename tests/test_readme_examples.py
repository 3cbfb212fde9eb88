"""The README's examples, executed as they are written: only addresses and paths are replaced."""

import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from tests.serving import Server

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
CURLS = [line for line in README.splitlines() if line.startswith("curl ")]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PPLX = TinyDecoder(model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False)
# The keys of the answer of each route that an example asks.
KEYS = {
    "/v1/embeddings": {"object", "data", "model", "usage"},
    "/v1/rerank": {"object", "id", "model", "results", "usage"},
    "/v1/contextualizedembeddings": {"object", "data", "model", "usage"},
}


@pytest.fixture(scope="module")
def server(minilm: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("readme")
    arguments = [
        *(
            "--model",
            f"demo={minilm}:rerank=cosine",
            "--reranker-model",
            f"ce={write_cross_encoder(place / 'ce', 'bert')}",
        ),
        *("--contextual-model", f"ctx={write_decoder(place / 'ctx', PPLX)}:api=perplexity"),
        *("--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    yield server
    server.stop()


@pytest.mark.parametrize("line", CURLS, ids=range(len(CURLS)))
def test_every_curl_line_is_answered(server: Server, line: str) -> None:
    command = shlex.split(line.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    path = next(word for word in command if word.startswith("http")).split(str(server.port))[1]
    assert set(json.loads(done.stdout)) == KEYS[path], done.stdout


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_every_python_example_runs(server: Server, minilm: Path, code: str) -> None:
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}").replace("path/to/all-MiniLM-L6-v2", str(minilm))
    said, names = io.StringIO(), dict[str, object]()
    with redirect_stdout(said):
        exec(code, names)
    vectors = names.get("vectors")
    assert said.getvalue().strip() == "384" or getattr(vectors, "shape", None) == (2, 384)


def test_there_are_examples_of_both_kinds() -> None:
    assert len(CURLS) >= 3 and len(SNIPPETS) >= 2
