"""What the routes that run a model do alike: read a body, wait for the engine, keep the time."""

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import falcon

from ffwd_ort.engine.engine import Engine, Result
from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.sequences import Sequence
from ffwd_ort.errors import InferenceFailed
from ffwd_ort.server.body import BodyBudget, read_body
from ffwd_ort.server.errors import HttpFault
from ffwd_ort.server.fields import RequestRules, parse_body
from ffwd_ort.server.metrics import Metrics
from ffwd_ort.server.middleware import Account, PostResource, Timing

Request = TypeVar("Request")
Check = Callable[[Mapping[str, Any], Mapping[str, ServedModel], RequestRules], Request]


class ModelRoute(PostResource):
    """Base of those routes; `failure` is the answer when the runtime raises."""

    failure = "inference"

    def __init__(
        self, engine: Engine, budget: BodyBudget, rules: RequestRules, timeout: float, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._budget = budget
        self._rules = rules
        self._timeout = timeout
        self._metrics = metrics

    def read(self, req: falcon.Request, check: Check[Request]) -> Request:
        """Read the body and have it checked."""
        timing: Timing = req.context.timing
        models = {label: model.served for label, model in self._engine.models.items()}
        with read_body(req.env, self._budget) as raw, timing.stage("parse"), self._budget.parsing(len(raw)):
            body = parse_body(raw)
            req.context.account.label = self._settled(body, models)
            return check(body, models, self._rules)

    def _settled(self, body: Mapping[str, Any], models: Mapping[str, ServedModel]) -> str:
        """Name the label that a body is for, if it serves this route; text from a client is never one."""
        serving = [label for label, model in models.items() if self.serves(model)]
        label = body.get("model") if "model" in body or len(serving) != 1 else serving[0]
        return label if isinstance(label, str) and label in serving else ""

    def account(self, req: falcon.Request, texts: int, tokens: int) -> None:
        """Say of a request how many texts and tokens it has, padding left out."""
        account: Account = req.context.account
        account.texts, account.tokens = texts, tokens

    def run(self, req: falcon.Request, label: str, sequences: list[Sequence]) -> Result:
        """Have sequences encoded, within what is left of the request's time."""
        timing: Timing = req.context.timing
        left = self._timeout - (time.monotonic() - timing.began)
        try:
            result = self._engine.encode(label, sequences, timeout=left, gone=client_left(req.env))
        except InferenceFailed:
            raise HttpFault(self.failure) from None
        self._metrics.queue_wait.labels(label).observe(result.queued)
        self._metrics.tokens.labels(label, "prompt").inc(req.context.account.tokens)
        timing.seconds["queue"] += result.queued
        timing.seconds["infer"] += result.inferred
        return result


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
