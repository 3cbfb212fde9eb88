"""The contract as an OpenAPI 3.1 document (GET /openapi.json), and a page for people (GET /docs).

Built of tables: the routes with their fields and statuses here, the errors of errors.py. It names limits, not labels,
so it is the same for every server of a version.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import falcon

from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import responses
from ffwd_ort.server.contextual_fields import MAX_CHUNKS
from ffwd_ort.server.contextual_fields import MAX_DOCUMENTS as CONTEXTUAL_DOCUMENTS
from ffwd_ort.server.errors import ANSWERS
from ffwd_ort.server.middleware import Resource
from ffwd_ort.server.rerank_fields import MAX_DOCUMENTS
from ffwd_ort.server.validation import MAX_INPUTS, TEXT_TYPES
from ffwd_ort.version import VERSION

Schema = dict[str, Any]
FORMATS = tuple(dict.fromkeys(name for codec in CODECS.values() for name in codec))

TEXT: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
ANY_COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
LABEL: Schema = {"type": "string", "description": "A label; may be left out where one label serves the route."}
DIRECTION: Schema = {"type": "string", "enum": ["right", "left", "Right", "Left"], "default": "right"}
TRUNCATE: Schema = {**BOOLEAN, "description": "Cut what is too long instead of refusing it."}
TOKEN_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def texts(most: int, item: Schema = TEXT) -> Schema:
    """Return the schema of a list of so many texts."""
    return {"type": "array", "items": item, "minItems": 1, "maxItems": most}


def ref(name: str) -> Schema:
    """Refer to a schema of the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object; fields that are not named are ignored, or may be there."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


PROMPTS: dict[str, Schema] = {
    **{name: {"type": "string", "enum": list(values)} for name, values in TEXT_TYPES.items()},
    "prompt_name": {"type": "string", "description": "A key of the label's prompts."},
}
CUTS: dict[str, Schema] = {"truncate": TRUNCATE, "truncation_direction": DIRECTION}
VECTORS: dict[str, Schema] = {
    "dimensions": {**COUNT, "description": "Cut vectors to their first values."},
    "encoding_format": {"type": "string", "enum": list(FORMATS), "description": "Which are permitted is the label's."},
}
RANKING: dict[str, Schema] = {
    "top_n": COUNT,
    "top_k": COUNT,
    "max_tokens_per_doc": COUNT,
    "raw_scores": BOOLEAN,
    **CUTS,
}
EITHER_TEXTS = {"anyOf": [TEXT, texts(MAX_INPUTS)]}
EMBEDDING = {"anyOf": [{"type": "array", "items": NUMBER}, {"type": "string", "contentEncoding": "base64"}]}
USAGE = record({"prompt_tokens": ANY_COUNT, "total_tokens": ANY_COUNT})
ENTRY = record({"object": {"const": "embedding"}, "index": ANY_COUNT, "embedding": EMBEDDING})
LISTED: dict[str, Schema] = {"object": {"const": "list"}}
STATE = record({"status": {"type": "string", "enum": ["starting", "serving", "failed", "draining"]}})

