"""The cache of bundles: keyed by content, quick when warm, safe between processes, plain about damage."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ffwd_ort.bundle import open_bundle, verify_hashes
from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.cli.main import main
from ffwd_ort.errors import BundleError, CheckpointError, SourceError
from ffwd_ort.export import plan_export
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

SMALL = TinyBert(layers=1, hidden=12, heads=3, intermediate=16, positions=32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose files have been at rest for a minute, so that their hashes are remembered."""
    folder = write_bert(tmp_path / "tiny", SMALL)
    age(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> BundleCache:
    return BundleCache(tmp_path / "cache")


def age(folder: Path) -> None:
    """Date every file back by a minute."""
    for path in folder.rglob("*"):
        past = path.stat().st_mtime - 60
        os.utime(path, (past, past))


def overwrite(path: Path, *, keep_time: bool) -> None:
    """Flip the last byte of a file in place."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def written(bundle: Path) -> dict[str, tuple[int, int]]:
    """When and as which inode each file was written, but for the manifest's time, which says when it was last used."""
    states = {path.name: path.stat() for path in bundle.iterdir()}
    return {name: (s.st_ino, 0 if name == "manifest.json" else s.st_mtime_ns) for name, s in states.items()}


# --- warm ------------------------------------------------------------------------------------------


def test_a_second_open_exports_nothing_again(folder: Path, cache: BundleCache) -> None:
    steps: list[str] = []
    first = cache.open(str(folder), lambda what, done, total: steps.append(what))
    assert steps
    before, exported = written(first.path), len(steps)
    second = cache.open(str(folder), lambda what, done, total: steps.append(what))
    assert second.path == first.path
    assert written(second.path) == before
    assert len(steps) == exported


def test_a_second_open_does_not_read_the_weights_again(folder: Path, cache: BundleCache) -> None:
    first = cache.open(str(folder))
    # Other bytes of the same size, time and inode: only reading them would show.
    overwrite(folder / "model.safetensors", keep_time=True)
    assert BundleCache(cache.root).open(str(folder)).path == first.path


def test_weights_that_may_still_be_being_written_are_hashed_again(folder: Path, cache: BundleCache) -> None:
    os.utime(folder / "model.safetensors")
    first = cache.open(str(folder))
    overwrite(folder / "model.safetensors", keep_time=True)
    assert cache.open(str(folder)).path != first.path


def test_find_exports_nothing_and_finds_what_was_exported(folder: Path, cache: BundleCache) -> None:
    assert cache.find(str(folder)) is None
    assert cache.list() == []
    opened = cache.open(str(folder))
    assert cache.find(str(folder)) == opened


def test_a_bundle_is_its_own_bundle(folder: Path, cache: BundleCache, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    cache.export_to(str(folder), target, lambda what, done, total: None)
    assert cache.open(str(target)).path == target.resolve()
    assert cache.find(str(target)) == open_bundle(target)
    assert cache.list() == []
    with pytest.raises(BundleError, match=r"is a bundle already"):
        cache.export_to(str(target), tmp_path / "again", lambda what, done, total: None)


def test_opening_says_when_a_bundle_was_last_used_and_lists_that_first(
    folder: Path, cache: BundleCache, tmp_path: Path
) -> None:
    other = write_bert(tmp_path / "other", TinyBert(layers=1, hidden=12, heads=2, intermediate=16, positions=32))
    paths = [cache.open(str(source)).path for source in (folder, other)]
    for path in paths:
        os.utime(path / "manifest.json", (1, 1))
    cache.open(str(other))
    assert [bundle.name for bundle in cache.list()] == ["other", "tiny"]
    cache.open(str(folder))
    assert [bundle.name for bundle in cache.list()] == ["tiny", "other"]


# --- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: overwrite(folder / "model.safetensors", keep_time=False),
        lambda folder: write_json(folder / "tokenizer_config.json", {"model_max_length": 20}),
        lambda folder: write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls"}),
        lambda folder: write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}}),
        lambda folder: write_json(
            folder / "config.json", {**json.loads((folder / "config.json").read_text()), "hidden_act": "gelu_new"}
        ),
        lambda folder: (folder / "tokenizer.json").write_text(
            (folder / "tokenizer.json").read_text().replace('"lowercase": true', '"lowercase": false')
        ),
    ],
    ids=["weights", "tokenizer_config", "pooling", "prompts", "config", "tokenizer"],
)
def test_a_changed_file_gives_another_key_and_the_old_one_comes_back_with_the_old_file(
    folder: Path, cache: BundleCache, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    shutil.copytree(folder, tmp_path / "kept")
    first = cache.open(str(folder)).path
    change(folder)
    assert cache.open(str(folder)).path != first
    assert cache.open(str(tmp_path / "kept")).path == first
    assert len(cache.list()) == 2


def test_the_same_content_elsewhere_has_the_same_bundle(folder: Path, cache: BundleCache, tmp_path: Path) -> None:
    first = cache.open(str(folder))
    copied = shutil.copytree(folder, tmp_path / "another name")
    assert cache.open(str(copied)).path == first.path


def test_a_file_that_no_part_of_the_bundle_comes_from_changes_no_key(folder: Path, cache: BundleCache) -> None:
    first = cache.open(str(folder))
    (folder / "README.md").write_text("new")
    (folder / "vocab.txt").write_text("new")
    assert cache.open(str(folder)).path == first.path


# --- several processes -----------------------------------------------------------------------------


def export(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_exporting_at_once_both_succeed_with_one_sound_bundle(folder: Path, cache: BundleCache) -> None:
    running = [export(str(folder), "--cache-dir", str(cache.root)) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in running]
    assert [(process.returncode, errors) for process, (_, errors) in zip(running, said, strict=True)] == [(0, "")] * 2
    assert len({output.partition(":")[0] for output, _ in said}) == 1
    assert len(cache.list()) == 1
    left = [path for path in (cache.root / "bundles").iterdir() if path.suffix != ".lock"]
    assert left == [cache.root / "bundles" / cache.list()[0].key]
    verify_hashes(open_bundle(left[0]))


def test_two_processes_exporting_to_one_place_leave_one_sound_bundle_and_one_refusal(
    folder: Path, cache: BundleCache, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "bundle"
    running = [export(str(folder), "-o", str(target), "--cache-dir", str(cache.root)) for _ in range(2)]
    said = {process.wait(60): process.communicate()[1] for process in running}
    assert sorted(said) == [0, 3]
    assert said[3].startswith(f"ffwd-ort: {target} ")
    assert said[3].count("\n") == 1
    assert list(target.parent.iterdir()) == [target]
    verify_hashes(open_bundle(target))


# --- ls and rm -------------------------------------------------------------------------------------


def test_cache_ls_lists_keys_sizes_and_names_and_rm_removes_by_key(
    folder: Path, cache: BundleCache, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "ls", "--cache-dir", str(cache.root)]) == 0
    assert capsys.readouterr().out == f"0 kept, 0.0 MB in {cache.root}\n"
    key = cache.open(str(folder)).path.name
    assert main(["cache", "ls", "--cache-dir", str(cache.root)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.split()[0] == key
    assert first.split()[-2:] == ["bert", "tiny"]
    assert last.startswith("1 kept, ")
    assert main(["cache", "rm", key, "--cache-dir", str(cache.root)]) == 0
    assert capsys.readouterr().out == f"removed {key}\n"
    assert cache.list() == []
    assert not [path for path in (cache.root / "bundles").iterdir() if path.is_dir()]
    assert cache.open(str(folder)).path.name == key


def test_cache_rm_all_removes_every_bundle_damaged_ones_too(
    folder: Path, cache: BundleCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_bert(tmp_path / "other", TinyBert(layers=1, hidden=12, heads=2, intermediate=16, positions=32))
    paths = [cache.open(str(source)).path for source in (folder, other)]
    (paths[0] / "manifest.json").unlink()
    assert main(["cache", "rm", "--all", "--cache-dir", str(cache.root)]) == 0
    assert sorted(capsys.readouterr().out.split()[1::2]) == sorted(path.name for path in paths)
    assert cache.list() == []


@pytest.mark.parametrize("key", ["0123456789abcdef", "", ".", "..", "../bundles", "/", "hashes.json"])
def test_cache_rm_of_what_is_no_key_is_refused_and_removes_nothing(
    folder: Path, cache: BundleCache, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    present = cache.open(str(folder)).path.name
    before = sorted(cache.root.rglob("*"))
    assert main(["cache", "rm", key, "--cache-dir", str(cache.root)]) == 3
    assert capsys.readouterr().err == f"ffwd-ort: nothing is cached as {key!r}; cached: {present}\n"
    assert sorted(cache.root.rglob("*")) == before


def test_cache_rm_without_keys_is_a_usage_error(cache: BundleCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "rm", "--cache-dir", str(cache.root)]) == 2
    assert "name the keys to remove" in capsys.readouterr().err


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path / "model.onnx.data", 7),
        lambda path: (path / "tokenizer.json").unlink(),
        lambda path: (path / "manifest.json").write_text("{"),
        lambda path: (path / "manifest.json").unlink(),
    ],
    ids=["weights cut off", "tokenizer gone", "manifest damaged", "manifest gone"],
)
def test_a_damaged_bundle_names_the_command_that_removes_it_and_that_command_mends_it(
    folder: Path, cache: BundleCache, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    path = cache.open(str(folder)).path
    damage(path)
    for attempt in (cache.open, cache.find):
        with pytest.raises(BundleError, match=rf"{path.name}/.*ffwd-ort cache rm {path.name}$"):
            attempt(str(folder))
    assert cache.list()[0].problem
    assert main(["cache", "rm", path.name, "--cache-dir", str(cache.root)]) == 0
    verify_hashes(cache.open(str(folder)))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"5", b"\xff", "entry 5", "entry []", "entry {}", "entry [1]", "entry null", 'entry ["a","b"]'],
)
def test_a_damaged_memory_of_hashes_is_survived(folder: Path, cache: BundleCache, content: bytes | str) -> None:
    first = cache.open(str(folder)).path
    if isinstance(content, str):
        entry = json.loads(content.removeprefix("entry "))
        content = json.dumps({str((folder / "model.safetensors").resolve()): entry}).encode()
    (cache.root / "hashes.json").write_bytes(content)
    assert cache.open(str(folder)).path == first
    assert str((folder / "model.safetensors").resolve()) in json.loads((cache.root / "hashes.json").read_bytes())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_weights_that_may_not_be_read_are_named(folder: Path, cache: BundleCache) -> None:
    (folder / "model.safetensors").chmod(0)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: Permission denied"):
        cache.open(str(folder))


def test_an_export_that_fails_leaves_nothing_in_the_cache_but_its_lock(folder: Path, cache: BundleCache) -> None:
    size = (folder / "model.safetensors").stat().st_size
    os.truncate(folder / "model.safetensors", size - 8)
    with pytest.raises(CheckpointError):
        cache.open(str(folder))
    assert cache.list() == []
    assert {path.suffix for path in (cache.root / "bundles").iterdir()} == {".lock"}


def test_a_cache_folder_that_cannot_be_made_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"the cache folder .*file.* cannot be written"):
        BundleCache(tmp_path / "file").open(str(folder))


def test_fetched_checkpoints_are_listed_and_removed_too(cache: BundleCache, capsys: pytest.CaptureFixture[str]) -> None:
    fetched = cache.root / "sources" / "some-package-1.0-abcd"
    fetched.mkdir(parents=True)
    (fetched / "model.safetensors").write_bytes(b"x" * 2_000_000)
    assert main(["cache", "ls", "--cache-dir", str(cache.root)]) == 0
    assert capsys.readouterr().out.split()[:3] == [fetched.name, "2.0", "MB"]
    assert main(["cache", "rm", fetched.name, "--cache-dir", str(cache.root)]) == 0
    assert not fetched.exists()


def test_the_key_depends_on_the_familys_recipe(folder: Path, cache: BundleCache) -> None:
    export = plan_export(read_checkpoint(folder))
    family = dataclasses.replace(export.admission.family, prompts={"query": "q: "})
    changed = dataclasses.replace(export, admission=dataclasses.replace(export.admission, family=family))
    keys = {export.key({}), changed.key({}), dataclasses.replace(export, normalize=not export.normalize).key({})}
    assert len(keys) == 3
