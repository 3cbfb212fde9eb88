"""JSON files of a checkpoint directory, and which of them were read."""

import json
from pathlib import Path
from typing import Any

from ffwd_ort.errors import CheckpointError


class Files:
    """Reads JSON files of a directory and remembers which were read, for the cache key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: list[Path] = []

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def json(self, name: str) -> Any:
        path = self.root / name
        self.read.append(path)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}") from None

    def object(self, name: str) -> dict[str, Any]:
        """Read an object; a file that is not there says nothing."""
        value = self.json(name) if self.has(name) else {}
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.root / name} holds {type(value).__name__}; an object is needed")
        return value
