"""Rows of http.md section 16 below the routes: framing, limits of the HTTP layer, a full server."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.test_transport import chunked, head, status_of
from tests.serving import Server

E = "/v1/embeddings"
BODY = b'{"model":"mini","input":"x"}'
LENGTH = f"Content-Length: {len(BODY)}"
CODED = "Transfer-Encoding: gzip, chunked"

# (row, request as sent, status, code). None of them asks for the connection to be closed.
REFUSED: list[tuple[str, bytes, int, str]] = [
    ("E09", head("POST", E, "Transfer-Encoding: chunked") + b"zz\r\nx\r\n0\r\n\r\n", 400, "bad_request"),
    ("E09", head("POST", E, "Content-Length: abc"), 400, "bad_request"),
    ("E09", head("POST", E, LENGTH, "Transfer-Encoding: chunked") + chunked(BODY), 400, "bad_request"),
    ("E09", head("POST", E, CODED) + chunked(BODY), 400, "bad_request"),
    ("E11", head("GET", "/health", "X-Long: " + "y" * 9000), 431, "headers_too_large"),
    ("E11", head("GET", "/health", *(f"X-{i}: 1" for i in range(120))), 431, "headers_too_large"),
    ("E11", head("GET", "/" + "x" * 5000), 414, "uri_too_long"),
    ("E12", head("POST", E, LENGTH, "Expect: maybe") + BODY, 417, "expectation_failed"),
]


def exchange(server: Server, raw: bytes) -> bytes:
    """Send a request and read until the server closes; a connection that stays open is a TimeoutError."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(raw)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


@pytest.mark.parametrize(
    ("row", "raw", "status", "code"), REFUSED, ids=[f"{case[0]}-{i}" for i, case in enumerate(REFUSED)]
)
def test_row(edge: Server, row: str, raw: bytes, status: int, code: str) -> None:
    again = head("GET", "/live")
    received = exchange(edge, raw + again)
    assert status_of(received) == status, row
    assert received.count(b"HTTP/1.1 ") == 1, "the connection closes: what follows is not answered"
    top, _, body = received.partition(b"\r\n\r\n")
    assert b"x-request-id: " in top.lower() and b"content-type: application/json" in top.lower()
    assert json.loads(body)["error"]["code"] == code


def test_e10_a_body_that_ends_early_is_400(edge: Server) -> None:
    received = edge.raw(head("POST", E, "Content-Length: 500") + BODY, close_write=True)
    assert status_of(received) == 400
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "incomplete_body"


def test_e12_the_client_that_asks_is_told_to_continue_before_its_body(edge: Server) -> None:
    with socket.create_connection(("127.0.0.1", edge.port), timeout=10) as connection:
        connection.sendall(head("POST", E, LENGTH, "Expect: 100-continue", "Connection: close"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert status_of(connection.recv(65536)) == 200


def test_e15_above_the_limit_nothing_is_parsed_or_tokenised(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"mini={tiny}", "--max-concurrent-requests", "1")
    with socket.create_connection(("127.0.0.1", server.port)) as holder:
        holder.sendall(head("POST", E, "Content-Length: 100") + b"{")
        deadline = time.monotonic() + 10
        while (reply := server.post(BODY)).status != 429:
            assert time.monotonic() < deadline
        assert (reply.code, reply.headers["retry-after"]) == ("overloaded", "1")
        assert reply.json()["error"]["type"] == "overloaded_error"
        stages = dict(stage.split(";dur=") for stage in reply.headers["server-timing"].split(", "))
        assert [stages[name] for name in ("parse", "tokenize", "infer", "encode")] == ["0.000"] * 4
        assert server.post(b"no json").status == 429, "the body is not looked at"
        assert server.get("/health").status == 200
