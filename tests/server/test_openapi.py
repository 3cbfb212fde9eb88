"""The document says what the server does: every route, every error, every answer."""

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from ffwd_ort.config import make_config
from ffwd_ort.engine.engine import Engine
from ffwd_ort.server.app import create_app
from ffwd_ort.server.contextual_fields import MAX_CHUNKS
from ffwd_ort.server.contextual_fields import MAX_DOCUMENTS as MAX_CONTEXTUAL
from ffwd_ort.server.errors import ANSWERS, MAX_BODY_BYTES
from ffwd_ort.server.fields import DIRECTIONS
from ffwd_ort.server.rerank_fields import MAX_DOCUMENTS
from ffwd_ort.server.validation import MAX_INPUTS, TEXT_TYPES
from ffwd_ort.version import VERSION
from tests.contract import Answers, Json, load, operations, resolve
from tests.fuzzing import start_fleet
from tests.serving import Reply, Server

DOCUMENT = load()
ANSWER = Answers(DOCUMENT)
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Server]:
    """A server with a label of every kind."""
    server = start_fleet(tmp_path_factory.mktemp("openapi"), cache_dir)
    yield server
    server.stop()


def faults(reply: Reply, path: str, method: str = "post") -> list[str]:
    return ANSWER.faults(path, method, reply.status, reply.headers, reply.body)


