"""The wheel: what it holds, and that an installation from it works away from this folder."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ffwd_ort.version import VERSION
from ffwd_ort_conformance.tiny import TinyBert, write_bert

ROOT = Path(__file__).parents[1]
PACKAGES = {"ffwd_ort": "ffwd_ort", "ffwd_ort_models": "models", "ffwd_ort_exporters": "exporters"}
PACKAGES["ffwd_ort_conformance"] = "conformance"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from the repository, with nothing of this process's Python in its environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FFWD_"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build folder left in the repository would find its way in."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in filter(lambda name: (ROOT / name).is_dir(), (*PACKAGES.values(), "tests", "benchmarks")):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place)]
    with contextlib.suppress(PackageNotFoundError):
        if int(version("setuptools").partition(".")[0]) >= 77:
            command.append("--no-build-isolation")
    run(*command, str(source), cwd=place)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of an empty environment with the wheel in it; dependencies are borrowed from this one."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=home)
    # After its own packages; a .pth file found there is not read, so the editable installation stays out.
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_the_wheel_is_named_after_the_version(wheel: Path) -> None:
    assert wheel.name == f"ffwd_ort-{VERSION}-py3-none-any.whl"


def test_the_wheel_has_these_packages_and_no_others_at_its_top(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*PACKAGES, f"ffwd_ort-{VERSION}.dist-info"}


def test_every_source_file_is_in_the_wheel_under_its_import_name(names: set[str]) -> None:
    sources = {
        f"{package}/{path.relative_to(ROOT / folder)}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources
    assert "ffwd_ort/py.typed" in names


def test_the_wheel_announces_commands_plugins_extras_and_licence(wheel: Path) -> None:
    info = f"ffwd_ort-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read(f"{info}/entry_points.txt").decode()
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    for line in (
        "ffwd-server = ffwd_ort.cli.server:main",
        "ffwd-ort = ffwd_ort.cli.main:main",
        "bert = ffwd_ort_models.bert:FAMILY",
        "bert = ffwd_ort_exporters.bert:EXPORTER",
    ):
        assert line in points
    assert {"cpu", "cuda", "coreml", "test", "conformance"} <= set(metadata.get_all("Provides-Extra", []))
    needed = [n for n in metadata.get_all("Requires-Dist", []) if "extra ==" not in n]
    assert "numpy" in {re.split(r"[^\w-]", name)[0] for name in needed}
    # ONNX Runtime's builds share one module: which one is an extra's choice. torch is only ever for conformance.
    assert not [name for name in needed if name.startswith(("onnxruntime", "torch", "transformers"))]


def test_the_commands_run_from_the_wheel_away_from_the_repository(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "ffwd-server", "--version", cwd=tmp_path) == f"ffwd_ort {VERSION}\n"
    assert run(installed / "ffwd-ort", "--version", cwd=tmp_path) == f"ffwd_ort {VERSION}\n"


def test_the_servers_assets_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = (
        "from importlib.resources import files\n"
        "from ffwd_ort.server.documents import Docs, OpenApi\n"
        "dashboard = files('ffwd_ort.server').joinpath('assets/grafana-dashboard.json').read_bytes()\n"
        "print(len(Docs().data) > 1000, len(OpenApi().data) > 1000, len(dashboard) > 1000)\n"
    )
    assert run(installed / "python", "-c", script, cwd=tmp_path) == "True True True\n"


def test_what_is_imported_is_the_wheel_and_not_the_repository(installed: Path, tmp_path: Path) -> None:
    script = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)}, sep='\\n')"
    for file in run(installed / "python", "-c", script, cwd=tmp_path).splitlines():
        assert Path(file).is_relative_to(installed.parent)
        assert not Path(file).is_relative_to(ROOT)


def test_a_checkpoint_is_exported_and_encoded_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(layers=1))
    run(installed / "ffwd-ort", "export", folder, "-o", "bundle", "--cache-dir", "cache", cwd=tmp_path)
    assert (tmp_path / "bundle" / "manifest.json").is_file()
    script = (
        "from ffwd_ort import SentenceEncoder\n"
        "with SentenceEncoder('bundle', threads=1) as model:\n"
        "    print(model.encode(['The tide falls.', 'kelp']).shape)\n"
    )
    assert run(installed / "python", "-c", script, cwd=tmp_path) == "(2, 48)\n"
