"""Tiny late-interaction checkpoints: an encoder with a Dense module on every token, in the layouts in use."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from ffwd_ort_conformance.tiny import Draw, TinyBert, write_bert, write_json
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_decoder

MARKERS = ("[Q] ", "[D] ")
WIDTH = 20
PYLATE: dict[str, Any] = {
    "model_type": "ColBERT",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 16,
    "document_length": 100,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"),
    "similarity_fn_name": "maxsim",
}


def write_colbert(folder: Path, **changes: Any) -> Path:
    """Write a random ColBERT as PyLate saves it; `changes` go into its settings. Returns the folder."""
    write_bert(folder, TinyBert(markers=MARKERS, positions=160))
    _project(folder, 48)
    write_json(folder / "config_sentence_transformers.json", PYLATE | changes)
    return folder


def write_pplx_late(folder: Path) -> Path:
    """Write a random pplx-late: a projection of every token, and no word on the layout. Returns the folder."""
    tiny = TinyDecoder(
        model_type="bidirectional_pplx_qwen3",
        head_norms=True,
        pooling=("mean_tokens",),
        normalize=False,
        markers=(*MARKERS, "[MASK]"),
    )
    write_decoder(folder, tiny)
    _project(folder, tiny.hidden)
    return folder


def _project(folder: Path, hidden: int) -> None:
    """Replace pooling by a Dense module without a bias, as it is before it names what it works on."""
    shutil.rmtree(folder / "1_Pooling")
    kinds = ("Transformer", "Dense")
    names = [{"idx": i, "name": str(i), "path": ("", "1_Dense")[i]} for i in range(2)]
    modules = [name | {"type": f"sentence_transformers.models.{kind}"} for name, kind in zip(names, kinds, strict=True)]
    write_json(folder / "modules.json", modules)
    draw = Draw(71)
    draw.linear("linear", WIDTH, hidden, bias=False)
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": hidden, "out_features": WIDTH, "bias": False, "activation_function": identity}
    write_json(folder / "1_Dense" / "config.json", dense)
    save_file(draw.tensors, folder / "1_Dense" / "model.safetensors", metadata={"format": "pt"})
