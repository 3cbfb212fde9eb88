"""A tiny ELECTRA, whose family is the example of a third party's package, and that package installed."""

import subprocess
import sys
from pathlib import Path

from ffwd_ort_conformance.tiny import Draw, Tiny, TinyBert, bert_tensors, write_json, write_modules, write_tokenizer
from ffwd_ort_conformance.tiny import write_weights as write

PACKAGE = Path(__file__).parents[1] / "tests" / "third_party"
WIDTH = 32  # of the embeddings


def write_electra(folder: Path) -> Path:
    """Write a sentence-transformers folder around a random ELECTRA; returns the folder."""
    tiny = Tiny()
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    config = {
        "architectures": ["ElectraModel"],
        "model_type": "electra",
        "embedding_size": WIDTH,
        "hidden_act": "gelu",
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "max_position_embeddings": tiny.positions,
        "num_attention_heads": tiny.heads,
        "num_hidden_layers": tiny.layers,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
    }
    write_json(folder / "config.json", config)
    write_modules(folder, tiny)
    trunk = bert_tensors(TinyBert(hidden=tiny.hidden, heads=tiny.heads, layers=tiny.layers), vocabulary)
    draw = Draw(tiny.seed + 9)
    draw("embeddings.word_embeddings.weight", vocabulary, WIDTH, scale=1.0)
    draw("embeddings.position_embeddings.weight", tiny.positions, WIDTH, scale=0.5)
    draw("embeddings.token_type_embeddings.weight", 2, WIDTH, scale=0.5)
    draw.norm("embeddings.LayerNorm", WIDTH)
    draw.linear("embeddings_project", tiny.hidden, WIDTH)
    write(folder, {f"electra.{name}": tensor for name, tensor in (trunk | draw.tensors).items()}, tiny)
    return folder


def install_example(site: Path) -> None:
    """Install the example package into a folder of its own, as pip does."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    copied = site.with_name("source")
    # pip builds in the source's folder; this one may be read-only, or shared by two runs.
    subprocess.run(["cp", "-r", str(PACKAGE), str(copied)], check=True)
    subprocess.run([*command, "--target", str(site), str(copied)], check=True)
