"""A family in a package of its own: installed by pip, found by its entry points, served without touching the core."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort_conformance.tiny import TEXTS
from ffwd_ort_conformance.tiny_third_party import install_example, write_electra
from tests.serving import Server

LONGEST_FAMILY = 150  # lines, plugin and graph together


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("third-party") / "site"
    install_example(site)
    return site


def test_a_third_partys_family_serves(site: Path, tmp_path: Path, serve: Callable[..., Server]) -> None:
    folder = write_electra(tmp_path / "electra")
    refused = serve("--model", f"e={folder}", wait=False)
    assert refused.process.wait(60) == 3 and "'electra'" in refused.output, "without the package nobody claims it"

    environment = {"PYTHONPATH": str(site)}
    server = serve("--model", f"e={folder}", env=environment)
    reply = server.post({"input": list(TEXTS)})
    assert reply.status == 200, reply.body
    vectors = np.array([entry["embedding"] for entry in reply.json()["data"]])
    assert vectors.shape == (len(TEXTS), 48) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert server.get("/health").json()["models"][0]["family"] == "electra"

    command = [sys.executable, "-m", "ffwd_ort.cli.main", "models"]
    listed = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert "ffwd_ort_electra 1.0" in listed.stdout


def test_the_example_is_short() -> None:
    package = Path(__file__).parent / "third_party" / "ffwd_ort_electra"
    assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) < LONGEST_FAMILY
