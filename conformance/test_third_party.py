"""The example of a third party's family has the vectors of transformers."""

import os
import subprocess
import sys
from pathlib import Path

from ffwd_ort_conformance.tiny_third_party import install_example, write_electra


def test_a_third_partys_family_conforms(tmp_path: Path, cache_dir: Path) -> None:
    site = tmp_path / "site"
    install_example(site)
    folder = write_electra(tmp_path / "electra")
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "conformance", str(folder), "--cache-dir", str(cache_dir)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "electra embedding against sentence-transformers" in done.stdout
