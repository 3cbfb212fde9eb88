"""The README's examples, executed as they are written: only addresses and paths are replaced."""

import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import pytest

from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_colbert
from tests.serving import Server

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
]
DEMO = ("ffwd-server", "--demo")  # what `make serve` starts
# Each curl line, with the server that its block starts, which is the demo where it starts none.
CURLS = [
    (tuple(next((line for line in block if line[0] == "ffwd-server"), DEMO)), tuple(curl))
    for block in BLOCKS
    for curl in block
    if curl[0] == "curl"
]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PPLX = TinyDecoder(model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False)
# A tiny checkpoint of the same kind for each folder that the README writes, but for the real one.
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "ms-marco-MiniLM-L12-v2": lambda folder: write_cross_encoder(folder, "bert"),
    "colbert": write_colbert,
    "pplx-embed-context-v1-0.6b": lambda folder: write_decoder(folder, PPLX),
}
# The keys of the answer of each route that an example asks.
KEYS = {
    "/v1/embeddings": {"object", "data", "model", "usage"},
    "/v1/rerank": {"object", "id", "model", "results", "usage"},
    "/v1/contextualizedembeddings": {"object", "data", "model", "usage"},
}
Start = Callable[[tuple[str, ...]], Server]


@pytest.fixture(scope="module")
def local(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Replace the folders that a text names by ones that exist."""
    place = tmp_path_factory.mktemp("readme")
    there = {"all-MiniLM-L6-v2": minilm}

    def replace(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in there:
            there[name] = FOLDERS[name](place / name)
        return str(there[name])

    return lambda text: re.sub(r"\bpath/to/([\w.-]+)", replace, text)


@pytest.fixture(scope="module")
def start(local: Callable[[str], str], cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start the server of a command line, once; `--demo` is fetched by now and its bundle may be in the cache."""
    running: dict[tuple[str, ...], Server] = {}
    with ExitStack() as stack:

        def run(command: tuple[str, ...]) -> Server:
            if command not in running:
                own = () if command == DEMO else ("--cache-dir", str(cache_dir))
                log = tmp_path_factory.mktemp("readme-server") / "log"
                running[command] = Server([*map(local, command[1:]), *own], log)
                stack.callback(running[command].stop)
                running[command].wait_ready()
            return running[command]

        yield run


@pytest.mark.parametrize(("command", "curl"), CURLS, ids=range(len(CURLS)))
def test_every_curl_line_is_answered_by_the_server_of_its_block(
    start: Start, command: tuple[str, ...], curl: tuple[str, ...]
) -> None:
    server = start(command)
    line = [word.replace("http://127.0.0.1:8000", server.url) for word in curl]
    done = subprocess.run([*line, "-w", "\n%{http_code}"], capture_output=True, text=True, check=True, timeout=60)
    body, _, status = done.stdout.rpartition("\n")
    (path,) = [word.removeprefix(server.url) for word in line if word.startswith(server.url)]
    assert status == "200" and set(json.loads(body)) == KEYS[path], done.stdout


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_every_python_example_runs(start: Start, local: Callable[[str], str], code: str) -> None:
    said, names = io.StringIO(), dict[str, object]()
    url = start(DEMO).url if "127.0.0.1:8000" in code else ""
    with redirect_stdout(said):
        exec(local(code).replace("http://127.0.0.1:8000", url), names)
    vectors = names.get("vectors")
    assert said.getvalue().strip() == "384" or getattr(vectors, "shape", None) == (2, 384)


def test_there_are_examples_of_both_kinds_and_every_route_that_one_asks_is_checked() -> None:
    assert len(CURLS) >= 3 and len(SNIPPETS) >= 2
    asked = {word.partition(":8000")[2] for _, curl in CURLS for word in curl if word.startswith("http")}
    assert asked == set(KEYS)
    assert "ffwd-server --demo" in (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
