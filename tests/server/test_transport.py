"""HTTP around the routes: paths, methods, keys, bodies, framing, over real sockets (http.md E01 to E16)."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import Server

Serve = Callable[..., Server]
BODY = b'{"model":"tiny","input":"x"}'
MIB = 1 << 20


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


def head(method: str = "POST", path: str = "/v1/embeddings", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def post(body: bytes = BODY, *headers: str) -> bytes:
    return head("POST", "/v1/embeddings", f"Content-Length: {len(body)}", "Connection: close", *headers) + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def json_of(raw: bytes) -> dict[str, object]:
    return json.loads(raw.partition(b"\r\n\r\n")[2])["error"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", ["/nope", "/v1/embeddings/", "/V1/embeddings", "/", "/v1/rerankers"])
def test_unknown_paths_are_404_whatever_the_method(fleet: Server, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        reply = fleet.request(method, path)
        assert (reply.status, reply.code) == (404, "not_found")
        assert reply.headers["content-type"] == "application/json"


def test_the_query_string_is_ignored(fleet: Server) -> None:
    assert fleet.post(BODY, path="/v1/embeddings?api-version=2").status == 200


def test_other_methods_are_405_as_json_whatever_is_accepted(fleet: Server) -> None:
    reply = fleet.request("GET", "/v1/embeddings", headers={"Accept": "text/html"})
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST, OPTIONS"
    assert fleet.request("POST", "/health").headers["allow"] == "GET, HEAD, OPTIONS"


def test_head_answers_as_get_without_a_body(fleet: Server) -> None:
    reply = fleet.request("HEAD", "/health")
    assert reply.status == 200 and reply.body == b"" and int(reply.headers["content-length"]) > 100
    reply = fleet.request("HEAD", "/v1/embeddings")
    assert reply.status == 405 and reply.body == b""


def test_options_says_what_is_allowed_without_a_key_or_cors(fleet: Server) -> None:
    reply = fleet.request("OPTIONS", "/v1/embeddings", headers={"Origin": "https://a.example"})
    assert reply.status == 204 and reply.headers["allow"] == "POST, OPTIONS" and reply.body == b""
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_generation_routes_are_refused_with_the_body_unread(fleet: Server) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        reply = fleet.post(b"not json", path=path)
        assert (reply.status, reply.code) == (400, "unsupported_capability")
        assert reply.json()["error"]["message"] == "this server does not generate text"


def test_keys_are_asked_for_in_the_order_of_the_contract(serve: Serve, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("third\nfourth\n")
    server = serve("--model", f"tiny={tiny}", "--api-key", "first,second", "--api-key-file", str(tmp_path / "keys"))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic first"}, {"X-Api-Key": "first"}):
        reply = server.post(BODY, headers=headers)
        assert (reply.status, reply.code) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert status_of(server.raw(post(BODY, "Authorization: Bearer \xe9").replace("\xe9".encode(), b"\xe9"))) == 401
    for key in ("first", "second", "third", "fourth"):
        assert server.post(BODY, headers={"authorization": f"bearer {key}"}).status == 200
    assert server.get("/nope").status == 404
    assert server.get("/v1/embeddings").status == 405
    assert server.get("/v1/models").status == 401
    assert [server.get(path).status for path in ("/health", "/ready", "/live")] == [200, 200, 200]
    assert "first" not in server.output and "fourth" not in server.output


def test_request_ids_are_echoed_or_made(fleet: Server) -> None:
    assert fleet.post(BODY, headers={"X-Request-Id": "tide-7"}).headers["x-request-id"] == "tide-7"
    for given in ("x" * 200, "a b", ""):
        made = fleet.post(BODY, headers={"X-Request-Id": given}).headers["x-request-id"]
        assert len(made) == 32 and set(made) <= set("0123456789abcdef")
    assert len(fleet.get("/nope").headers["x-request-id"]) == 32


def test_server_timing_has_all_five_stages(fleet: Server) -> None:
    for body, ran in ((BODY, True), (b"{", False)):
        timing = fleet.post(body).headers["server-timing"]
        stages = dict(part.split(";dur=") for part in timing.split(", "))
        assert list(stages) == ["queue", "parse", "tokenize", "infer", "encode"]
        assert (float(stages["infer"]) > 0) is ran
    assert "server-timing" not in fleet.get("/health").headers


def test_bodies_of_64_mib_are_read_and_larger_ones_refused(fleet: Server) -> None:
    full = BODY + b" " * (64 * MIB - len(BODY))
    assert fleet.post(full).status == 200
    declared = fleet.raw(head("POST", "/v1/embeddings", "Content-Length: 68157440", "Connection: close"))
    assert status_of(declared) == 413 and json_of(declared)["message"] == "request body exceeds 67108864 bytes"


def test_a_chunked_body_is_read_and_one_that_grows_too_large_refused(fleet: Server) -> None:
    start = head("POST", "/v1/embeddings", "Transfer-Encoding: chunked", "Connection: close")
    assert status_of(fleet.raw(start + chunked(BODY[:10], BODY[10:]))) == 200
    with socket.create_connection(("127.0.0.1", fleet.port), timeout=20) as connection:
        connection.sendall(start)
        try:
            for _ in range(65):
                connection.sendall(b"%x\r\n%s\r\n" % (MIB, b" " * MIB))
        except OSError:
            pass  # it has answered and closed
        assert status_of(connection.recv(4096)) == 413


@pytest.mark.parametrize(
    "raw",
    [
        head("POST", "/v1/embeddings", "Transfer-Encoding: chunked") + b"zz\r\nx\r\n0\r\n\r\n",
        head("POST", "/v1/embeddings", "Content-Length: abc"),
        head("POST", "/v1/embeddings", "Content-Length: 5", "Transfer-Encoding: chunked") + chunked(BODY),
        head("POST", "/v1/embeddings", "Transfer-Encoding: gzip, chunked", "Connection: close") + chunked(BODY),
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
    ],
    ids=["chunk size", "length", "length and chunks", "coding", "no request", "version"],
)
def test_broken_framing_is_400_as_json(fleet: Server, raw: bytes) -> None:
    received = fleet.raw(raw, timeout=8)
    assert status_of(received) == 400
    assert json_of(received)["code"] == "bad_request"
    assert b"x-request-id: " in received.lower()


def test_a_body_that_ends_early_is_400(fleet: Server) -> None:
    received = fleet.raw(head("POST", "/v1/embeddings", "Content-Length: 500") + BODY, close_write=True)
    assert status_of(received) == 400 and json_of(received)["code"] == "incomplete_body"


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (head("GET", "/health", "X-Long: " + "y" * 9000), 431, "headers_too_large"),
        (head("GET", "/health", *(f"X-{i}: 1" for i in range(120))), 431, "headers_too_large"),
        (head("GET", "/" + "x" * 5000), 414, "uri_too_long"),
        (post(BODY, "Expect: maybe"), 417, "expectation_failed"),
    ],
    ids=["long field", "many fields", "long line", "expectation"],
)
def test_limits_of_the_http_layer_are_answered_as_json(fleet: Server, raw: bytes, status: int, code: str) -> None:
    received = fleet.raw(raw)
    assert status_of(received) == status
    assert json_of(received)["code"] == code
    assert b"x-request-id: " in received.lower()


def test_expect_100_continue_is_answered(fleet: Server) -> None:
    received = fleet.raw(post(BODY, "Expect: 100-continue"))
    assert received.startswith(b"HTTP/1.1 100") and b"HTTP/1.1 200 OK" in received


@pytest.mark.parametrize("kind", ["text/plain", None])
def test_the_content_type_does_not_matter(fleet: Server, kind: str | None) -> None:
    assert status_of(fleet.raw(post(BODY, *([f"Content-Type: {kind}"] if kind else [])))) == 200


def test_other_content_encodings_are_refused(fleet: Server) -> None:
    reply = fleet.post(BODY, headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.code) == (415, "unsupported_content_encoding")
    assert fleet.post(BODY, headers={"Content-Encoding": "identity"}).status == 200


def test_a_connection_serves_many_requests_and_pipelined_ones(fleet: Server) -> None:
    one = head("POST", "/v1/embeddings", f"Content-Length: {len(BODY)}") + BODY
    received = fleet.raw(one * 3 + post(BODY))
    assert received.count(b"HTTP/1.1 200 OK") == 4


def test_http_1_0_closes_the_connection(fleet: Server) -> None:
    assert b"200 OK" in fleet.raw(b"GET /health HTTP/1.0\r\n\r\n")


def test_a_held_slot_makes_the_next_request_429_while_health_answers(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--max-concurrent-requests", "1")
    with socket.create_connection(("127.0.0.1", server.port)) as holder:
        holder.sendall(head("POST", "/v1/embeddings", "Content-Length: 100") + b"{")
        deadline = time.monotonic() + 10
        while b"ffwd_inflight_requests 1.0" not in server.get("/metrics").body:  # not ours first: it would be refused
            assert time.monotonic() < deadline
        reply = server.post(BODY)
        assert reply.json()["error"] == {
            "message": "server is overloaded",
            "type": "overloaded_error",
            "param": None,
            "code": "overloaded",
        }
        assert reply.headers["retry-after"] == "1"
        assert server.get("/health").status == 200
        holder.sendall(b" " * 100)
    deadline = time.monotonic() + 10
    while server.post(BODY).status != 200:
        assert time.monotonic() < deadline, "the slot was not given back"


def test_a_client_that_sends_a_byte_a_second_holds_nothing_for_long(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
        slow.sendall(b"GET /health HTT")
        started = time.monotonic()
        try:
            while time.monotonic() - started < 25:
                time.sleep(1)
                slow.sendall(b"P")
        except OSError:
            pass
        assert 8 < time.monotonic() - started < 16, "headers have 10 s"


def test_models_lists_labels_and_finds_one_with_a_slash(fleet: Server) -> None:
    listed = fleet.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["tiny", "mrl", "ids", "a/b", "pp"]
    entry = fleet.get("/v1/models/mrl").json()
    assert entry == listed["data"][1]
    assert (entry["dim"], entry["min_dim"], entry["max_tokens"]) == (48, 16, 128)
    assert entry["prompts"] == ["document", "query"] and entry["normalize"] is True
    assert fleet.get("/v1/models/a%2Fb").json()["pooling"] == "cls+mean"
    assert fleet.get("/v1/models/a/b").status == 200
    reply = fleet.get("/v1/models/nope")
    assert (reply.status, reply.code, reply.param) == (404, "model_not_found", "model")


def test_health_reports_settled_values(fleet: Server) -> None:
    body = fleet.get("/health").json()
    assert body["status"] == "serving"
    tiny = body["models"][0]
    assert tiny["label"] == "tiny" and tiny["family"] == "bert" and tiny["provider"] == "cpu"
    assert tiny["execution_providers"] == ["CPUExecutionProvider"] and tiny["precision"] == "f32"
    assert tiny["max_tokens"] == 128 and tiny["max_tokens_bound_by"] == "model positions"
    assert [1, 16] in tiny["prepared_shapes"] and [1, 128] in tiny["prepared_shapes"]
    assert tiny["shapes_not_run"] == [] and len(tiny["weights_sha256"]) == 64 and tiny["rows"] == 512
    assert fleet.get("/ready").json() == {"status": "serving"}
    assert fleet.get("/live").json() == {"status": "alive"}


def test_a_method_nobody_knows_is_405_with_a_request_id(fleet: Server) -> None:
    for method in ("WEBSOCKET", "BREW"):
        reply = fleet.request(method, "/health")
        assert reply.status == 405 and len(reply.headers["x-request-id"]) == 32


def test_an_unread_body_that_never_comes_holds_nothing_for_long(fleet: Server) -> None:
    began = time.monotonic()
    received = fleet.raw(head("POST", "/nope", "Content-Length: 1000"), timeout=30)
    assert status_of(received) == 404 and time.monotonic() - began < 9
    assert "Traceback" not in fleet.output


def test_a_flood_of_wrong_token_ids_is_one_problem(fleet: Server) -> None:
    reply = fleet.post({"model": "ids", "input": [10**6] * 200_000})
    assert reply.status == 422 and len(reply.json()["detail"]) == 1
    assert reply.json()["error"]["code"] == "value_error.context_length"
