"""GET /v1/models and /v1/models/{label}: labels and their settled settings."""

from collections.abc import Mapping
from typing import Any

import falcon

from ffwd_ort.engine.engine import DRAINING, SERVING, Engine, LoadedModel
from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import responses
from ffwd_ort.server.errors import HttpFault
from ffwd_ort.server.middleware import Resource


def entry(model: LoadedModel, routes: Mapping[str, Resource]) -> dict[str, Any]:
    """Describe one label; `routes` are all there are, by path."""
    served = model.served
    return {
        "id": served.label,
        "object": "model",
        "created": int(model.loaded_at),
        "owned_by": "ffwd_ort",
        "kind": served.kind,
        "routes": [path for path, resource in routes.items() if resource.serves(served)],
        "dim": served.dim,
        "min_dim": served.min_dim,
        "max_tokens": served.cap.tokens,
        "api": served.api,
        "encoding_formats": list(CODECS[served.api]),
        "pooling": "+".join(served.pooling) or None,
        "normalize": served.normalize,
        "prompts": sorted(served.prompts),
        "scorer": served.scorer,
        "token_ids": "accept" if served.accepts_token_ids else "refuse",
    }


class Models(Resource):
    """Both routes: the list, and one label's entry."""

    states = (SERVING, DRAINING)

    def __init__(self, engine: Engine, routes: Mapping[str, Resource]) -> None:
        self._engine = engine
        self._routes = routes

    def on_get(self, req: falcon.Request, resp: falcon.Response, label: str | None = None) -> None:
        """Answer with every label in load order, or with the one asked for."""
        if label is None:
            listed = [entry(model, self._routes) for model in self._engine.models.values()]
            resp.data = responses.encode({"object": "list", "data": listed})
        elif label in self._engine.models:
            resp.data = responses.encode(entry(self._engine.models[label], self._routes))
        else:
            raise HttpFault("model_not_found", param="model")

    on_head = on_get
