"""The WSGI application: every route on one screen."""

import logging
from typing import Any

import falcon

from ffwd_ort.config import ServerConfig
from ffwd_ort.engine.engine import Engine
from ffwd_ort.errors import RequestError
from ffwd_ort.server import responses
from ffwd_ort.server.body import BodyBudget
from ffwd_ort.server.contextual import Contextualized
from ffwd_ort.server.embeddings import Embeddings
from ffwd_ort.server.errors import HttpFault, Invalid, fault_of
from ffwd_ort.server.fields import RequestRules
from ffwd_ort.server.middleware import Admission, Gate, PostResource
from ffwd_ort.server.models import RERANK_PATHS, Models
from ffwd_ort.server.rerank import Rerank
from ffwd_ort.server.status import Health, Live, Ready
from ffwd_ort.server.validation import MAX_INPUTS

log = logging.getLogger(__name__)


class Application(falcon.App[falcon.Request, falcon.Response]):
    """The WSGI callable, with the engine that its process starts and closes."""

    engine: Engine
    config: ServerConfig


def create_app(engine: Engine, config: ServerConfig) -> Application:
    """Make the application. Cheap, and opens nothing: the engine is started by whoever owns the process."""
    admission = Admission(config.requests_per_worker)
    budget = BodyBudget()
    rules = RequestRules(config.rows, config.max_request_tokens, config.auto_truncate)
    labels = [spec.label for spec in config.models]
    status = (engine, labels, min(MAX_INPUTS, config.rows or MAX_INPUTS))

    app = Application(media_type=falcon.MEDIA_JSON, middleware=[Gate(engine, admission, config.api_keys)])
    app.engine, app.config = engine, config
    model_route = (engine, budget, rules, config.request_timeout)
    app.add_route("/v1/embeddings", Embeddings(*model_route))
    app.add_route("/v1/contextualizedembeddings", Contextualized(*model_route))
    for path in RERANK_PATHS:
        app.add_route(path, Rerank(*model_route))
    app.add_route("/v1/chat/completions", Generation())
    app.add_route("/v1/completions", Generation())
    app.add_route("/v1/models", Models(engine))
    app.add_route("/v1/models/{label:path}", Models(engine))
    app.add_route("/health", Health(*status))
    app.add_route("/ready", Ready(*status))
    app.add_route("/live", Live(*status))

    app.add_error_handler(Exception, _internal)
    app.add_error_handler(falcon.HTTPError, lambda req, resp, error, params: _answer(resp, HttpFault("bad_http")))
    app.add_error_handler(falcon.HTTPBadRequest, lambda req, resp, error, params: _answer(resp, HttpFault("method")))
    app.add_error_handler(falcon.HTTPNotFound, lambda req, resp, error, params: _answer(resp, HttpFault("not_found")))
    app.add_error_handler(RequestError, lambda req, resp, error, params: _answer(resp, fault_of(error)))
    app.add_error_handler(HttpFault, lambda req, resp, error, params: _answer(resp, error))
    app.add_error_handler(Invalid, lambda req, resp, error, params: _invalid(resp, error, config.validation_status))
    return app


class Generation(PostResource):
    """Routes of chat servers, so that a client pointed here by mistake is told so; in any server state."""

    states = None
    admits = False

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Refuse; the body is not read."""
        raise HttpFault("generation")


def _answer(resp: falcon.Response, fault: HttpFault) -> None:
    resp.status = falcon.code_to_http_status(fault.answer.status)
    resp.data = responses.encode(responses.plain_error(fault.answer, fault.param))
    for name, value in fault.headers.items():
        resp.set_header(name, value)
    if fault.answer.retry_after is not None:
        resp.set_header("Retry-After", str(fault.answer.retry_after))


def _invalid(resp: falcon.Response, error: Invalid, status: int) -> None:
    resp.status = falcon.code_to_http_status(status)
    resp.data = responses.encode(responses.validation_error(error.problems))


def _internal(req: falcon.Request, resp: falcon.Response, error: Exception, params: Any) -> None:
    log.error("%s %s failed", req.method, req.path, exc_info=error)
    _answer(resp, HttpFault("internal"))
