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
from ffwd_ort.server.middleware import PostResource, Timing

Request = TypeVar("Request")
Check = Callable[[Mapping[str, Any], Mapping[str, ServedModel], RequestRules], Request]


class ModelRoute(PostResource):
    """Base of those routes; `failure` is the answer when the runtime raises."""

    failure = "inference"

    def __init__(self, engine: Engine, budget: BodyBudget, rules: RequestRules, timeout: float) -> None:
        self._engine = engine
        self._budget = budget
        self._rules = rules
        self._timeout = timeout

    def read(self, req: falcon.Request, check: Check[Request]) -> Request:
        """Read the body and have it checked."""
        timing: Timing = req.context.timing
        models = {label: model.served for label, model in self._engine.models.items()}
        with read_body(req.env, self._budget) as raw, timing.stage("parse"), self._budget.parsing(len(raw)):
            return check(parse_body(raw), models, self._rules)

    def run(self, req: falcon.Request, label: str, sequences: list[Sequence]) -> Result:
        """Have sequences encoded, within what is left of the request's time."""
        timing: Timing = req.context.timing
        left = self._timeout - (time.monotonic() - timing.began)
        try:
            result = self._engine.encode(label, sequences, timeout=left, gone=client_left(req.env))
        except InferenceFailed:
            raise HttpFault(self.failure) from None
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
