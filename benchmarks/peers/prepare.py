"""What contenders read: one checkpoint that is cut at 512 tokens, its standard ONNX export, its GGUF, our bundle."""

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.contenders import HERE, OPTIMUM
from benchmarks.peers.process import environment
from benchmarks.peers.workers.loop import FLAT, MAX_TOKENS

GGUF = "minilm-f32.gguf"
# Beside the installed package, the Makefile leaves its source: the converter is not in the wheel.
CONVERTER = "src/llama_cpp_python-*/vendor/llama.cpp/convert_hf_to_gguf.py"
OUR_EXPORT = "import sys, ffwd_ort; ffwd_ort.SentenceEncoder(sys.argv[1], provider='cpu').close()"


def prepare(checkpoint: Path, work: Path) -> tuple[Path, list[str]]:
    """Make the folder that all contenders load, once; return it and what could not be made."""
    folder = work / "minilm"
    if not folder.exists():
        shutil.copytree(checkpoint, folder)
        settings = folder / "sentence_bert_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": MAX_TOKENS}))
    converters = sorted(HERE.glob(CONVERTER))
    to_gguf = [str(path) for path in converters[-1:]] + [str(folder), "--outtype", "f32"]
    steps = {
        folder / "onnx" / "model.onnx": (OPTIMUM, ["-m", "benchmarks.peers.export_onnx", str(folder)]),
        folder / GGUF: (HERE, [*to_gguf, "--outfile", str(folder / GGUF)] if converters else None),
    }
    problems = [
        f"{target.name}: {problem}"
        for target, (venv, arguments) in steps.items()
        if not target.exists() and (problem := _run(venv, arguments))
    ]
    if (folder / "onnx" / "model.onnx").exists() and not (folder / FLAT).exists():
        (folder / FLAT).mkdir()
        for source in [folder / "onnx" / "model.onnx", *folder.glob("*.json"), folder / "vocab.txt"]:
            shutil.copy(source, folder / FLAT)
    if problem := _run(HERE, ["-c", OUR_EXPORT, str(folder)]):  # so that loading it is timed from the cache
        problems.append(f"bundle: {problem}")
    return folder, problems


def _run(venv: Path, arguments: list[str] | None) -> str | None:
    """Run Python of an environment; return the last line of a failure."""
    python = venv / "bin" / "python"
    if arguments is None or not python.exists():
        return "its tool is not installed"
    done = subprocess.run([str(python), *arguments], env=environment(), capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return ([line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"])[-1]
