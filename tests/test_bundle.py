"""Bundles: written whole or not at all, and every way of being damaged found and named."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ffwd_ort.bundle import FORMAT, Bundle, Manifest, is_bundle, open_bundle, sha256, verify_hashes, write_bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.engine.sessions import SessionSettings, open_runner
from ffwd_ort.errors import BundleError
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

FILES = ("model.onnx", "model.onnx.data", "tokenizer.json")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bundle") / "tiny-bert", TinyBert(layers=1))


@pytest.fixture(scope="module")
def original(checkpoint: Path) -> Bundle:
    return BundleCache(checkpoint.parent / "cache").open(str(checkpoint))


@pytest.fixture
def bundle(original: Bundle, tmp_path: Path) -> Path:
    """A sound bundle of the test's own to damage."""
    return Path(shutil.copytree(original.path, tmp_path / "bundle"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a bundle."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    write_json(folder / "manifest.json", manifest)


# --- writing ---------------------------------------------------------------------------------------


def filler(original: Bundle) -> Callable[[Path], Manifest]:
    """Fill a folder as an exporter does."""

    def fill(folder: Path) -> Manifest:
        for name in FILES:
            shutil.copy(original.path / name, folder / name)
        return msgspec.structs.replace(original.manifest, files={})

    return fill


def test_a_bundle_is_written_with_sizes_and_hashes_of_its_files_and_opens(original: Bundle, tmp_path: Path) -> None:
    written = write_bundle(tmp_path / "new" / "bundle", filler(original))
    assert written.path == (tmp_path / "new" / "bundle").resolve()
    assert written.manifest == original.manifest
    assert {name: (entry.size, entry.sha256) for name, entry in written.manifest.files.items()} == {
        name: ((written.path / name).stat().st_size, sha256(written.path / name)) for name in FILES
    }
    assert sorted(path.name for path in written.path.iterdir()) == ["manifest.json", *FILES]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bundle"]
    verify_hashes(written)


def test_a_written_bundle_is_readable_by_others_and_holds_plain_files_only(original: Bundle, tmp_path: Path) -> None:
    written = write_bundle(tmp_path / "bundle", filler(original))
    assert written.path.stat().st_mode & 0o777 == 0o755
    assert {path.stat(follow_symlinks=False).st_mode for path in written.path.iterdir()} == {0o100644}


@pytest.mark.parametrize(
    "error",
    [ValueError("a defect"), KeyboardInterrupt(), SystemExit(1), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_while_filling_is_passed_on_and_leaves_nothing(
    original: Bundle, tmp_path: Path, error: BaseException
) -> None:
    def fill(folder: Path) -> Manifest:
        filler(original)(folder)
        raise error

    with pytest.raises(type(error)):
        write_bundle(tmp_path / "bundle", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_bundle_error_that_says_so_and_leaves_nothing(original: Bundle, tmp_path: Path) -> None:
    def fill(folder: Path) -> Manifest:
        filler(original)(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BundleError, match=r"cannot write the bundle .*bundle: No space left on device"):
        write_bundle(tmp_path / "bundle", fill)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_the_system_cuts_off_exits_3_with_one_line_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    def allow_small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    target = tmp_path / "out" / "bundle"
    target.parent.mkdir()
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", str(checkpoint), "-o", str(target)]
    command += ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=allow_small_files_only)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"ffwd-ort: cannot write the bundle {target}: ")
    assert done.stderr.endswith("; is the disk full?\n")
    assert done.stderr.count("\n") == 1
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "file", "bundle"])
def test_an_existing_target_is_refused_and_left_as_it_was(original: Bundle, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "bundle"
    match kind:
        case "folder":
            target.mkdir()
        case "file":
            target.write_text("mine")
        case "bundle":
            write_bundle(target, filler(original))
    before = sorted(tmp_path.rglob("*"))

    def never(folder: Path) -> Manifest:
        raise AssertionError("nothing should be written")

    with pytest.raises(BundleError, match=r"bundle exists already; remove it or choose another place"):
        write_bundle(target, never)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_target_that_another_process_makes_meanwhile_is_left_to_it(original: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def fill(folder: Path) -> Manifest:
        target.mkdir()
        (target / "theirs").write_text("theirs")
        return filler(original)(folder)

    with pytest.raises(BundleError, match=r"bundle was made by another process meanwhile"):
        write_bundle(target, fill)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["bundle", "bundle/theirs"]


def test_a_target_under_a_file_is_a_bundle_error(original: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match=r"cannot write in .*file"):
        write_bundle(tmp_path / "file" / "bundle", filler(original))


def test_two_exports_give_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    written = []
    for number in range(2):
        target = tmp_path / str(number)
        command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", str(checkpoint), "-o", str(target)]
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run([*command, "--cache-dir", str(tmp_path / "cache")], check=True, env=environment)
        written.append({path.name: path.read_bytes() for path in target.iterdir()})
    assert set(written[0]) == {"manifest.json", *FILES}
    assert written[0] == written[1]


def test_nothing_in_a_bundle_tells_where_it_was_made(original: Bundle, checkpoint: Path) -> None:
    for path in original.path.iterdir():
        content = path.read_bytes()
        assert str(checkpoint.parent).encode() not in content
        assert str(Path.cwd()).encode() not in content


# --- opening ---------------------------------------------------------------------------------------


def test_a_bundle_reached_through_a_linked_folder_opens_and_runs(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle, target_is_directory=True)
    opened = open_bundle(tmp_path / "link")
    assert opened.path == bundle.resolve()
    assert open_runner(opened, SessionSettings("cpu")).provider == "cpu"


def test_a_folder_is_a_bundle_by_its_manifest(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert is_bundle(bundle)
    assert not is_bundle(checkpoint)
    assert not is_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=rf"bundle/{name} cannot be read \(No such file.*export the bundle again"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_off_is_named_with_both_sizes(bundle: Path, name: str) -> None:
    size = (bundle / name).stat().st_size
    os.truncate(bundle / name, size - 1)
    with pytest.raises(BundleError, match=rf"bundle/{name} has {size - 1} bytes, its manifest says {size}; export"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_a_files_place_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    (bundle / name).mkdir()
    size = (bundle / name).stat().st_size
    edit(bundle, lambda manifest: manifest["files"][name].update(size=size))
    with pytest.raises(BundleError, match=rf"bundle/{name} is not a file"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_manifest_does_not_list_is_named(bundle: Path, name: str) -> None:
    edit(bundle, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(BundleError, match=rf"manifest\.json does not list {name}"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"null", b"\xff\x00", b"[" * 100_000, b'{"format": NaN}', b'\xef\xbb\xbf{"format": 1}'],
    ids=["empty", "cut off", "list", "number", "null", "binary", "nested too deep", "NaN", "byte order mark"],
)
def test_a_manifest_that_is_no_json_object_is_named(bundle: Path, content: bytes) -> None:
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"bundle/manifest\.json"):
        open_bundle(bundle)


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nothing/manifest\.json cannot be read"):
        open_bundle(tmp_path / "nothing")


def test_every_key_of_the_manifest_is_needed(bundle: Path) -> None:
    keys = list(json.loads((bundle / "manifest.json").read_text()))
    assert set(keys) == set(Manifest.__struct_fields__)
    for key in keys:
        kept = (bundle / "manifest.json").read_text()
        edit(bundle, lambda manifest, key=key: manifest.pop(key))
        with pytest.raises(BundleError, match=rf"manifest\.json: .*missing required field `{key}`"):
            open_bundle(bundle)
        (bundle / "manifest.json").write_text(kept)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda manifest: manifest.update(pooling_mode="mean"), "pooling_mode"),
        (lambda manifest: manifest["source"].update(path="/home"), "path"),
        (lambda manifest: manifest["sizes"].update(depth=3), "depth"),
        (lambda manifest: manifest["files"]["model.onnx"].update(md5=""), "md5"),
    ],
    ids=["manifest", "source", "sizes", "files"],
)
def test_an_unknown_key_anywhere_is_named(bundle: Path, change: Callable[[dict[str, Any]], object], key: str) -> None:
    edit(bundle, change)
    with pytest.raises(BundleError, match=rf"manifest\.json: .*unknown field `{key}`"):
        open_bundle(bundle)


WRONG_TYPES: dict[str, Any] = {
    "format": "1",
    "family": 5,
    "kind": None,
    "head": ["pooled"],
    "source": "tiny",
    "dim": "384",
    "dense": None,
    "pooling": "mean",
    "include_prompt": 1,
    "normalize": "yes",
    "api_modes": "openai",
    "prompts": [],
    "default_prompt_name": 0,
    "trained_length": 1.5,
    "lowercase": "no",
    "matryoshka_dims": ["4"],
    "separator": "<|endoftext|>",
    "late": {"query_marker": "[Q] "},
    "pad_id": None,
    "special_tokens": {"[CLS]": "2"},
    "positions": True,
    "position_offset": [],
    "pad_positions": 1,
    "dtype": None,
    "target": 1,
    "inputs": [1],
    "span": "0",
    "packs": "yes",
    "seqs": ["16"],
    "sizes": {"layers": "1"},
    "exporter": None,
    "exporter_version": 2,
    "files": {"model.onnx": 5},
}


def test_every_key_of_the_wrong_type_is_named(bundle: Path) -> None:
    assert set(WRONG_TYPES) == set(Manifest.__struct_fields__)
    for key, value in WRONG_TYPES.items():
        kept = (bundle / "manifest.json").read_text()
        edit(bundle, lambda manifest, key=key, value=value: manifest.update({key: value}))
        with pytest.raises(BundleError, match=rf"manifest\.json: .*`\$\.{key}"):
            open_bundle(bundle)
        (bundle / "manifest.json").write_text(kept)


def test_a_newer_format_is_refused_as_newer_even_with_keys_nobody_knows(bundle: Path) -> None:
    edit(bundle, lambda manifest: manifest.update(format=FORMAT + 1, shards=["x"]))
    expected = f"has format {FORMAT + 1}, written by a newer ffwd_ort; this version reads up to {FORMAT}"
    with pytest.raises(BundleError, match=rf"manifest\.json {expected}"):
        open_bundle(bundle)


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_never_was_is_refused(bundle: Path, number: int) -> None:
    edit(bundle, lambda manifest: manifest.update(format=number))
    with pytest.raises(BundleError, match=rf"manifest\.json has format {number}"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "sub/model.onnx", "..", ".", "", "nul\0byte"])
def test_a_file_name_that_leaves_the_folder_or_is_none_is_refused(bundle: Path, name: str) -> None:
    (bundle.parent / "outside").write_text("x")
    (bundle / "sub").mkdir()
    (bundle / "sub" / "model.onnx").write_text("x")
    size = Path(bundle, name).stat().st_size if "\0" not in name else 1
    edit(bundle, lambda manifest: manifest["files"].update({name: {"size": size, "sha256": "0"}}))
    with pytest.raises(BundleError, match=r"manifest\.json: the file name .* leaves the bundle's folder"):
        open_bundle(bundle)


# --- hashes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_byte_is_found_by_its_hash_and_only_then(bundle: Path, name: str, place: int) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[place] ^= 1
    (bundle / name).write_bytes(content)
    opened = open_bundle(bundle)
    with pytest.raises(BundleError, match=rf"bundle/{name} has sha256 [0-9a-f]{{64}}, its manifest says"):
        verify_hashes(opened)


def test_a_file_that_goes_away_before_its_hash_is_read_is_named(bundle: Path) -> None:
    opened = open_bundle(bundle)
    (bundle / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read"):
        verify_hashes(opened)