def every_object(node: Any) -> Iterator[Json]:
    if isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from every_object(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from every_object(inner)


# --- the document -------------------------------------------------------------------------------------


def test_the_document_is_openapi_3_1_of_this_version() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", VERSION)


def test_it_has_every_route_of_the_application_and_no_other() -> None:
    app = create_app(Engine([]), make_config({"model": ("m=x",)}, environ={}))
    served = {
        (path.replace(":path}", "}"), method.lower())
        for path, resource in app.routes.items()
        for method in resource.methods
        if method != "HEAD"
    }
    assert set(operations(DOCUMENT)) == served


def test_it_says_which_routes_need_a_key() -> None:
    app = create_app(Engine([]), make_config({"model": ("m=x",)}, environ={}))
    public = {path for path, resource in app.routes.items() if resource.public}
    assert {path for (path, _), operation in operations(DOCUMENT).items() if operation.get("security") == []} == public


def test_every_error_that_is_ever_answered_is_an_example_in_it() -> None:
    shown = [node["error"] for node in every_object(DOCUMENT["components"]["responses"]) if "error" in node]
    for kind, answer in ANSWERS.items():
        param = "model" if kind == "model_not_found" else None
        assert {"message": answer.message, "type": answer.type, "param": param, "code": answer.code} in shown


def test_every_status_of_the_contract_is_given_to_a_route() -> None:
    given = {int(status) for operation in operations(DOCUMENT).values() for status in operation["responses"]}
    assert given == {200, 422, *(answer.status for answer in ANSWERS.values())}


def test_limits_and_names_are_the_servers_own() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Texts"]["maxItems"] == MAX_INPUTS
    assert schemas["ContextualRequest"]["properties"]["input"]["maxItems"] == MAX_CONTEXTUAL
    assert schemas["ContextualRequest"]["properties"]["input"]["items"]["maxItems"] == MAX_CHUNKS
    assert schemas["RerankRequest"]["properties"]["documents"]["maxItems"] == MAX_DOCUMENTS
    assert schemas["TextsRequest"]["properties"]["texts"]["maxItems"] == MAX_DOCUMENTS
    assert schemas["TruncationDirection"]["enum"] == list(DIRECTIONS)
    assert schemas["TextType"]["enum"] == list(TEXT_TYPES["text_type"])
    assert schemas["InputType"]["enum"] == list(TEXT_TYPES["input_type"])
    assert str(MAX_BODY_BYTES) in DOCUMENT["info"]["description"]


@pytest.mark.parametrize(("path", "method"), operations(DOCUMENT), ids=lambda part: str(part))
def test_examples_are_what_their_schemas_describe(path: str, method: str) -> None:
    """Bodies that are shown fit, and so do answers; each of an error's examples is one that could be sent."""
    operation = operations(DOCUMENT)[path, method]
    contents = [resolve(DOCUMENT, response)["content"] for response in operation["responses"].values()]
    contents += [operation["requestBody"]["content"]] if "requestBody" in operation else []
    for media in (media for content in contents for media in content.values()):
        shown = [media["example"]] if "example" in media else []
        for example in [*shown, *(example["value"] for example in media.get("examples", {}).values())]:
            Draft202012Validator({"allOf": [media["schema"]], "components": DOCUMENT["components"]}).validate(example)


def test_every_component_is_used() -> None:
    used = {node["$ref"] for node in every_object(DOCUMENT) if isinstance(node.get("$ref"), str)}
    kinds = ("schemas", "responses", "headers", "parameters")
    components = {f"#/components/{kind}/{name}" for kind in kinds for name in DOCUMENT["components"][kind]}
    assert used == components


# --- answers ------------------------------------------------------------------------------------------

ASKED: list[tuple[str, Json]] = [
    ("/v1/embeddings", {"model": "tiny", "input": "kelp"}),
    ("/v1/embeddings", {"model": "tiny", "input": ["kelp", "tide"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"model": "mrl", "input": "kelp", "dimensions": 16, "input_type": "search_query"}),
    ("/v1/embeddings", {"model": "ids", "input": [[5, 6], [7]]}),
    ("/v1/embeddings", {"model": "pp", "input": "kelp", "encoding_format": "base64_binary"}),
    ("/v1/embeddings", {"model": "tiny", "input": "the tide " * 200, "truncate": True}),
    ("/v1/contextualizedembeddings", {"input": [["kelp", "tide"], ["boat"]]}),
    ("/v1/rerank", {"model": "ce", "query": "a", "documents": ["b", {"text": "c", "id": 9}], "return_documents": True}),
    ("/v2/rerank", {"model": "late", "query": "a", "documents": ["b"], "top_k": 4}),
    ("/rerank", {"model": "cosr", "query": "a", "documents": ["b"]}),
    ("/rerank", {"model": "ce", "query": "a", "texts": ["b", "c"], "return_text": True, "top_n": None}),
    ("/embed", {"model": "tiny", "inputs": ["kelp"], "prompt_name": None, "dimensions": None}),
    ("/v1/tokenize", {"model": "ce", "input": ["tide"], "query": "kelp"}),
    ("/v1/tokenize", {"model": "late", "input": "tide", "text_type": "query"}),
]
REFUSED: list[tuple[str, Json]] = [
    ("/v1/embeddings", {"model": "nope", "input": ["a", 1, ""], "dimensions": "8"}),
    ("/v1/embeddings", {"model": "tiny", "input": [1, 2]}),
    ("/v1/contextualizedembeddings", {"input": [["", 1], []]}),
    ("/v1/rerank", {}),
    ("/rerank", {"query": "a", "documents": ["b"], "texts": ["c"]}),
    ("/embed", {"model": "tiny", "inputs": "a", "normalize": False}),
    ("/v1/tokenize", {"model": "tiny", "input": "a", "query": "b"}),
]
GETS = ["/v1/models", "/v1/models/tiny", "/v1/models/a%2Fb", "/info", "/health", "/ready", "/live"]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_answers_are_as_the_document_says(every: Server, path: str, body: Json) -> None:
    reply = every.post(body, path)
    assert (reply.status, faults(reply, path)) == (200, []), reply.body


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_refusals_are_as_the_document_says(every: Server, path: str, body: Json) -> None:
    reply = every.post(body, path)
    assert (reply.status, faults(reply, path)) == (422, [])


@pytest.mark.parametrize("url", [*GETS, "/openapi.json", "/docs", "/metrics"])
def test_facts_are_as_the_document_says(every: Server, url: str) -> None:
    path = "/v1/models/{label}" if url.startswith("/v1/models/") else url
    reply = every.get(url)
    assert (reply.status, faults(reply, path, "get")) == (200, [])


def test_a_field_that_the_document_does_not_name_would_be_noticed(every: Server) -> None:
    reply = every.get("/ready")
    reply.body = b'{"status":"serving","mood":"calm"}'
    assert any("mood" in fault for fault in faults(reply, "/ready", "get"))


def test_errors_that_any_route_can_answer_are_as_the_document_says(every: Server) -> None:
    long = "x" * 9000
    for (path, method), operation in operations(DOCUMENT).items():
        url = path.replace("{label}", "tiny")
        asked = [every.request("DELETE", url), every.request(method.upper(), url, headers={"X-Long": long})]
        asked.append(every.request(method.upper(), f"{url}?{long[:5000]}"))
        asked.append(every.request(method.upper(), url, b"", {"Expect": "me"}))
        if "415" in operation["responses"]:
            asked.append(every.request("POST", url, b"{}", {"Content-Encoding": "gzip"}))
        assert [reply.status for reply in asked] == [405, 431, 414, 417, 415][: len(asked)], path
        assert [faults(reply, path, method) for reply in asked] == [[]] * len(asked), path


def test_what_is_not_there_is_said_as_documented(every: Server) -> None:
    assert faults(every.get("/v1/models/nope"), "/v1/models/{label}", "get") == []
    (known,) = DOCUMENT["x-any-other-path"].items()
    reply = every.get("/nope")
    example = resolve(DOCUMENT, known[1])["content"]["application/json"]["example"]
    assert (str(reply.status), reply.json()) == (known[0], example)


def test_generation_is_refused_as_documented(every: Server) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert faults(every.post({"messages": []}, path), path) == []


def test_with_a_key_and_status_400_and_before_it_serves_all_is_as_documented(
    serve: Callable[..., Server], tiny: Path
) -> None:
    options = ["--model", f"m={tiny}", "--api-key", "sesame", "--validation-status", "400"]
    server = serve(*options)
    for path, method in operations(DOCUMENT):
        reply = server.request(method.upper(), path.replace("{label}", "m"), b"" if method == "post" else None)
        assert faults(reply, path, method) == [], path
        assert (reply.status == 200) is (path in ("/health", "/ready", "/live")), "all others are behind the key"
    refused = server.post({}, headers=KEY)
    assert (refused.status, faults(refused, "/v1/embeddings")) == (400, [])


def test_a_server_that_is_loading_answers_as_documented(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"m={tiny}", wait=False)
    seen = set()
    while 200 not in seen:
        try:
            reply = server.get("/ready")
        except OSError:
            assert server.process.poll() is None
            continue
        seen.add(reply.status)
        assert faults(reply, "/ready", "get") == []
        assert faults(server.get("/health"), "/health", "get") == []
        assert faults(server.get("/v1/models"), "/v1/models", "get") == []
        assert faults(server.post({"input": "x"}), "/v1/embeddings") == []
        assert server.get("/openapi.json").json() == DOCUMENT, "in every state"


# --- the page -----------------------------------------------------------------------------------------


def test_the_document_and_its_page_are_behind_the_key(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"m={tiny}", "--api-key", "sesame")
    for path in ("/openapi.json", "/docs"):
        assert server.get(path).status == 401
        assert server.get(path, headers=KEY).status == 200
        head = server.request("HEAD", path, headers=KEY)
        assert (head.status, head.body) == (200, b"")
    assert server.get("/docs", headers=KEY).headers["content-type"] == "text/html; charset=utf-8"


def test_the_page_fetches_the_document_and_nothing_else(every: Server) -> None:
    page = every.get("/docs").body.decode()
    assert 'fetch("openapi.json"' in page
    for way_out in ("http://", "https://", "//cdn", "src=", "@import", " url(", "innerHTML", "insertAdjacentHTML"):
        assert way_out not in page, way_out
    assert "default-src 'none'" in page and "connect-src 'self'" in page


def test_the_document_is_readable_as_it_is() -> None:
    text = files("ffwd_ort.server").joinpath("assets", "openapi.json").read_text()
    assert text.count("\n") > 500 and json.loads(text) == DOCUMENT
