"""The bundle: what exporters write and the engine reads. Knows nothing of either.

A bundle is a directory of plain files: manifest.json, model.onnx (graph only), model.onnx.data (weights)
and tokenizer.json. It is written in a temporary directory beside its place and renamed, so it is there
whole or not at all.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ffwd_ort.errors import BundleError

FORMAT = 1
MANIFEST, GRAPH, WEIGHTS, TOKENIZER = "manifest.json", "model.onnx", "model.onnx.data", "tokenizer.json"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything in manifest.json: closed, so that a misspelt key is an error."""


class FileEntry(_Record, frozen=True):
    """Size in bytes and SHA-256 of one file of the bundle."""

    size: int
    sha256: str


class Source(_Record, frozen=True):
    """Where the checkpoint came from. `name` is the directory's name, never its path."""

    name: str
    revision: str | None
    weights_sha256: str
    tokenizer_sha256: str


class Sizes(_Record, frozen=True):
    """The trunk's measures, from which memory and cost of a shape are reckoned."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int


class Late(_Record, frozen=True):
    """How late-interaction texts are laid out.

    A marker goes after a text's first token; one that is no token is a text before it, and before its prompt.
    Queries shorter than `query_length` (0: never) are padded to it with `expansion_id`, which other tokens see if
    `attend`. Tokens of documents among `skip_ids` do not score.
    """

    query_marker: int | None
    document_marker: int | None
    query_text: str
    document_text: str
    query_length: int
    attend: bool
    expansion_id: int
    skip_ids: tuple[int, ...]


class Manifest(_Record, frozen=True):
    """Pins a bundle: what the engine must know of a model, and nothing it could find out wrongly.

    `dim` is the full width of a vector, after concatenated poolings or `dense` Dense modules. `positions` is
    the most tokens a text may have, `position_offset` the position id of its first; with `pad_positions` a pad
    token that stands in a text has position `pad_id` and is not counted. `seqs` is the ladder of row lengths
    that the graph was exported for. `matryoshka_dims` is None unless the checkpoint declares them. `separator` is
    the token between chunks in context, where the family has that; `late` is there for late interaction. `span` is
    how many scores a token keeps in the long form of attention, in each head; 0 with a flash kernel. `packs`:
    several texts may share a row; False = one text a row, padded on the right.
    """

    format: int
    family: str
    kind: str
    head: str
    source: Source
    dim: int
    dense: int
    pooling: tuple[str, ...]
    include_prompt: bool
    normalize: bool
    api_modes: tuple[str, ...]
    prompts: dict[str, str]
    default_prompt_name: str | None
    trained_length: int | None
    lowercase: bool
    matryoshka_dims: tuple[int, ...] | None
    separator: int | None
    late: Late | None
    pad_id: int
    special_tokens: dict[str, int]
    positions: int
    position_offset: int
    pad_positions: bool
    dtype: str
    target: str
    inputs: tuple[str, ...]
    span: int
    packs: bool
    seqs: tuple[int, ...]
    sizes: Sizes
    exporter: str
    exporter_version: str
    files: dict[str, FileEntry]

    @property
    def fixed_pooling(self) -> bool:
        """Whether another pooling than the checkpoint's own would be meaningless."""
        return self.pooling != () and (len(self.pooling) > 1 or self.dense > 0 or "max" in self.pooling)


@dataclass(frozen=True)
class Bundle:
    """A bundle that was opened: every file is there and has the size its manifest pins."""

    path: Path
    manifest: Manifest = field(compare=False)

    @property
    def graph(self) -> Path:
        """The ONNX file; its weights lie beside it."""
        return self.path / GRAPH

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.path / TOKENIZER


def is_bundle(path: Path) -> bool:
    """Tell a bundle from a checkpoint directory."""
    return (path / MANIFEST).is_file()


def open_bundle(path: Path) -> Bundle:
    """Read the manifest and check that every file is there at its size; raise BundleError otherwise."""
    # ONNX Runtime refuses weights that leave the graph's folder, so links are resolved for the folder as a whole.
    path = path.resolve()
    manifest = _read_manifest(path / MANIFEST)
    for name, entry in manifest.files.items():
        if Path(name).name != name or name in ("", "..") or "\0" in name:
            raise BundleError(f"{path / MANIFEST}: the file name {name!r} leaves the bundle's folder")
        try:
            found = (path / name).stat()
        except OSError as error:
            raise BundleError(f"{path / name} cannot be read ({error.strerror}); export the bundle again") from None
        if not stat.S_ISREG(found.st_mode):
            raise BundleError(f"{path / name} is not a file; export the bundle again")
        if found.st_size != entry.size:
            raise BundleError(
                f"{path / name} has {found.st_size} bytes, its manifest says {entry.size}; export the bundle again"
            )
    missing = {GRAPH, WEIGHTS, TOKENIZER} - set(manifest.files)
    if missing:
        raise BundleError(f"{path / MANIFEST} does not list {', '.join(sorted(missing))}")
    return Bundle(path, manifest)


def _read_manifest(path: Path) -> Manifest:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    try:
        version = json.loads(raw).get("format")
    except (ValueError, AttributeError, RecursionError):
        raise BundleError(f"{path} is not a JSON object") from None
    # Asked first: a newer manifest may have keys that this version cannot know.
    if isinstance(version, int) and version > FORMAT:
        raise BundleError(
            f"{path} has format {version}, written by a newer ffwd_ort; this version reads up to {FORMAT}"
        )
    if isinstance(version, int) and version < FORMAT:
        raise BundleError(f"{path} has format {version}, which no ffwd_ort ever wrote")
    try:
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: {error}") from None


def verify_hashes(bundle: Bundle) -> None:
    """Read every file and compare its SHA-256 with the manifest; raise BundleError naming the first that differs."""
    for name, entry in bundle.manifest.files.items():
        try:
            found = sha256(bundle.path / name)
        except OSError as error:
            raise BundleError(f"{bundle.path / name} cannot be read: {error.strerror}") from None
        if found != entry.sha256:
            raise BundleError(f"{bundle.path / name} has sha256 {found}, its manifest says {entry.sha256}")


def write_bundle(target: Path, fill: Callable[[Path], Manifest]) -> Bundle:
    """Write a bundle at `target`, whole or not at all.

    `fill` writes the files into the folder it is given and returns their manifest, whose `files` are
    filled in here. Raises BundleError if `target` exists or the disk will not take it.
    """
    if target.exists():
        raise BundleError(f"{target} exists already; remove it or choose another place")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise BundleError(f"cannot write in {target.parent}: {error.strerror}") from None
    try:
        manifest = fill(scratch)
        files = {p.name: FileEntry(size=p.stat().st_size, sha256=sha256(p)) for p in sorted(scratch.iterdir())}
        manifest = msgspec.structs.replace(manifest, files=files)
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        (scratch / MANIFEST).write_bytes(encoded + b"\n")
        scratch.chmod(0o755)  # mkdtemp keeps it to its owner
        for path in scratch.iterdir():
            path.chmod(0o644)
            _sync(path)
        scratch.rename(target)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise BundleError(f"{target} was made by another process meanwhile") from None
        # NumPy's writer counts items instead of saying why: "6912 requested and 212 written".
        reason = error.strerror or f"{error}; is the disk full?"
        raise BundleError(f"cannot write the bundle {target}: {reason}") from None
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return open_bundle(target)


def _sync(path: Path) -> None:
    """Have the disk take the file before the rename publishes it."""
    with path.open("rb") as file, contextlib.suppress(OSError):
        os.fsync(file.fileno())


def sha256(path: Path) -> str:
    """Hash one file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
