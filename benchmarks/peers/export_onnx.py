"""Export a checkpoint by sentence-transformers and optimum, as their users do; runs in optimum's environment."""

import shutil
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Leave `onnx/model.onnx` in the folder given."""
    from sentence_transformers import SentenceTransformer

    folder = Path(sys.argv[1])
    options = {"export": True, "provider": "CPUExecutionProvider"}
    model = SentenceTransformer(str(folder), device="cpu", backend="onnx", model_kwargs=options)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        (folder / "onnx").mkdir(exist_ok=True)
        shutil.copy(Path(saved) / "onnx" / "model.onnx", folder / "onnx" / "model.onnx")


if __name__ == "__main__":
    main()
