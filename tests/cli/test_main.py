"""ffwd-ort: its subcommands, their exit codes, and errors of one line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffwd_ort.bundle import open_bundle, verify_hashes
from ffwd_ort.cli.main import main, make_parser
from ffwd_ort.version import VERSION
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from ffwd_ort_conformance.tiny_late import write_colbert

SUBCOMMANDS = (
    ["export"],
    ["inspect"],
    ["models"],
    ["doctor"],
    ["cache"],
    ["cache", "ls"],
    ["cache", "rm"],
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = (("query", "the tide:\n"), ("document", ""))
    tiny = TinyBert(layers=1, prompts=prompts, default_prompt="query", pooling=("cls_token", "mean_tokens"))
    return write_bert(tmp_path_factory.mktemp("cli") / "tiny", tiny)


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    target = checkpoint.parent / "exported"
    assert main(["export", str(checkpoint), "-o", str(target), "--cache-dir", str(checkpoint.parent / "hashes")]) == 0
    return target


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Read `inspect`'s lines."""
    lines = [re.split(r"  +", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return dict(lines)


def fail(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its one line."""
    try:
        code = main([*argv])
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    assert captured.err.startswith("ffwd-ort")
    assert captured.err.count("\n") == 1
    return code, captured.err


# --- export ----------------------------------------------------------------------------------------


def test_export_writes_a_sound_bundle_where_it_is_told_and_says_its_size(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "deep" / "bundle"
    assert main(["export", str(checkpoint), "--output", str(target), "--cache-dir", str(tmp_path / "cache")]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(rf"{target}: \d+\.\d MB in \d+\.\d s\n", captured.out)
    assert captured.err == ""
    bundle = open_bundle(target)
    verify_hashes(bundle)
    manifest = bundle.manifest
    assert (manifest.source.name, manifest.source.revision) == ("tiny", None)
    assert (manifest.family, manifest.kind, manifest.head) == ("bert", "embedding", "pooled")
    assert (manifest.dim, manifest.pooling, manifest.normalize) == (96, ("cls", "mean"), True)
    assert manifest.prompts == {"query": "the tide:\n", "document": ""}
    assert (manifest.default_prompt_name, manifest.trained_length) == ("query", 64)
    assert (manifest.dtype, manifest.target, manifest.positions) == ("f32", "cpu", 128)


def test_export_without_a_place_writes_into_the_cache_once(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(checkpoint), "--cache-dir", str(tmp_path / "cache")]
    places = []
    for _ in range(2):
        assert main(arguments) == 0
        places.append(Path(capsys.readouterr().out.partition(": ")[0]))
    assert places[0] == places[1]
    assert places[0].parent == tmp_path / "cache" / "bundles"
    verify_hashes(open_bundle(places[0]))


def test_the_default_cache_is_the_platforms_user_cache(checkpoint: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", str(checkpoint), "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.partition(": ")[0]).is_relative_to(tmp_path)


def test_export_refuses_a_place_that_is_taken_and_a_bundle(
    checkpoint: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    code, line = fail(capsys, "export", str(checkpoint), "-o", str(bundle), *cache)
    assert (code, line) == (3, f"ffwd-ort: {bundle} exists already; remove it or choose another place\n")
    code, line = fail(capsys, "export", str(bundle), "-o", str(tmp_path / "again"), *cache)
    assert (code, line) == (3, f"ffwd-ort: {bundle} is a bundle already\n")


# --- inspect ---------------------------------------------------------------------------------------


def test_inspect_says_what_a_checkpoint_is_and_how_it_would_be_served(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(checkpoint), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert said(capsys) == {
        "checkpoint": str(checkpoint.resolve()),
        "family": "bert (model_type bert, BertModel)",
        "kind": "embedding, by its pooling module",
        "pooling": "cls + mean",
        "normalised": "yes",
        "prompts": r"query='the tide:\n', document=''",
        "default prompt": "query",
        "tokens a text": "128 (model positions)",
        "trained length": "64; shorter than its positions: :max_seq=64 keeps to it",
        "Matryoshka": "not declared",
        "weights": "model.safetensors",
        "tokenizer": "tokenizer.json",
        "exported bundle": "not yet",
    }


def test_inspect_says_how_late_texts_are_laid_out_and_which_activation_is_not_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    late = write_colbert(tmp_path / "late")
    assert main(["inspect", str(late), *cache]) == 0
    lines = said(capsys)
    assert lines["kind"] == "late, by its late-interaction files" and "pooling" not in lines
    assert lines["layout"] == (
        "queries padded to 16 tokens, which score but are not seen; markers '[Q] ' and '[D] '; "
        "31 words of documents do not score"
    )
    ce = write_cross_encoder(tmp_path / "ce", "bert")
    config = json.loads((ce / "config.json").read_text())
    write_json(ce / "config.json", config | {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}})
    assert main(["inspect", str(ce), *cache]) == 0
    assert said(capsys)["activation"].startswith("torch.nn.Sigmoid in its files: never applied")


def test_inspect_of_a_bare_checkpoint_says_that_the_family_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(layers=1, include_prompt=False, shards=2))
    cache = ["--cache-dir", str(tmp_path / "cache")]
    assert main(["inspect", str(folder), *cache]) == 0
    lines = said(capsys)
    assert lines["pooling"] == "mean, without the prompt"
    assert lines["weights"] == "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors"
    assert lines["prompts"].startswith("none in its files; :query= or :prompts=") and lines["default prompt"] == "none"
    (folder / "modules.json").unlink()
    shutil.rmtree(folder / "1_Pooling")
    write_json(
        folder / "config.json",
        {**json.loads((folder / "config.json").read_text()), "matryoshka_dimensions": [16, 32]},
    )
    assert main(["inspect", str(folder), *cache]) == 0
    lines = said(capsys)
    assert lines["kind"] == "embedding, by the family's default recipe (mean pooling)"
    assert (lines["pooling"], lines["normalised"], lines["Matryoshka"]) == ("mean", "no", "16, 32")


def test_inspect_names_the_exported_bundle_and_verifies_its_hashes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    code, line = fail(capsys, "inspect", str(checkpoint), "--verify", *cache)
    assert (code, line) == (
        2,
        f"ffwd-ort: --verify checks a bundle's hashes; {checkpoint} has not been exported yet\n",
    )
    assert main(["export", str(checkpoint), *cache]) == 0
    place = capsys.readouterr().out.partition(": ")[0]
    assert main(["inspect", str(checkpoint), "--verify", *cache]) == 0
    lines = said(capsys)
    assert lines["exported bundle"] == place
    assert lines["verified"] == "every hash of the exported bundle is right"


def test_inspect_of_a_bundle_lists_recipe_files_and_hashes(
    bundle: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bundle)]) == 0
    lines = said(capsys)
    manifest = open_bundle(bundle).manifest
    assert lines["bundle"] == str(bundle.resolve())
    assert (lines["source"], lines["dimensions"], lines["pooling"]) == ("tiny", "96", "cls + mean")
    assert lines["weights sha256"] == manifest.source.weights_sha256
    assert lines["precision"] == "f32 for cpu"
    assert lines["prompts"] == r"query='the tide:\n', document=''"
    assert "verified" not in lines
    assert main(["inspect", str(bundle)]) == 0
    text = capsys.readouterr().out
    for name, entry in manifest.files.items():
        assert f"{name}  {entry.size} bytes  sha256 {entry.sha256}\n" in text


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_inspect_verify_finds_a_flipped_byte_and_plain_inspect_does_not_look(
    bundle: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bundle), "--verify"]) == 0
    assert said(capsys)["verified"] == "every hash is right"
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(content)
    assert main(["inspect", str(bundle)]) == 0
    capsys.readouterr()
    code, line = fail(capsys, "inspect", str(bundle), "--verify")
    assert code == 3
    assert line.startswith(f"ffwd-ort: {bundle.resolve() / name} has sha256 ")


# --- the rest --------------------------------------------------------------------------------------


def test_models_lists_families_and_exporters_with_where_they_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["families"] in lines
    assert ["exporters"] in lines
    source = f"ffwd_ort {VERSION}"
    assert ["bert", source, "model_type bert; mean pooling unless its files say otherwise; api openai"] in lines
    assert ["bert", source, "ONNX, opset 23"] in lines


def test_doctor_says_what_this_machine_offers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = said(capsys)
    assert lines["ffwd_ort"] == VERSION
    assert re.fullmatch(r"[1-9]\d* \(by affinity and cgroup\)", lines["cores"])
    assert re.fullmatch(r"\d+\.\d GiB \(.*\)", lines["memory"])
    assert "CPUExecutionProvider is in this build" in lines["provider cpu"]
    assert {"onnxruntime", "tokenizers", "machine", "cache", "provider cuda", "provider coreml"} <= set(lines)


def test_without_onnx_runtime_doctor_and_export_name_the_extras(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no such library here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    wanted = "ONNX Runtime is not installed (no such library here); install one of: pip install 'ffwd_ort[cpu]', "

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ffwd_ort.cli.main", *argv]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    doctor = run("doctor")
    assert (doctor.returncode, doctor.stderr) == (0, "")
    assert wanted in doctor.stdout
    export = run(
        "export", str(checkpoint), "-o", str(tmp_path / "out" / "bundle"), "--cache-dir", str(tmp_path / "cache")
    )
    assert export.returncode == 3
    assert export.stderr.startswith(f"ffwd-ort: {wanted}")
    assert export.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"ffwd_ort {VERSION}\n"


@pytest.mark.parametrize("command", [[], *SUBCOMMANDS], ids=" ".join)
@pytest.mark.parametrize("columns", ["80", "300"])
def test_help_of_every_subcommand_fits_100_columns(
    command: list[str], columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args([*command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {' '.join(['ffwd-ort', *command])} ")
    assert max(map(len, text.splitlines())) <= 100


# --- exit codes and errors of one line -------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "COMMAND"),
        (["explode"], "explode"),
        (["export"], "SRC"),
        (["export", "x", "-o"], "-o"),
        (["export", "x", "--out", "y"], "--out"),
        (["export", "x", "--dtype", "f64"], "'f64' (choose from"),
        (["export", "x", "--target", "tpu"], "'tpu' (choose from"),
        (["export", "x", "y"], "y"),
        (["inspect"], "SRC|BUNDLE"),
        (["inspect", "x", "--no-such-flag"], "--no-such-flag"),
        (["models", "x"], "x"),
        (["cache"], "ls|rm"),
        (["cache", "rm"], "name the keys"),
        (["cache", "mv"], "mv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_usage_exits_2_with_one_line_that_names_it(
    argv: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = fail(capsys, *argv)
    assert code == 2
    assert names in line


def test_what_is_refused_exits_3_with_one_line_that_names_it(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    foreign = write_bert(tmp_path / "foreign", TinyBert(layers=1))
    write_json(foreign / "config.json", {"model_type": "t5", "architectures": ["T5Model"]})
    damaged = write_bert(tmp_path / "damaged", TinyBert(layers=1))
    (damaged / "config.json").write_text("{")
    (bundle / "model.onnx.data").unlink()
    for source, names in (
        ("no/such/folder", "there is no such folder"),
        (str(tmp_path), "neither a checkpoint"),
        ("ftp://host/x", "there is no scheme 'ftp'"),
        ("hf://name", "write hf://org/name"),
        (str(foreign), "model_type 't5'"),
        (str(damaged), "config.json is not valid JSON"),
        (str(bundle), "bundle"),
    ):
        for command in ("export", "inspect"):
            code, line = fail(capsys, command, source, *cache)
            assert code == 3
            assert names in line
    assert not (tmp_path / "cache" / "bundles").exists()


def test_a_real_process_exits_3_with_one_line_and_no_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"ffwd-ort: {tmp_path / 'nowhere'}: there is no such folder")
    assert done.stderr.count("\n") == 1
