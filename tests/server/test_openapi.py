"""The document says what the server does: every route, every error, every answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from ffwd_ort.config import ModelSpec, make_config
from ffwd_ort.engine.engine import Engine
from ffwd_ort.server.app import create_app
from ffwd_ort.server.errors import ANSWERS
from ffwd_ort.server.openapi import document
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.serving import Reply, Server


@pytest.fixture(scope="module")
def server(tiny: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("openapi")
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    arguments = [
        *("--model", f"m={tiny}:rerank=cosine"),
        *("--contextual-model", f"ctx={write_decoder(place / 'ctx', pplx)}:api=perplexity"),
        *("--late-model", f"late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ce={write_cross_encoder(place / 'ce', 'bert')}"),
        *("--api-key", "sesame", "--cache-dir", str(cache_dir)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready()
    yield server
    server.stop()


def ask(server: Server, method: str, path: str, body: Any = None) -> Reply:
    raw = None if body is None else json.dumps(body).encode()
    return server.request(method, path, raw, {"Authorization": "Bearer sesame"})


def check(reply: Reply, path: str) -> None:
    """Hold an answer to the schema that the document has for its route and status."""
    contract = document()
    (route,) = contract["paths"][path].values()
    response = route["responses"][str(reply.status)]
    schema = response["content"]["application/json"]["schema"]
    Draft202012Validator(schema | {"components": contract["components"]}).validate(reply.json())


def test_the_document_is_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(document()).validate()


def test_it_has_every_route_of_the_application_and_no_other() -> None:
    app = create_app(Engine([]), make_config({"model": ("m=x",)}, environ={}))
    served = {path.replace(":path}", "}"): resource.methods[0] for path, resource in app.routes.items()}
    assert {path: next(iter(methods)).upper() for path, methods in document()["paths"].items()} == served
    assert ModelSpec("m", "x") == app.config.models[0]


def test_it_has_every_error_that_is_ever_answered() -> None:
    described = json.dumps(document()["paths"])
    assert [answer.message for answer in ANSWERS.values() if json.dumps(answer.message)[1:-1] not in described] == []


ASKED: list[tuple[str, str, Any]] = [
    ("/v1/embeddings", "/v1/embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "base64"}),
    ("/v1/embeddings", "/v1/embeddings", {"model": "m", "input": "a"}),
    ("/v1/embeddings", "/v1/embeddings", {"model": "m", "input": [""], "dimensions": 3}),
    ("/v1/contextualizedembeddings", "/v1/contextualizedembeddings", {"input": [["a", "b"], ["c"]]}),
    ("/v1/rerank", "/v1/rerank", {"model": "ce", "query": "a", "documents": ["b", {"text": "c"}]}),
    ("/v2/rerank", "/v2/rerank", {"model": "late", "query": "a", "documents": ["b"], "return_documents": True}),
    ("/rerank", "/rerank", {"model": "m", "query": "a", "texts": ["b"], "return_text": True}),
    ("/rerank", "/rerank", {"model": "m", "query": "a", "documents": ["b"], "texts": ["c"]}),
    ("/embed", "/embed", {"inputs": "a", "prompt_name": None}),
    ("/v1/tokenize", "/v1/tokenize", {"model": "ce", "input": ["a"], "query": "b"}),
    ("/v1/chat/completions", "/v1/chat/completions", {}),
    ("/v1/models", "/v1/models", None),
    ("/v1/models/{label}", "/v1/models/late", None),
    ("/v1/models/{label}", "/v1/models/nope", None),
    ("/info", "/info", None),
    ("/health", "/health", None),
    ("/ready", "/ready", None),
    ("/live", "/live", None),
]


@pytest.mark.parametrize(("path", "url", "body"), ASKED, ids=[f"{i}-{url}" for i, (_, url, _) in enumerate(ASKED)])
def test_answers_are_as_the_document_says(server: Server, path: str, url: str, body: Any) -> None:
    check(ask(server, "GET" if body is None else "POST", url, body), path)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/models"])
def test_refusals_are_as_the_document_says(server: Server, path: str) -> None:
    check(server.request("DELETE", path), path)
    check(server.request("GET" if path == "/v1/models" else "POST", path, b"{}"), path)


def test_the_document_and_its_page_are_served_from_the_package_alone(server: Server) -> None:
    assert ask(server, "GET", "/openapi.json").json() == json.loads(json.dumps(document()))
    page = ask(server, "GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    assert "openapi.json" in text and "http://" not in text and "https://" not in text, "nothing comes from elsewhere"
    assert server.request("GET", "/docs").status == 401
