"""What every request passes on its way in and out: the checks of http.md section 3.1 in their order."""

import hmac
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import falcon

from ffwd_ort.engine.engine import CLOSED, DRAINING, SERVING, Engine
from ffwd_ort.engine.model import ServedModel
from ffwd_ort.server.access_log import AccessLog
from ffwd_ort.server.body import check_declared
from ffwd_ort.server.errors import HttpFault
from ffwd_ort.server.metrics import NO_ROUTE, Metrics

CORS_HEADERS = {
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
    "Access-Control-Expose-Headers": "X-Request-Id, Server-Timing, Retry-After, X-Truncated",
    "Access-Control-Max-Age": "600",
}
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
STAGES = ("queue", "parse", "tokenize", "infer", "encode")


def request_id(given: str | None) -> str:
    """Keep a client's id if it is short and plain, else make one of 32 hex digits."""
    return given if given is not None and REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


@dataclass
class Timing:
    """Where a request's time went, in seconds by stage."""

    began: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start

    def header(self) -> str:
        """Write all five stages, in ms."""
        return ", ".join(f"{name};dur={self.seconds[name] * 1000:.3f}" for name in STAGES)


@dataclass
class Account:
    """What is said of a request once it is answered, in numbers and in the log; never its texts."""

    label: str = ""  # a loaded one, once it is settled
    texts: int = 0
    tokens: int = 0
    refusal: str | None = None  # the kind of error


class Admission:
    """Counts requests in flight; the ones above the limit are turned away at once."""

    def __init__(self, most: int, on_change: Callable[[int], None] = lambda count: None) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._on_change = on_change
        self.inflight = 0

    def enter(self) -> None:
        """Take a place; raise HttpFault 429 if there is none."""
        with self._lock:
            if self.inflight >= self._most:
                raise HttpFault("overloaded")
            self.inflight += 1
            self._on_change(self.inflight)

    def leave(self) -> None:
        """Give the place back."""
        with self._lock:
            self.inflight -= 1
            self._on_change(self.inflight)


class Resource:
    """Base of the routes: which methods one has, and what it needs before it answers."""

    methods: tuple[str, ...] = ("GET", "HEAD")
    public = False  # answers without a key
    states: tuple[str, ...] | None = None  # answers only in these; None: in all
    admits = False  # takes a place in flight

    def serves(self, model: ServedModel) -> bool:
        """Tell whether this route runs a label; most run none."""
        return False

    @property
    def allow(self) -> str:
        """The Allow header."""
        return ", ".join((*self.methods, "OPTIONS"))


class PostResource(Resource):
    """Base of the routes that run a model."""

    methods = ("POST",)
    states: tuple[str, ...] | None = (SERVING,)
    admits = True


class Gate:
    """Checks a request before its route runs; completes the headers of its answer, counts and logs it."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        keys: Sequence[bytes],
        metrics: Metrics,
        access: AccessLog,
        origins: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._keys = keys
        self._metrics = metrics
        self._access = access
        self._origins = origins

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Settle the request's id before anything can fail, and refuse paths that Falcon would take for others."""
        req.context.id = request_id(req.get_header("X-Request-Id"))
        req.context.account = Account()
        if req.path.startswith("//"):
            raise HttpFault("not_found")

    def process_resource(self, req: falcon.Request, resp: falcon.Response, resource: Any, params: Any) -> None:
        """Check method, key, state, declared body and admission, in this order."""
        if req.method == "OPTIONS":
            resp.status = falcon.HTTP_204
            resp.set_header("Allow", resource.allow)
            resp.complete = True
            return
        if req.method not in resource.methods:
            raise HttpFault("method", headers={"Allow": resource.allow})
        if not resource.public:
            self._check_key(req)
        if resource.states is not None and self._engine.state not in resource.states:
            raise HttpFault("draining" if self._engine.state in (DRAINING, CLOSED) else "not_ready")
        if resource.admits:
            check_declared(req.env)
            req.context.timing = Timing()
            self._admission.enter()
            req.context.admitted = True

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, ok: bool) -> None:
        """Complete the headers and give the place in flight back."""
        # Falcon refuses a method it does not know before it calls anything here.
        name = getattr(req.context, "id", None) or request_id(None)
        account = getattr(req.context, "account", None) or Account(refusal="method")
        resp.set_header("X-Request-Id", name)
        timing = getattr(req.context, "timing", None)
        if timing is not None:
            resp.set_header("Server-Timing", timing.header())
        self._allow_origin(req, resp, resource)
        if getattr(req.context, "admitted", False):
            self._admission.leave()
        status = falcon.http_status_to_code(resp.status)
        route = NO_ROUTE if resource is None else (req.uri_template or NO_ROUTE).replace(":path}", "}")
        seconds = time.monotonic() - timing.began if timing is not None else None
        self._metrics.answered(route, account.label, status, account.refusal, seconds)
        asks_state = resource is not None and "GET" in resource.methods and (resource.public or status < 400)
        self._access.write(name, req.method, route, status, account, timing, quiet=asks_state)

    def _allow_origin(self, req: falcon.Request, resp: falcon.Response, resource: Any) -> None:
        """Let a browser's script of a permitted origin read the answer; credentials are never allowed."""
        origin = req.get_header("Origin")
        if not self._origins or origin is None:
            return
        resp.append_header("Vary", "Origin")
        if resource is None or ("*" not in self._origins and origin not in self._origins):
            return
        resp.set_header("Access-Control-Allow-Origin", "*" if "*" in self._origins else origin)
        for header, value in CORS_HEADERS.items():
            resp.set_header(header, value)
        resp.set_header("Access-Control-Allow-Methods", resource.allow)

    def _check_key(self, req: falcon.Request) -> None:
        """Compare the bearer token with every key in constant time, whatever bytes it is made of."""
        if not self._keys:
            return
        scheme, _, token = req.env.get("HTTP_AUTHORIZATION", "").partition(" ")
        given = token.strip().encode("latin-1", "replace")
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise HttpFault("auth", headers={"WWW-Authenticate": "Bearer"})
