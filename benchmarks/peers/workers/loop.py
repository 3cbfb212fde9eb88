"""What every worker does with its standard streams; imports nothing but NumPy, for any contender's environment."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[list[str]], Any]  # texts -> something that NumPy reads as [texts, dim]
MAX_TOKENS = 512  # where every contender cuts
FLAT = "flat"  # a folder in the checkpoint's: `model.onnx` with the tokenizer and config.json beside it


def serve(load: Callable[[Path, int, str], Encode], packages: Sequence[str]) -> None:
    """Load a contender, then answer `run NAME`, `vectors NAME FILE` and `peak` with a line of JSON each.

    The arguments of the process are the checkpoint's folder, the JSON file of texts, the number of threads and,
    for a library with several engines, which one. A failure is answered too, then the process ends.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes beside its log, not between the answers
    folder, texts_file, threads, engine = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        texts: dict[str, list[str]] = json.loads(texts_file.read_text())
        encode = load(folder, threads, engine)
        answer(versions={"python": sys.version.split()[0], **{name: version(name) for name in packages}})
        for line in sys.stdin:
            verb, *operands = line.split()
            answer(**_carry_out(verb, operands, encode, texts))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise


def _carry_out(verb: str, operands: list[str], encode: Encode, texts: dict[str, list[str]]) -> dict[str, Any]:
    if verb == "run":
        began = time.perf_counter()
        encode(texts[operands[0]])
        return {"seconds": time.perf_counter() - began}
    if verb == "vectors":
        vectors = np.asarray(encode(texts[operands[0]]), dtype=np.float32)
        np.save(operands[1], vectors)
        return {"shape": list(vectors.shape)}
    if verb == "peak":
        return {"peak_mb": peak_mb()}
    raise ValueError(f"no such command: {verb}")


def peak_mb() -> float | None:
    """Return the most memory this process ever held, in MB of 10^6; None where the kernel does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
    return int(line.split()[1]) * 1024 / 1e6 if line else None
