"""The WSGI application: every route on one screen."""

import logging
from collections.abc import Mapping
from typing import Any

import falcon

from ffwd_ort.config import ServerConfig
from ffwd_ort.engine.engine import Engine
from ffwd_ort.errors import RequestError
from ffwd_ort.server import responses
from ffwd_ort.server.access_log import AccessLog
from ffwd_ort.server.body import BodyBudget
from ffwd_ort.server.contextual import Contextualized
from ffwd_ort.server.documents import Docs, OpenApi
from ffwd_ort.server.embeddings import Embed, Embeddings
from ffwd_ort.server.errors import HttpFault, Invalid, fault_of
from ffwd_ort.server.fields import RequestRules
from ffwd_ort.server.info import Info, Page
from ffwd_ort.server.metrics import Metrics
from ffwd_ort.server.middleware import Account, Admission, Gate, PostResource, Resource
from ffwd_ort.server.models import Models
from ffwd_ort.server.rerank import EitherRerank, Rerank
from ffwd_ort.server.status import Health, Live, Ready
from ffwd_ort.server.tokenize import Tokenize
from ffwd_ort.server.validation import MAX_INPUTS

log = logging.getLogger(__name__)


class Application(falcon.App[falcon.Request, falcon.Response]):
    """The WSGI callable, with the engine that its process starts and closes."""

    engine: Engine
    config: ServerConfig
    metrics: Metrics
    routes: Mapping[str, Resource]

    def publish_metrics(self) -> None:
        """Make the series that can be expected be there, now that labels and their shapes are known."""
        models = {label: model.served for label, model in self.engine.models.items()}
        serving = {
            path.replace(":path}", "}"): (
                "POST" in resource.methods,
                [label for label, model in models.items() if resource.serves(model)],
            )
            for path, resource in self.routes.items()
        }
        self.metrics.publish(self.engine.models, serving, self.config.validation_status)


def create_app(engine: Engine, config: ServerConfig) -> Application:
    """Make the application. Cheap, and opens nothing: the engine is started by whoever owns the process."""
    metrics = Metrics()
    engine.on_step = metrics.step_done
    engine.watch_queue(metrics.queued.set)
    admission = Admission(config.requests_per_worker, metrics.inflight.set)
    rules = RequestRules(config.rows, config.max_request_tokens, config.auto_truncate)
    labels = [spec.label for spec in config.models]
    status = (engine, labels, min(MAX_INPUTS, config.rows or MAX_INPUTS))
    model_route = (engine, BodyBudget(), rules, config.request_timeout, metrics)
    routes: dict[str, Resource] = {
        "/v1/embeddings": Embeddings(*model_route),
        "/v1/contextualizedembeddings": Contextualized(*model_route),
        "/v1/rerank": Rerank(*model_route),
        "/v2/rerank": Rerank(*model_route),
        "/rerank": EitherRerank(*model_route),
        "/embed": Embed(*model_route),
        "/v1/tokenize": Tokenize(*model_route),
        "/v1/chat/completions": Generation(),
        "/v1/completions": Generation(),
        "/info": Info(engine, config),
        "/openapi.json": OpenApi(),
        "/docs": Docs(),
        "/metrics": Page(metrics, config.metrics_public),
        "/health": Health(*status),
        "/ready": Ready(*status),
        "/live": Live(*status),
    }
    models = Models(engine, dict(routes))
    routes |= {"/v1/models": models, "/v1/models/{label:path}": models}

    access = AccessLog(config.log_format, config.verbose)
    gate = Gate(engine, admission, config.api_keys, metrics, access, config.cors_origin)
    app = Application(media_type=falcon.MEDIA_JSON, middleware=[gate])
    app.engine, app.config, app.metrics, app.routes = engine, config, metrics, routes
    for path, resource in routes.items():
        app.add_route(path, resource)

    app.add_error_handler(Exception, _internal)
    app.add_error_handler(falcon.HTTPError, lambda req, resp, error, params: _answer(req, resp, HttpFault("bad_http")))
    app.add_error_handler(
        falcon.HTTPBadRequest, lambda req, resp, error, params: _answer(req, resp, HttpFault("method"))
    )
    app.add_error_handler(
        falcon.HTTPNotFound, lambda req, resp, error, params: _answer(req, resp, HttpFault("not_found"))
    )
    app.add_error_handler(RequestError, lambda req, resp, error, params: _answer(req, resp, fault_of(error)))
    app.add_error_handler(HttpFault, lambda req, resp, error, params: _answer(req, resp, error))
    app.add_error_handler(
        Invalid, lambda req, resp, error, params: _invalid(req, resp, error, config.validation_status)
    )
    return app


class Generation(PostResource):
    """Routes of chat servers, so that a client pointed here by mistake is told so; in any server state."""

    states = None
    admits = False

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Refuse; the body is not read."""
        raise HttpFault("generation")


def _answer(req: falcon.Request, resp: falcon.Response, fault: HttpFault) -> None:
    _refused(req, fault.kind)
    resp.status = falcon.code_to_http_status(fault.answer.status)
    resp.data = responses.encode(responses.plain_error(fault.answer, fault.param))
    for name, value in fault.headers.items():
        resp.set_header(name, value)
    if fault.answer.retry_after is not None:
        resp.set_header("Retry-After", str(fault.answer.retry_after))


def _invalid(req: falcon.Request, resp: falcon.Response, error: Invalid, status: int) -> None:
    _refused(req, "validation")
    resp.status = falcon.code_to_http_status(status)
    resp.data = responses.encode(responses.validation_error(error.problems))


def _refused(req: falcon.Request, kind: str) -> None:
    account: Account | None = getattr(req.context, "account", None)
    if account is not None:
        account.refusal = kind


def _internal(req: falcon.Request, resp: falcon.Response, error: Exception, params: Any) -> None:
    log.error("%s %s failed", req.method, req.path, exc_info=error)
    _answer(req, resp, HttpFault("internal"))
