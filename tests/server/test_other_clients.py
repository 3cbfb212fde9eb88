"""LangChain, Cohere and the clients of text-embeddings-inference, against a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from ffwd_ort import CrossEncoder, SentenceEncoder
from ffwd_ort_conformance.tiny import TEXTS, long_text
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from tests.serving import Server

QUERY = "when does the ferry sail?"
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
    refused = pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False")
    with client, refused as caught:
        client.embeddings.create(model="tiny", input=[[1169, 13357, 8953], [74, 16149]], encoding_format="base64")
    assert (caught.value.code, caught.value.param) == ("type_error.token_ids", "input")


def test_cohere_ranks_documents_and_may_ask_for_more_than_there_are(server: Server, ce: Path, cache_dir: Path) -> None:
    client = cohere.ClientV2(api_key="unused", base_url=server.url)
    answer = client.rerank(model="ce", query=QUERY, documents=DOCUMENTS, top_n=50)
    with CrossEncoder(ce, cache_dir=cache_dir) as encoder:
        ranked = encoder.rank(QUERY, DOCUMENTS)
    assert [result.index for result in answer.results] == [index for index, _ in ranked]
    scores = np.array([result.relevance_score for result in answer.results])
    assert np.abs(scores - np.array([score for _, score in ranked])).max() < 2e-5
    assert len(client.rerank(model="ce", query="kelp", documents=DOCUMENTS, top_n=2).results) == 2
    with pytest.raises(cohere.core.api_error.ApiError) as caught:
        client.rerank(model="ce", query="", documents=DOCUMENTS)
    assert caught.value.status_code == 422


def test_huggingface_hub_embeds_text_as_it_does_with_tei(server: Server, expected: np.ndarray) -> None:
    """The client that Haystack's embedders for TEI are made of."""
    client = InferenceClient(model=f"{server.url}/embed")
    assert np.abs(client.feature_extraction(list(TEXTS), normalize=True) - expected).max() < 5e-6
    cut = client.feature_extraction(long_text(600), truncate=True, truncation_direction="left")
    assert cut.shape == (1, 48)
    with pytest.raises(HfHubHTTPError) as caught:
        client.feature_extraction(long_text(600), truncate=False)
    assert "input exceeds 128 token limit (counted 600; bound by model positions)" in str(caught.value)


def test_the_bodies_of_llamaindex_are_answered_as_tei_answers_them(server: Server, expected: np.ndarray) -> None:
    """Its embedding class asks /embed and its reranker /rerank, with no more fields than these."""
    with httpx.Client(base_url=server.url) as client:
        vectors = client.post("/embed", json={"inputs": list(TEXTS), "truncate": True})
        assert vectors.status_code == 200 and np.abs(np.array(vectors.json()) - expected).max() < 5e-6
        ranked = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "truncate": True})
    assert ranked.status_code == 200 and all(set(item) == {"index", "score"} for item in ranked.json())


def test_the_bodies_of_haystacks_ranker_are_answered_as_tei_answers_them(server: Server) -> None:
    with httpx.Client(base_url=server.url) as client:
        asked = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": False}
        plain = client.post("/rerank", json=asked)
        cut = client.post("/rerank", json=asked | {"truncate": True, "truncation_direction": "Right"})
        raw = client.post("/rerank", json=asked | {"raw_scores": True})
    assert plain.status_code == 200 and plain.json() == cut.json()
    scores = [item["score"] for item in plain.json()]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    assert [item["index"] for item in raw.json()] == [item["index"] for item in plain.json()]
    sigmoid = 1 / (1 + np.exp(-np.array([item["score"] for item in raw.json()])))
    assert np.abs(sigmoid - scores).max() < 1e-6


def test_null_in_an_optional_field_of_tei_means_not_given(server: Server, expected: np.ndarray) -> None:
    """Clients made from TEI's own description write out every field that it allows to be null."""
    with httpx.Client(base_url=server.url) as client:
        optional = dict.fromkeys(("truncate", "truncation_direction", "prompt_name", "normalize", "dimensions"))
        vectors = client.post("/embed", json={"inputs": list(TEXTS), **optional})
        assert vectors.status_code == 200 and np.abs(np.array(vectors.json()) - expected).max() < 5e-6
        optional = dict.fromkeys(("truncate", "truncation_direction", "raw_scores", "return_text"))
        ranked = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, **optional})
        shown = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    assert ranked.status_code == 200 and all(0 <= item["score"] <= 1 for item in ranked.json())
    assert {item["index"]: item["text"] for item in shown.json()} == dict(enumerate(DOCUMENTS))
