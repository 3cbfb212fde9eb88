"""What `export --exporter` and `--kind` admit and refuse, as far as that needs neither torch nor optimum."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.cli.main import main
from ffwd_ort.errors import AdmissionError, BundleError, CheckpointError
from ffwd_ort.export import NATIVE, OPTIMUM, plan_export
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_colbert

PPLX = TinyDecoder(
    model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False, layers=1
)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "embedding": lambda folder: write_bert(folder, TinyBert(layers=1)),
    "contextual": lambda folder: write_decoder(folder, PPLX),
    "late": write_colbert,
    "reranker": lambda folder: write_cross_encoder(folder, "bert"),
}


def write(folder: Path, **changes: Any) -> Path:
    """Write a checkpoint that no family claims; `changes` go into its config.json."""
    write_bert(folder, TinyBert(layers=1))
    config = json.loads((folder / "config.json").read_text())
    made_up = {"model_type": "sprat", "architectures": ["SpratModel"]}
    write_json(folder / "config.json", config | made_up | changes)
    return folder


def refusal(folder: Path, exporter: str = OPTIMUM, wanted: str | None = None) -> str:
    """Return what is said of a checkpoint that must be refused."""
    with pytest.raises(AdmissionError) as caught:
        plan_export(read_checkpoint(folder), exporter, wanted)
    return str(caught.value)


# --- --kind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", WRITERS)
@pytest.mark.parametrize("found", WRITERS)
def test_a_kind_is_admitted_only_where_labels_of_it_can_be_served(found: str, wanted: str, tmp_path: Path) -> None:
    folder = WRITERS[found](tmp_path / "tiny")
    if wanted == found or (found, wanted) == ("contextual", "embedding"):
        assert plan_export(read_checkpoint(folder), wanted=wanted) == plan_export(read_checkpoint(folder))
        return
    message = refusal(folder, NATIVE, wanted)
    kind = {"contextual": "embedding", "reranker": "cross_encoder"}.get(found, found)
    assert message.startswith(f"--kind {wanted}: tiny is of kind {kind}")


def test_kind_refuses_with_exit_3_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = WRITERS["embedding"](tmp_path / "tiny")
    arguments = ["export", str(folder), "-o", str(tmp_path / "bundle"), "--cache-dir", str(tmp_path / "cache")]
    assert main([*arguments, "--kind", "reranker"]) == 3
    said = "ffwd-ort: --kind reranker: tiny is of kind embedding, which --kind reranker cannot serve\n"
    assert capsys.readouterr().err == said
    assert main([*arguments, "--kind", "contextual"]) == 3
    assert "of the family bert, which was not trained on chunks in context" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()
    assert main([*arguments, "--kind", "embedding"]) == 0
    assert main(["export", str(tmp_path / "bundle"), "--kind", "embedding"]) == 0
    assert main(["export", str(tmp_path / "bundle"), "--kind", "late"]) == 3, "a bundle is looked at too"


@pytest.mark.parametrize("flag", ["--kind", "--exporter"])
def test_an_unknown_value_exits_with_2_naming_flag_and_values(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", "x", flag, "other"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert flag in said
    assert "other" in said
    assert {"--kind": "reranker", "--exporter": "optimum"}[flag] in said


# --- --exporter optimum ----------------------------------------------------------------------------


def test_what_no_family_claims_is_admitted_by_its_pooling_module_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "sprat")
    export = plan_export(read_checkpoint(folder), OPTIMUM)
    family = export.admission.family
    assert (family.name, export.exporter, family.capacity(export.checkpoint)) == ("optimum", "optimum", 128)
    assert (export.admission.kind, export.admission.evidence) == ("embedding", "its pooling module")
    shutil.rmtree(folder / "1_Pooling")
    (folder / "modules.json").unlink()
    assert "evidence missing: sentence-transformers files" in refusal(folder)


def test_without_the_flag_it_is_refused_naming_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "sprat")
    assert "no installed family serves that" in refusal(folder, NATIVE)
    assert main(["export", str(folder), "--cache-dir", str(tmp_path / "cache")]) == 3
    captured = capsys.readouterr()
    assert "`ffwd-ort export --exporter optimum`" in captured.err
    assert captured.err.count("\n") == 1


def test_a_decoder_with_a_pooling_module_is_admitted_and_other_heads_are_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "decoder", architectures=["SpratForCausalLM"])
    assert plan_export(read_checkpoint(folder), OPTIMUM).admission.family.name == "optimum"
    for head in ("SpratForSequenceClassification", "SpratForTokenClassification", "SpratForQuestionAnswering"):
        assert f"{head} is a" in refusal(write(tmp_path / head, architectures=[head]))


@pytest.mark.parametrize("positions", [None, -1, "many"])
def test_without_a_number_of_positions_it_is_refused_by_name(positions: object, tmp_path: Path) -> None:
    export = plan_export(read_checkpoint(write(tmp_path / "sprat", max_position_embeddings=positions)), OPTIMUM)
    with pytest.raises(CheckpointError, match=r"config\.json: max_position_embeddings is .*positive integer"):
        export.key({})


def test_what_would_be_wrong_or_left_out_is_refused_by_name(tmp_path: Path) -> None:
    dense = TinyBert(layers=1, dense=((8, "torch.nn.modules.activation.Tanh"),))
    assert "its Dense modules (2_Dense) would be left out" in refusal(write_bert(tmp_path / "dense", dense))
    most = TinyBert(layers=1, pooling=("max_tokens",))
    assert "max pooling is not available" in refusal(write_bert(tmp_path / "max", most))
    foreign = write(tmp_path / "foreign", auto_map={"AutoModel": "modeling.Sprat"})
    assert "auto_map names its authors' code, which is never run" in refusal(foreign)
    bare = write(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    assert "how vocab.txt is read is known only for families with a plugin" in refusal(bare)


@pytest.mark.parametrize(("kind", "found"), [("late", "late"), ("reranker", "cross_encoder")])
def test_only_embedding_models_are_exported_by_optimum(kind: str, found: str, tmp_path: Path) -> None:
    message = refusal(WRITERS[kind](tmp_path / "tiny"))
    assert message == f"--exporter optimum: tiny: it is of kind {found}, and only embedding models are exported so"


def test_a_family_that_transformers_would_see_in_the_wrong_direction_is_refused(tmp_path: Path) -> None:
    message = refusal(WRITERS["contextual"](tmp_path / "tiny"))
    assert message == "--exporter optimum: tiny: transformers has no model of the family pplx as it was trained"


def test_the_exporter_is_part_of_what_a_bundle_depends_on(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(WRITERS["embedding"](tmp_path / "tiny"))
    native, optimum = (plan_export(checkpoint, exporter) for exporter in (NATIVE, OPTIMUM))
    assert (native.admission.family, native.exporter) == (optimum.admission.family, "bert")
    assert native.exporter_version == optimum.exporter_version, "the two plugins are of one package"
    assert native.key({}) != optimum.key({})


def test_a_native_bundle_is_not_taken_for_one_of_optimum(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path / "cache")
    bundle = cache.open(str(WRITERS["embedding"](tmp_path / "tiny")))
    with pytest.raises(BundleError, match="is a bundle already, written by the exporter bert"):
        cache.open(str(bundle.path), exporter=OPTIMUM)


def test_the_missing_extra_is_named_before_anything_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "sprat")
    script = "import sys; sys.modules['optimum'] = None; from ffwd_ort.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "export", str(folder), "--exporter", "optimum", "-o", str(tmp_path / "b")]
    done = subprocess.run([*command, "--cache-dir", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("ffwd-ort: --exporter optimum needs its extra (")
    assert done.stderr.endswith("): pip install 'ffwd_ort[optimum]'\n")
    assert not (tmp_path / "b").exists()