SCHEMAS: Mapping[str, Schema] = {
    "Error": record(
        {
            "error": record(
                {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": "string"},
                }
            )
        }
    ),
    "ValidationError": {
        "allOf": [
            ref("Error"),
            record(
                {
                    "detail": {
                        "type": "array",
                        "minItems": 1,
                        "items": record(
                            {
                                "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                                "msg": {"type": "string"},
                                "type": {"type": "string"},
                            }
                        ),
                    }
                }
            ),
        ]
    },
    "EmbeddingsRequest": record(
        {"input": {"anyOf": [TEXT, texts(MAX_INPUTS), TOKEN_IDS, texts(MAX_INPUTS, TOKEN_IDS)]}},
        {
            "model": LABEL,
            **VECTORS,
            "pooling": {"type": "string", "enum": ["mean", "cls", "last"]},
            **PROMPTS,
            **CUTS,
            "user": {},
        },
    ),
    "Embeddings": record({**LISTED, "data": {"type": "array", "items": ENTRY}, "model": LABEL, "usage": USAGE}),
    "ContextualizedRequest": record(
        {"input": texts(CONTEXTUAL_DOCUMENTS, texts(MAX_CHUNKS))}, {"model": LABEL, **VECTORS, **CUTS}
    ),
    "Contextualized": record(
        {
            **LISTED,
            "data": {
                "type": "array",
                "items": record({**LISTED, "index": ANY_COUNT, "data": {"type": "array", "items": ENTRY}}),
            },
            "model": LABEL,
            "usage": USAGE,
        }
    ),
    "RerankRequest": record(
        {"query": TEXT, "documents": texts(MAX_DOCUMENTS, {"anyOf": [TEXT, record({"text": TEXT})]})},
        {"model": LABEL, "return_documents": BOOLEAN, **RANKING},
    ),
    "Rerank": record(
        {
            **LISTED,
            "id": {"type": "string"},
            "model": LABEL,
            "results": {
                "type": "array",
                "items": record({"index": ANY_COUNT, "relevance_score": NUMBER}, {"document": {}}),
            },
            "usage": record(
                dict.fromkeys(("query_tokens", "document_tokens", "total_tokens", "prompt_tokens"), ANY_COUNT)
            ),
        }
    ),
    "TeiRerankRequest": record(
        {"query": TEXT, "texts": texts(MAX_DOCUMENTS)}, {"model": LABEL, "return_text": BOOLEAN, **RANKING}
    ),
    "TeiRerank": {
        "type": "array",
        "items": record({"index": ANY_COUNT, "score": NUMBER}, {"text": {"type": "string"}}),
    },
    "EmbedRequest": record(
        {"inputs": EITHER_TEXTS},
        {
            "model": LABEL,
            "dimensions": COUNT,
            "prompt_name": {"type": ["string", "null"]},
            "normalize": {"type": ["boolean", "null"]},
            **CUTS,
        },
    ),
    "Embed": {"type": "array", "items": {"type": "array", "items": NUMBER}},
    "TokenizeRequest": record({"input": EITHER_TEXTS}, {"model": LABEL, "query": TEXT, **PROMPTS, **CUTS}),
    "Tokenize": record(
        {
            **LISTED,
            "model": LABEL,
            "max_tokens": ANY_COUNT,
            "data": {
                "type": "array",
                "items": record(
                    {
                        "object": {"const": "tokens"},
                        "index": ANY_COUNT,
                        "token_count": ANY_COUNT,
                        "ids": {"type": "array", "items": ANY_COUNT},
                        "truncated": BOOLEAN,
                        "exceeds_limit": BOOLEAN,
                    }
                ),
            },
            "total_tokens": ANY_COUNT,
        }
    ),
    "Model": record(
        {
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": ANY_COUNT,
            "owned_by": {"const": "ffwd_ort"},
            "kind": {"type": "string", "enum": ["embedding", "contextual", "late", "cross_encoder"]},
            "routes": {"type": "array", "items": {"type": "string"}},
            "dim": ANY_COUNT,
            "min_dim": ANY_COUNT,
            "max_tokens": ANY_COUNT,
            "api": {"type": "string", "enum": list(CODECS)},
            "encoding_formats": {"type": "array", "items": {"type": "string"}},
            "pooling": {"type": ["string", "null"]},
            "normalize": BOOLEAN,
            "prompts": {"type": "array", "items": {"type": "string"}},
            "scorer": {"type": ["string", "null"], "enum": ["maxsim", "logit", "cosine", None]},
            "token_ids": {"type": "string", "enum": ["refuse", "accept"]},
        }
    ),
    "Models": record({**LISTED, "data": {"type": "array", "items": ref("Model")}}),
    "Info": record({"name": {"const": "ffwd_ort"}, "version": {"type": "string"}, "models": {"type": "array"}}),
    "State": STATE,
    "Alive": record({"status": {"const": "alive"}}),
}

