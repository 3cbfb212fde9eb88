"""Text embeddings and reranking on ONNX Runtime: `SentenceEncoder(source).encode(texts)`."""

from typing import TYPE_CHECKING, Any

from ffwd_ort.version import VERSION as __version__

if TYPE_CHECKING:
    from ffwd_ort.api import ContextualEncoder, CrossEncoder, LateInteractionEncoder, SentenceEncoder
    from ffwd_ort.engine.vectors import l2_normalize

__all__ = [
    "ContextualEncoder",
    "CrossEncoder",
    "LateInteractionEncoder",
    "SentenceEncoder",
    "__version__",
    "l2_normalize",
]
_HOMES = dict.fromkeys(__all__, "ffwd_ort.api") | {"l2_normalize": "ffwd_ort.engine.vectors"}


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: `ffwd-server --version` needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ffwd_ort' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
