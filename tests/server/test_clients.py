"""The clients people use, against a real server."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS
from tests.serving import Server, wait_until

HELD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n"  # its body is still to come


def connect(server: Server, key: str = "unused", retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries)


@pytest.fixture(scope="module")
def client(fleet: Server) -> Iterator[openai.OpenAI]:
    with connect(fleet) as client:
        yield client


@pytest.fixture(scope="module")
def expected(tiny: Path, cache_dir: Path) -> np.ndarray:
    with SentenceEncoder(tiny, cache_dir=cache_dir) as encoder:
        return encoder.encode(TEXTS)


def test_openai_gets_the_vectors_in_its_default_base64_and_in_floats(
    client: openai.OpenAI, expected: np.ndarray
) -> None:
    default = client.embeddings.create(model="tiny", input=list(TEXTS))
    floats = client.embeddings.create(model="tiny", input=list(TEXTS), encoding_format="float")
    for answer in (default, floats):
        assert np.abs(np.array([entry.embedding for entry in answer.data]) - expected).max() < 5e-6
        assert answer.model == "tiny" and answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_openai_takes_one_string_and_dimensions(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="mrl", input="the tide falls", dimensions=16)
    assert len(answer.data) == 1 and len(answer.data[0].embedding) == 16


def test_openai_async_gets_many_answers_at_once(fleet: Server, expected: np.ndarray) -> None:
    async def gather() -> list[list[float]]:
        async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0) as client:
            answers = await asyncio.gather(*(client.embeddings.create(model="tiny", input=text) for text in TEXTS * 5))
        return [answer.data[0].embedding for answer in answers]

    assert np.abs(np.array(asyncio.run(gather())) - np.tile(expected, (5, 1))).max() < 5e-6


def test_openai_raises_its_own_error_classes_with_our_message_and_param(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.embeddings.create(model="tiny", input=["fine", ""])
    assert caught.value.param == "input.1" and caught.value.code == "value_error.empty"
    assert "input item must not be empty" in caught.value.message
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("nope")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="does not generate text"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


def test_openai_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "mrl", "ids", "a/b", "pp"]


def test_openai_is_refused_without_the_key(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--api-key", "right")
    with connect(server, "wrong") as wrong, pytest.raises(openai.AuthenticationError) as caught:
        wrong.embeddings.create(model="tiny", input="x")
    assert caught.value.code == "invalid_api_key" and "bearer token" in caught.value.message
    with connect(server, "right") as right:
        assert right.embeddings.create(model="tiny", input="x").data


def test_openai_reads_400_where_the_operator_wants_that(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--validation-status", "400")
    with connect(server) as client, pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input="")
    assert (caught.value.code, caught.value.param) == ("value_error.empty", "input")


def test_openai_waits_as_long_as_a_429_says_and_then_succeeds(serve: Callable[..., Server], tiny: Path) -> None:
    """One place in flight, held by a request whose body is still to come, until 0.3 s after a refusal."""
    server = serve("--model", f"tiny={tiny}", "--max-concurrent-requests", "1")
    with socket.create_connection(("127.0.0.1", server.port)) as holder:
        holder.sendall(HELD)
        wait_until(lambda: b"ffwd_inflight_requests 1.0" in server.get("/metrics").body)
        with connect(server) as hasty, pytest.raises(openai.RateLimitError) as caught:
            hasty.embeddings.create(model="tiny", input="x")
        assert caught.value.response.headers["retry-after"] == "1" and caught.value.code == "overloaded"
        threading.Timer(0.3, holder.close).start()
        with connect(server, retries=2) as patient:
            began = time.monotonic()
            assert len(patient.embeddings.create(model="tiny", input="x").data) == 1
            assert time.monotonic() - began >= 1, "its own first wait would be half a second at most"


def test_openai_raises_the_503_of_a_server_that_drains(serve: Callable[..., Server], tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}")
    with connect(server) as client, socket.create_connection(("127.0.0.1", server.port)) as holder:
        assert client.embeddings.create(model="tiny", input="x").data  # its connection stays open
        holder.sendall(HELD)
        wait_until(lambda: b"ffwd_inflight_requests 1.0" in server.get("/metrics").body)
        server.terminate()
        wait_until(lambda: not accepts(server))
        with pytest.raises(openai.InternalServerError) as caught:
            client.embeddings.create(model="tiny", input="x")
    assert (caught.value.status_code, caught.value.code) == (503, "draining")
    assert caught.value.response.headers["retry-after"] == "1"
    assert server.wait() == 0


def accepts(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_httpx_keeps_its_connection(fleet: Server) -> None:
    with httpx.Client(base_url=fleet.url) as client:
        for text in TEXTS:
            assert client.post("/v1/embeddings", json={"model": "tiny", "input": text}).status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_line_that_the_server_prints_works(mini: Server) -> None:
    wait_until(lambda: "\ntry:" in mini.output and mini.output.endswith("\n"))  # it is ready a moment before it says so
    (line,) = [line for line in mini.output.splitlines() if line.startswith("try:")]
    command = line.removeprefix("try:").strip()
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and '"embedding":[' in done.stdout
