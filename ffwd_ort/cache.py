"""The cache of exported bundles: keyed by content, safe between processes, quick when warm."""

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from ffwd_ort.bundle import MANIFEST, Bundle, is_bundle, open_bundle, sha256
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.errors import BundleError, CheckpointError, SourceError
from ffwd_ort.export import F32, NATIVE, OPTIMUM, Export, Progress, check_kind, export_bundle, hash_files, plan_export
from ffwd_ort.sources import Resolved, default_cache_dir, locked, remove_tree, resolve

KEY_LENGTH = 16


@dataclass(frozen=True)
class CachedBundle:
    """One entry of the cache, as `cache ls` lists it. `problem` is set if it cannot be opened."""

    key: str
    name: str
    family: str
    size: int
    used: float
    problem: str | None = None


class BundleCache:
    """Bundles under `root`/bundles, each named by a digest of all that its bytes depend on."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(root) if root else default_cache_dir()
        self._bundles = self.root / "bundles"
        self._sources = self.root / "sources"
        self._hashes = self.root / "hashes.json"

    def find(self, source: str, dtype: str = F32) -> Bundle | None:
        """Return the bundle of a source: itself if it is one, else its cached export, None if there is none yet.

        Raises RefusedError in all its kinds: no such source, damaged, not admitted.
        """
        resolved = resolve(source, self.root)
        if is_bundle(resolved.path):
            return _as_asked(open_bundle(resolved.path), NATIVE, None, dtype)
        _, _, target = self._plan(resolved, dtype=dtype)
        return self._cached(target) if target.is_dir() else None

    def open(
        self,
        source: str,
        progress: Progress = lambda what, done, total: None,
        *,
        exporter: str = NATIVE,
        kind: str | None = None,
        dtype: str = F32,
    ) -> Bundle:
        """Return the bundle of a source as `find` does; export it first if need be.

        `exporter`, `kind` and `dtype` are as plan_export takes them. Raises RefusedError in all its kinds: also that
        the bundle cannot be written.
        """
        resolved = resolve(source, self.root)
        if is_bundle(resolved.path):
            return _as_asked(open_bundle(resolved.path), exporter, kind, dtype)
        export, hashes, target = self._plan(resolved, exporter, kind, dtype)
        if target.is_dir():
            return self._cached(target)
        with locked(self._bundles / f"{target.name}.lock"):  # a second process waits, and finds it made
            if not target.is_dir():
                names = {"name": resolved.name, "revision": resolved.revision}
                return export_bundle(export, target, hashes=hashes, progress=progress, **names)
        return self._cached(target)

    def export_to(
        self,
        source: str,
        target: Path,
        progress: Progress,
        *,
        exporter: str = NATIVE,
        kind: str | None = None,
        dtype: str = F32,
    ) -> Bundle:
        """Write a source's bundle at `target`; raise RefusedError if it is one already or cannot be written."""
        resolved = resolve(source, self.root)
        if is_bundle(resolved.path):
            raise BundleError(f"{source} is a bundle already")
        export, hashes, _ = self._plan(resolved, exporter, kind, dtype)
        names = {"name": resolved.name, "revision": resolved.revision}
        return export_bundle(export, target, hashes=hashes, progress=progress, **names)

    def _plan(
        self, resolved: Resolved, exporter: str = NATIVE, kind: str | None = None, dtype: str = F32
    ) -> tuple[Export, dict[str, str], Path]:
        """Admit the checkpoint and find the place of its bundle."""
        checkpoint = read_checkpoint(resolved.path)
        export = plan_export(checkpoint, exporter, kind, dtype)
        hashes = hash_files(checkpoint, self._remembered_hash)
        key = hashlib.sha256(export.key(hashes).encode()).hexdigest()[:KEY_LENGTH]
        return export, hashes, self._bundles / key

    def _cached(self, target: Path) -> Bundle:
        try:
            bundle = open_bundle(target)
        except BundleError as error:
            raise BundleError(f"{error}; or remove it: ffwd-ort cache rm {target.name}") from None
        with contextlib.suppress(OSError):  # a cache that is mounted read-only still serves
            os.utime(target / MANIFEST)  # when it was last used
        return bundle

    def _remembered_hash(self, path: Path) -> str:
        """Return a file's SHA-256, from memory if its size and times are as they were when it was read."""
        real = path.resolve()
        stat = real.stat()
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        known = self._read_hashes()
        entry = known.get(str(real))
        if isinstance(entry, list) and entry[:-1] == state:
            return str(entry[-1])
        try:
            digest = sha256(real)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        # A file that may still be being written is not remembered: its time stamp could stay the same.
        if time.time_ns() - stat.st_mtime_ns > 2_000_000_000:
            with contextlib.suppress(SourceError, OSError):  # a cache that is mounted read-only still serves
                self._remember(str(real), [*state, digest])
        return digest

    def _remember(self, path: str, entry: list[object]) -> None:
        with locked(self.root / "hashes.lock"):
            known = self._read_hashes() | {path: entry}
            scratch = self._hashes.with_suffix(f".{os.getpid()}")
            scratch.write_bytes(orjson.dumps(known))
            scratch.replace(self._hashes)

    def _read_hashes(self) -> dict[str, object]:
        try:
            known = orjson.loads(self._hashes.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def list(self) -> list[CachedBundle]:
        """List what is kept, exported bundles and fetched checkpoints, most recently used first."""
        found = [self._describe(path) for path in _folders(self._bundles)]
        for path in _folders(self._sources):
            found.append(CachedBundle(path.name, "as fetched", "-", _size(path), path.stat().st_mtime))
        return sorted(found, key=lambda entry: -entry.used)

    def _describe(self, path: Path) -> CachedBundle:
        try:
            manifest = open_bundle(path).manifest
        except BundleError as error:
            return CachedBundle(path.name, "?", "?", _size(path), path.stat().st_mtime, str(error))
        used = (path / MANIFEST).stat().st_mtime
        return CachedBundle(path.name, manifest.source.name, manifest.family, _size(path), used)

    def remove(self, key: str) -> None:
        """Remove one bundle or fetched checkpoint; raise BundleError if there is none of this key."""
        known = {path.name: path for root in (self._bundles, self._sources) for path in _folders(root)}
        if key not in known:
            raise BundleError(f"nothing is cached as {key!r}; cached: {', '.join(sorted(known)) or 'nothing'}")
        lock = known[key].with_name(f"{key}.lock")
        with locked(lock):
            if known[key].is_dir():  # another process may have been quicker
                remove_tree(known[key])


def _as_asked(bundle: Bundle, exporter: str, kind: str | None, dtype: str) -> Bundle:
    """Return a bundle that was given as the source; raise RefusedError if it is not what was asked for."""
    manifest = bundle.manifest
    if exporter == OPTIMUM and manifest.exporter != OPTIMUM:
        raise BundleError(f"{bundle.path} is a bundle already, written by the exporter {manifest.exporter}")
    if manifest.dtype != dtype:
        raise BundleError(
            f"{bundle.path} holds {manifest.dtype} and {dtype} is asked for; write one that does: "
            f"ffwd-ort export {manifest.source.name} -o BUNDLE --dtype {dtype}"
        )
    check_kind(kind, manifest.source.name, manifest.kind, manifest.family, in_context=manifest.separator is not None)
    return bundle


def _folders(root: Path) -> list[Path]:
    """Return what a folder of the cache keeps; what begins with a dot is being written or removed."""
    return sorted(path for path in root.glob("*/") if not path.name.startswith(".")) if root.is_dir() else []


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
