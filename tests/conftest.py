"""What tests share: tiny checkpoints, a real one from the package index, servers on free ports."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffwd_ort.errors import SourceError
from ffwd_ort.sources import DEMO_SOURCE, default_cache_dir, resolve
from ffwd_ort_conformance.tiny import TinyBert, write_bert
from tests.serving import Server


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle cache of this test run's own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with mean pooling, normalised, 128 positions."""
    return write_bert(tmp_path_factory.mktemp("tiny") / "tiny-bert")


@pytest.fixture(scope="session")
def tiny_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with query and document prompts."""
    prompts = (("query", "the tide: "), ("document", "a boat: "))
    return write_bert(tmp_path_factory.mktemp("tiny") / "tiny-prompts", TinyBert(prompts=prompts))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, fetched once into the user's cache."""
    try:
        return resolve(DEMO_SOURCE, default_cache_dir()).path
    except SourceError as error:
        pytest.skip(f"MiniLM cannot be had: {error}")


@pytest.fixture
def serve(cache_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start real servers: `serve("--model", "mini=…", "--rows", "32")`; they are stopped afterwards."""
    servers: list[Server] = []

    def start(*arguments: str, wait: bool = True, env: dict[str, str] | None = None) -> Server:
        server = Server([*arguments, "--cache-dir", str(cache_dir)], tmp_path / f"server-{len(servers)}.log", env)
        servers.append(server)
        if wait:
            server.wait_ready()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own settings out of the tests."""
    for name in [name for name in os.environ if name.startswith("FFWD_")]:
        monkeypatch.delenv(name)
