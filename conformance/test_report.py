"""ffwd-ort conformance: what holds is said to hold, what does not ends with exit code 3."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ffwd_ort.cli.main import main
from ffwd_ort_conformance.tiny import TinyBert, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_colbert, write_pplx_late

PPLX = TinyDecoder(
    model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False, head_width=24
)
SOURCES: dict[str, tuple[Callable[[Path], Path], str, set[str]]] = {
    "bert": (write_bert, "sentence-transformers", {"tokens", "vector", "invariance", "backend"}),
    "bert-trunk": (write_bert, "transformers", {"tokens", "vector", "invariance", "backend"}),
    "dense": (
        lambda folder: write_bert(folder, TinyBert(dense=((24, "torch.nn.modules.activation.Tanh"),))),
        "sentence-transformers",
        {"tokens", "vector", "invariance", "backend"},
    ),
    "terminal": (
        lambda folder: write_decoder(folder, TinyDecoder(head_norms=True, append_eos=True)),
        "sentence-transformers",
        {"tokens", "vector", "invariance", "backend"},
    ),
    "pplx": (
        lambda folder: write_decoder(folder, PPLX),
        "sentence-transformers",
        {"tokens", "vector", "invariance", "backend", "codec"},
    ),
    "colbert": (write_colbert, "sentence-transformers", {"tokens", "vector", "score", "invariance", "backend"}),
    "pplx-late": (write_pplx_late, "numpy", {"invariance", "backend"}),
    "cross-encoder": (
        lambda folder: write_cross_encoder(folder, "roberta"),
        "transformers",
        {"tokens", "score", "invariance", "backend"},
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_level_of_a_good_checkpoint_holds(
    name: str, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, reference, levels = SOURCES[name]
    folder, file = write(tmp_path / "tiny"), tmp_path / "report.json"
    arguments = [str(folder), "--reference", reference, "--report", str(file), "--cache-dir", str(cache_dir)]
    assert main(["conformance", *arguments]) == 0
    report = json.loads(file.read_text())
    assert report["passed"] and {finding["level"] for finding in report["findings"]} == levels
    assert all(finding["passed"] for finding in report["findings"])
    assert bool(report["note"]) == (name in ("pplx", "pplx-late")), "what is not the authors' code is said"
    printed = capsys.readouterr().out
    assert all(level in printed for level in levels) and report["hashes"]["weights"] in printed


def test_a_level_that_does_not_hold_ends_with_exit_code_3(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_bert(tmp_path / "tiny")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    # The reference makes its tokenizer of this file, and we of tokenizer.json, which makes letters small.
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": False}))
    assert main(["conformance", str(folder), "--cache-dir", str(cache_dir)]) == 3
    said = capsys.readouterr()
    assert "does not conform: tokens" in said.err and "fails" in said.out
