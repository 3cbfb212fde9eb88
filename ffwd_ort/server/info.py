"""GET /info and /metrics: what the server is, and its numbers."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import falcon

from ffwd_ort.config import ServerConfig
from ffwd_ort.engine.engine import Engine, LoadedModel
from ffwd_ort.families import CROSS_ENCODER, EMBEDDING
from ffwd_ort.server import responses
from ffwd_ort.server.contextual_fields import MAX_CHUNKS
from ffwd_ort.server.contextual_fields import MAX_DOCUMENTS as CONTEXTUAL_DOCUMENTS
from ffwd_ort.server.errors import MAX_BODY_BYTES
from ffwd_ort.server.metrics import Metrics
from ffwd_ort.server.middleware import Resource
from ffwd_ort.server.rerank_fields import MAX_DOCUMENTS
from ffwd_ort.server.validation import MAX_INPUTS
from ffwd_ort.version import VERSION

RUNTIMES = ("onnxruntime-gpu", "onnxruntime")
TEI_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def runtime_version() -> str | None:
    """Return the version of ONNX Runtime without importing it."""
    for name in RUNTIMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


class Info(Resource):
    """Facts in every state; with one label also under TEI's names."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self._engine = engine
        rows = config.rows
        self._facts = {
            "name": "ffwd_ort",
            "version": VERSION,
            "onnxruntime": runtime_version(),
            "models": [spec.label for spec in config.models],
            "limits": {
                "inputs": min(MAX_INPUTS, rows or MAX_INPUTS),
                "documents": min(CONTEXTUAL_DOCUMENTS, rows or CONTEXTUAL_DOCUMENTS),
                "chunks": MAX_CHUNKS,
                "rerank_documents": min(MAX_DOCUMENTS, rows or MAX_DOCUMENTS),
                "request_tokens": config.max_request_tokens,
                "body_bytes": MAX_BODY_BYTES,
            },
            "validation_status": config.validation_status,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_batch_tokens": config.max_batch_tokens,
            "max_client_batch_size": min(MAX_INPUTS, rows or MAX_INPUTS),
            "auto_truncate": config.auto_truncate,
        }

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with what is known."""
        labels = self._facts["models"]
        only = self._engine.models.get(labels[0]) if isinstance(labels, list) and len(labels) == 1 else None
        resp.data = responses.encode(self._facts | _as_tei(only))

    on_head = on_get


def _as_tei(model: LoadedModel | None) -> dict[str, Any]:
    """Describe the one label as TEI does; null while it is unknown, or one of several."""
    if model is None:
        return dict.fromkeys(("model_id", "model_dtype", "model_type", "max_input_length"))
    served = model.served
    kinds: dict[str, Any] = {
        EMBEDDING: {"embedding": {"pooling": "+".join(served.pooling)}},
        CROSS_ENCODER: {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
    }
    return {
        "model_id": served.label,
        "model_dtype": TEI_DTYPES.get(served.manifest.dtype, served.manifest.dtype),
        "model_type": kinds.get(served.kind, {served.kind: {}}),
        "max_input_length": served.cap.tokens,
    }


class Page(Resource):
    """Prometheus' text, of all workers."""

    def __init__(self, metrics: Metrics, public: bool) -> None:
        self._metrics = metrics
        self.public = public

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with every series."""
        resp.data, resp.content_type = self._metrics.page()

    on_head = on_get
