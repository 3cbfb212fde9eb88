"""Settings of config.json that are of another type or value than any model has: refused by name, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.errors import AdmissionError, FfwdError
from ffwd_ort.export import plan_export
from ffwd_ort_conformance.tiny import write_bert
from ffwd_ort_conformance.tiny_families import (
    TinyDecoder,
    TinyEncoder,
    TinyGemma3,
    write_decoder,
    write_encoder,
    write_gemma3,
)
from ffwd_ort_exporters.bert import BertTrunk
from ffwd_ort_exporters.decoder import DecoderStyle, DecoderTrunk
from ffwd_ort_exporters.gemma3 import Gemma3Trunk
from ffwd_ort_exporters.modernbert import ModernBertTrunk
from ffwd_ort_exporters.native import Trunk

WINDOWED = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
MODERN = {"global_attn_every_n_layers": 3, "global_rope_theta": 1e5, "rope_scaling": None, "layer_types": None}
GEMMA = {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_scaling": None, "layer_types": None}
FAMILIES: dict[str, tuple[Callable[[Path], Path], Callable[[Any], Trunk]]] = {
    "bert": (write_bert, BertTrunk),
    "qwen2": (
        lambda folder: write_decoder(folder, TinyDecoder(config={**WINDOWED, "rope_parameters": YARN})),
        lambda checkpoint: DecoderTrunk(checkpoint, DecoderStyle()),
    ),
    "llama": (
        lambda folder: write_decoder(
            folder, TinyDecoder(model_type="llama", config={"rope_scaling": LLAMA3, "layer_types": None})
        ),
        lambda checkpoint: DecoderTrunk(checkpoint, DecoderStyle()),
    ),
    "modernbert": (
        lambda folder: write_encoder(folder, TinyEncoder(model_type="modernbert", config=MODERN)),
        ModernBertTrunk,
    ),
    "gemma3": (lambda folder: write_gemma3(folder, TinyGemma3(config=GEMMA)), Gemma3Trunk),
}
BAD = (None, True, -1, 0, 3, 2.5, "x", [], ["x"], {}, {"rope_type": []}, {"factor": "2"}, {"full_attention": 7})


@pytest.mark.parametrize("family", FAMILIES)
def test_no_setting_of_a_wrong_type_ends_in_a_traceback(family: str, tmp_path: Path) -> None:
    write, trunk = FAMILIES[family]
    folder = write(tmp_path / "tiny")
    path = folder / "config.json"
    right = json.loads(path.read_bytes())
    trunk(read_checkpoint(folder))
    settings = [(key, bad) for key in right for bad in BAD]
    settings += [
        (key, value | {inner: bad})
        for key, value in right.items()
        if isinstance(value, dict)
        for inner in value
        for bad in BAD
    ]
    refused = 0
    for key, bad in settings:
        path.write_text(json.dumps(right | {key: bad}))
        try:
            checkpoint = read_checkpoint(folder)
            plan_export(checkpoint)
            trunk(checkpoint)
        except FfwdError as error:
            refused += 1
            assert str(error)
        except Exception as error:
            pytest.fail(f"{key} = {bad!r}: {type(error).__name__}: {error}")
    assert refused > len(settings) / 4


@pytest.mark.parametrize("family", ["llama", "modernbert", "gemma3"])
@pytest.mark.parametrize(
    "kinds",
    [["chunked_attention"] * 2, ["full_attention"], "full_attention", [7, 7]],
    ids=["kind", "few", "text", "no"],
)
def test_layers_of_a_kind_that_is_not_known_are_refused(family: str, kinds: Any, tmp_path: Path) -> None:
    write, trunk = FAMILIES[family]
    folder = write(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2, "layer_types": kinds}))
    with pytest.raises(AdmissionError, match=r"layer_types (is|has) .*"):
        trunk(read_checkpoint(folder))
