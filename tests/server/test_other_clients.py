"""LangChain, Cohere and the clients of text-embeddings-inference, against a real server."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from ffwd_ort import CrossEncoder, SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS, long_text
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from tests.serving import Server

DOCUMENTS = [*TEXTS, "the ferry sails"]


@pytest.fixture(scope="module")
def ce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("clients") / "ce", "bert")


@pytest.fixture(scope="module")
def server(ce: Path, tiny: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ["--reranker-model", f"ce={ce}", "--model", f"tiny={tiny}", "--cache-dir", str(cache_dir)]
    server = Server(arguments, tmp_path_factory.mktemp("clients") / "server.log")
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def expected(tiny: Path, cache_dir: Path) -> np.ndarray:
    with SentenceEncoder(tiny, cache_dir=cache_dir) as encoder:
        return encoder.encode(TEXTS)


def langchain(server: Server, **options: Any) -> OpenAIEmbeddings:
    key = SecretStr("unused")
    return OpenAIEmbeddings(model="tiny", base_url=f"{server.url}/v1", api_key=key, max_retries=0, **options)


def test_langchain_works_when_it_sends_text(server: Server, expected: np.ndarray) -> None:
    embeddings = langchain(server, check_embedding_ctx_length=False)
    assert np.abs(np.array(embeddings.embed_documents(list(TEXTS))) - expected).max() < 5e-6
    assert np.abs(np.array(embeddings.embed_query(TEXTS[0])) - expected[0]).max() < 5e-6


def test_the_token_arrays_of_langchains_default_are_refused_with_the_remedy(server: Server) -> None:
    """LangChain fetches another model's vocabulary to make them; here the body it then sends is sent by openai."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False") as caught:
        client.embeddings.create(model="tiny", input=[[1169, 13357, 8953], [74, 16149]], encoding_format="base64")
    assert (caught.value.code, caught.value.param) == ("type_error.token_ids", "input")


def test_cohere_ranks_documents_and_may_ask_for_more_than_there_are(server: Server, ce: Path, cache_dir: Path) -> None:
    client = cohere.ClientV2(api_key="unused", base_url=server.url)
    answer = client.rerank(model="ce", query="when does the ferry sail?", documents=DOCUMENTS, top_n=50)
    with CrossEncoder(ce, cache_dir=cache_dir) as encoder:
        ranked = encoder.rank("when does the ferry sail?", DOCUMENTS)
    assert [result.index for result in answer.results] == [index for index, _ in ranked]
    scores = np.array([result.relevance_score for result in answer.results])
    assert np.abs(scores - np.array([score for _, score in ranked])).max() < 2e-5
    assert len(client.rerank(model="ce", query="kelp", documents=DOCUMENTS, top_n=2).results) == 2
    with pytest.raises(cohere.core.api_error.ApiError) as caught:
        client.rerank(model="ce", query="", documents=DOCUMENTS)
    assert caught.value.status_code == 422


def test_the_bodies_of_tei_clients_are_answered_in_its_shapes(server: Server, expected: np.ndarray) -> None:
    """As huggingface_hub, LlamaIndex and Haystack send them: optional fields are there, and null."""
    client = httpx.Client(base_url=server.url)
    body = {"inputs": list(TEXTS), "truncate": None, "truncation_direction": "Right", "prompt_name": None}
    vectors = client.post("/embed", json=body | {"normalize": True, "dimensions": None})
    assert vectors.status_code == 200 and np.abs(np.array(vectors.json()) - expected).max() < 5e-6
    one = client.post("/embed", json={"inputs": long_text(600), "truncate": True})
    assert np.array(one.json()).shape == (1, 48) and one.headers["x-truncated"] == "1"
    ask = {"query": "when does the ferry sail?", "texts": DOCUMENTS, "raw_scores": False, "return_text": True}
    ranked = client.post("/rerank", json=ask | {"truncate": None, "truncation_direction": "Left"})
    assert ranked.status_code == 200
    scores = [item["score"] for item in ranked.json()]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    assert {item["index"]: item["text"] for item in ranked.json()} == dict(enumerate(DOCUMENTS))
    raw = client.post("/rerank", json={"query": ask["query"], "texts": DOCUMENTS, "raw_scores": True}).json()
    assert [item["index"] for item in raw] == [item["index"] for item in ranked.json()] and "text" not in raw[0]


def test_openai_retries_after_429_and_succeeds(tiny: Path, serve: Callable[..., Server]) -> None:
    """One place in flight, held by a request whose body is still to come; the client waits as Retry-After says."""
    server = serve("--model", f"tiny={tiny}", "--max-concurrent-requests", "1")
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as holder:
        holder.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n")
        deadline = time.monotonic() + 10
        while server.post({"input": "x"}).status != 429 and time.monotonic() < deadline:
            time.sleep(0.02)
        hasty = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        with pytest.raises(openai.RateLimitError) as caught:
            hasty.embeddings.create(model="tiny", input="x")
        assert caught.value.response.headers["retry-after"] == "1"
        threading.Timer(0.3, holder.close).start()
        patient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=4)
        began = time.monotonic()
        assert len(patient.embeddings.create(model="tiny", input="x").data) == 1
        assert time.monotonic() - began > 0.3


def test_openai_reads_400_where_the_operator_wants_that(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"tiny={tiny}", "--validation-status", "400")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input="")
    assert (caught.value.code, caught.value.param) == ("value_error.empty", "input")