# Statuses, by what can go wrong. 422 and 400: which of them answers a body that is refused is the operator's.
LISTENING = (400, 401, 405, 408, 414, 417, 431)
RUNNING = (*LISTENING, 413, 415, 422, 429, 500, 503)
POSTS: Mapping[str, tuple[str, str, str]] = {
    "/v1/embeddings": ("One vector per text", "EmbeddingsRequest", "Embeddings"),
    "/v1/contextualizedembeddings": ("One vector per chunk", "ContextualizedRequest", "Contextualized"),
    "/v1/rerank": ("Documents by descending score", "RerankRequest", "Rerank"),
    "/v2/rerank": ("Documents by descending score", "RerankRequest", "Rerank"),
    "/rerank": ("The same, or in TEI's shape", "RerankRequest|TeiRerankRequest", "Rerank|TeiRerank"),
    "/embed": ("Vectors in TEI's shape", "EmbedRequest", "Embed"),
    "/v1/tokenize": ("Token ids and counts; nothing is run", "TokenizeRequest", "Tokenize"),
}
GETS: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
    "/v1/models": ("Labels and their settings", "Models", (*LISTENING, 503)),
    "/v1/models/{label}": ("One label's settings", "Model", (*LISTENING, 404, 503)),
    "/info": ("Facts about the server", "Info", LISTENING),
    "/health": ("The state, with everything settled about every label", "State", (503,)),
    "/ready": ("Whether requests are served now", "State", (503,)),
    "/live": ("Whether the process answers", "Alive", ()),
}
PAGES: Mapping[str, tuple[str, str]] = {
    "/metrics": ("Prometheus' text", "text/plain"),
    "/openapi.json": ("This document", "application/json"),
    "/docs": ("This document for people", "text/html"),
}
PUBLIC = ("/health", "/ready", "/live")
HEADERS = {
    "X-Request-Id": {"description": "The client's id, or 32 hex digits", "schema": {"type": "string"}},
    "Server-Timing": {"description": "Milliseconds of each stage", "schema": {"type": "string"}},
    "X-Truncated": {"description": "How many texts were cut", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds", "schema": {"type": "string"}},
}


def _header(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _any(names: str) -> Schema:
    """Refer to a schema, or to either of two."""
    found = [ref(name) for name in names.split("|")]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _refusals(statuses: tuple[int, ...], *, validated: bool = False, state: bool = False) -> Schema:
    """Describe the answers other than 200, by the errors of each status."""
    out: Schema = {}
    for status in sorted(set(statuses)):
        said = [answer.message for answer in ANSWERS.values() if answer.status == status]
        schema = ref("Error")
        if validated and status in (400, 422):
            said, schema = [*said, "a field that is refused"], _any("ValidationError|Error")
        if state and status == 503:
            said, schema = ["the state is not `serving`"], ref("State")
        headers = _header("X-Request-Id", *(["Retry-After"] if status in (429, 503) else []))
        content = {"application/json": {"schema": schema}}
        out[str(status)] = {"description": "; ".join(said) or "refused", "headers": headers, "content": content}
    return out


def _post(summary: str, request: str, answer: str) -> Schema:
    headers = _header("X-Request-Id", "Server-Timing", "X-Truncated")
    good = {"description": summary, "headers": headers, "content": {"application/json": {"schema": _any(answer)}}}
    body = {"required": True, "content": {"application/json": {"schema": _any(request)}}}
    return {"summary": summary, "requestBody": body, "responses": {"200": good, **_refusals(RUNNING, validated=True)}}


def _get(path: str, summary: str, answer: str, statuses: tuple[int, ...]) -> Schema:
    good = {
        "description": summary,
        "headers": _header("X-Request-Id"),
        "content": {"application/json": {"schema": ref(answer)}},
    }
    made: Schema = {
        "summary": summary,
        "responses": {"200": good, **_refusals(statuses, state=path in PUBLIC)},
    }
    if "{label}" in path:
        made["parameters"] = [{"name": "label", "in": "path", "required": True, "schema": {"type": "string"}}]
    return made | ({"security": []} if path in PUBLIC else {})


def _page(summary: str, media: str) -> Schema:
    good = {"description": summary, "headers": _header("X-Request-Id"), "content": {media: {}}}
    return {"summary": summary, "responses": {"200": good, **_refusals(LISTENING)}}


@cache
def document() -> Schema:
    """Build the document."""
    generation = {
        "summary": "Refused: this server does not generate text",
        "responses": _refusals((*LISTENING, 413)),
    }
    paths: dict[str, Schema] = {path: {"post": _post(*row)} for path, row in POSTS.items()}
    paths |= {path: {"post": generation} for path in ("/v1/chat/completions", "/v1/completions")}
    paths |= {path: {"get": _get(path, *row)} for path, row in GETS.items()}
    paths |= {path: {"get": _page(*row)} for path, row in PAGES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ffwd_ort",
            "version": VERSION,
            "summary": "Text embeddings and reranking on ONNX Runtime",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "headers": HEADERS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class OpenApi(Resource):
    """The document, in every state."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the document."""
        resp.data = responses.encode(document())

    on_head = on_get


class Docs(Resource):
    """A page that shows the document, of packaged files alone."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the page."""
        resp.content_type = "text/html; charset=utf-8"
        resp.data = page()

    on_head = on_get


@cache
def page() -> bytes:
    """Read the page."""
    return files("ffwd_ort.server").joinpath("docs.html").read_bytes()
