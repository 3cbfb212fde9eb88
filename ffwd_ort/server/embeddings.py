"""POST /v1/embeddings."""

import select
import socket
import time
from collections.abc import Callable
from typing import Any

import falcon

from ffwd_ort.engine.engine import Engine
from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import responses
from ffwd_ort.server.body import BodyBudget, read_body
from ffwd_ort.server.middleware import PostResource, Timing
from ffwd_ort.server.validation import EmbeddingsRequest, RequestRules, embeddings_request, parse_body, tokens


class Embeddings(PostResource):
    """One vector per text, in the order of the texts."""

    def __init__(self, engine: Engine, budget: BodyBudget, rules: RequestRules, timeout: float) -> None:
        self._engine = engine
        self._budget = budget
        self._rules = rules
        self._timeout = timeout

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, encode, answer."""
        timing: Timing = req.context.timing
        request = self._read(req, timing)
        model = request.model
        with timing.stage("tokenize"):
            encoded = tokens(request, self._rules)
            sequences = model.sequences(encoded, prompt=request.prompt, pooling=request.pooling)
        left = self._timeout - (time.monotonic() - timing.began)
        result = self._engine.encode(model.label, sequences, timeout=left, gone=client_left(req.env))
        timing.seconds["queue"] += result.queued
        timing.seconds["infer"] = result.inferred
        with timing.stage("encode"):
            vectors = model.finish(result.pooled, dimensions=request.dimensions)
            count = sum(len(text.ids) for text in encoded)
            encoded_vectors = CODECS[model.api][request.encoding_format](vectors)
            resp.data = responses.encode(responses.embeddings(model.label, encoded_vectors, count))
        cut = sum(text.truncated for text in encoded)
        if cut:
            resp.set_header("X-Truncated", str(cut))

    def _read(self, req: falcon.Request, timing: Timing) -> EmbeddingsRequest:
        models = {label: model.served for label, model in self._engine.models.items()}
        with read_body(req.env, self._budget) as raw, timing.stage("parse"), self._budget.parsing(len(raw)):
            return embeddings_request(parse_body(raw), models, self._rules)


def client_left(environ: dict[str, Any]) -> Callable[[], bool]:
    """Make a test of whether the client has closed its side: nobody will read the answer.

    A client that only shut down its sending side cannot be told apart from one that left, as for most servers.
    """
    connection = environ.get("gunicorn.socket")

    def left() -> bool:
        if not isinstance(connection, socket.socket):
            return False
        readable = select.poll()  # select() itself stops at file descriptor 1023
        try:
            readable.register(connection, select.POLLIN)
            return bool(readable.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    return left
