"""The clients people use, against a real server."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS
from tests.serving import Server


@pytest.fixture(scope="module")
def client(fleet: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0)


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
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").embeddings.create(model="tiny", input="x")
    right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="right")
    assert right.embeddings.create(model="tiny", input="x").data


def test_httpx_keeps_its_connection(fleet: Server) -> None:
    with httpx.Client(base_url=fleet.url) as client:
        for text in TEXTS:
            assert client.post("/v1/embeddings", json={"model": "tiny", "input": text}).status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_line_that_the_server_prints_works(mini: Server) -> None:
    (line,) = [line for line in mini.output.splitlines() if line.startswith("try:")]
    command = line.removeprefix("try:").strip()
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and '"embedding":[' in done.stdout
