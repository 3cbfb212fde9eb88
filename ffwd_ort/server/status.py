"""GET /health, /ready, /live: the state, never behind a key."""

import time
from collections.abc import Callable
from typing import Any

import falcon

from ffwd_ort.engine.engine import CLOSED, DRAINING, FAILED, SERVING, STARTING, Engine, LoadedModel
from ffwd_ort.engine.fitting import largest
from ffwd_ort.server import responses
from ffwd_ort.server.middleware import Resource
from ffwd_ort.version import VERSION


def describe(label: str, model: LoadedModel | None) -> dict[str, Any]:
    """Describe one label by its settled values; null while they are unknown."""
    if model is None:
        return {"label": label, **dict.fromkeys(DESCRIBED)}
    return {"label": label, **{name: read(model) for name, read in DESCRIBED.items()}}


DESCRIBED: dict[str, Callable[[LoadedModel], Any]] = {
    "kind": lambda m: m.served.kind,
    "family": lambda m: m.served.manifest.family,
    "dim": lambda m: m.served.dim,
    "min_dim": lambda m: m.served.min_dim,
    "pooling": lambda m: "+".join(m.served.pooling) or None,
    "normalize": lambda m: m.served.normalize,
    "api": lambda m: m.served.api,
    "scorer": lambda m: m.served.scorer,
    "release": lambda m: None,
    "max_tokens": lambda m: m.served.cap.tokens,
    "max_tokens_bound_by": lambda m: m.served.cap.bound_by,
    "trained_length": lambda m: m.served.manifest.trained_length,
    "max_seq": lambda m: m.served.packing.seqs[-1],
    "step_tokens": lambda m: m.served.packing.budget,
    "step_tokens_bound_by": lambda m: m.served.step_bound_by,
    "memory": lambda m: {
        "limit_bytes": m.served.room.memory.bytes,
        "bound_by": m.served.room.memory.bound_by,
        "room_bytes": m.served.room.bytes,
        "largest_step_bytes": largest(m.served.packing, m.served.manifest),
    },
    "provider": lambda m: m.runner.provider,
    "execution_providers": lambda m: list(m.runner.execution_providers),
    "precision": lambda m: m.served.manifest.dtype,
    "prepared_shapes": lambda m: [[s.rows, s.seq] for s in sorted(m.seconds, key=lambda s: (s.seq, s.rows))],
    # On CPU the warm-up has a time budget; what it did not reach rests on the memory model.
    "shapes_not_run": lambda m: [[s.rows, s.seq] for s in m.served.packing.shapes() if s not in m.seconds],
    "weights_sha256": lambda m: m.served.manifest.source.weights_sha256,
    "prompts": lambda m: sorted(m.served.prompts),
    "token_ids": lambda m: "accept" if m.served.accepts_token_ids else "refuse",
}


class Status(Resource):
    """Base of the three: 200 if the state is good, else 503 with the state as the body."""

    public = True

    def __init__(self, engine: Engine, labels: list[str], rows: int) -> None:
        self._engine = engine
        self._labels = labels
        self._rows = rows
        self._began = time.monotonic()

    @property
    def state(self) -> str:
        """The engine's state; one that is closed belongs to a server that drains."""
        return DRAINING if self._engine.state == CLOSED else self._engine.state

    def answer(self, resp: falcon.Response, body: dict[str, Any]) -> None:
        """Send the state."""
        state = self.state
        if state != SERVING:
            resp.status = falcon.HTTP_503
            resp.set_header("Retry-After", "5" if state in (STARTING, FAILED) else "1")
        resp.data = responses.encode(body)


class Health(Status):
    """The state with everything settled about every label."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer within a second at any load: nothing here waits for the engine."""
        state = self.state
        body: dict[str, Any] = {"status": state}
        if state == FAILED:
            body["reason"] = "engine_failed"
        loaded = dict(self._engine.models)
        models = [{**describe(label, loaded.get(label)), "rows": self._rows} for label in self._labels]
        uptime = round(time.monotonic() - self._began, 1)
        self.answer(resp, body | {"version": VERSION, "uptime_seconds": uptime, "models": models})

    on_head = on_get


class Ready(Status):
    """Whether requests are served now."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the state alone."""
        self.answer(resp, {"status": self.state})

    on_head = on_get


class Live(Status):
    """Whether the process answers at all."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer 200 in every state."""
        resp.data = responses.encode({"status": "alive"})

    on_head = on_get
