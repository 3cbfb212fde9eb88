"""Rows E82 and E85 to E88 of http.md section 16: states, and what fails at run time. Nothing is patched."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort_conformance.tiny import VOCABULARY, TinyBert, bert_tensors, write_bert, write_weights
from tests.server.edge.faulty import PATH, POISON, SLOW_SECONDS
from tests.server.test_lifecycle import raw_post, receive_until
from tests.serving import Server, wait_until

Faulty = Callable[..., Server]
GENERATION = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture
def faulty(tiny: Path, cache_dir: Path, tmp_path: Path) -> Iterator[Faulty]:
    """Start a server whose session is handed in: `faulty("raise")`; see faulty.py."""
    bundle = BundleCache(cache_dir).open(str(tiny)).path
    servers: list[Server] = []

    def start(how: str, *options: str, wait: bool = True) -> Server:
        server = Server([str(bundle), how, *options], tmp_path / "log", module="tests.server.edge.faulty")
        servers.append(server)
        if wait:
            server.wait_ready()
        return server

    yield start
    for server in servers:
        server.stop()


def listens(server: Server) -> bool:
    try:
        return server.get("/live").status == 200
    except OSError:
        return False


def test_e85_e82_while_loading_texts_are_503_and_generation_is_400(faulty: Faulty, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = faulty(f"loading:{gate}", wait=False)
    wait_until(lambda: listens(server))
    for path in ("/v1/embeddings", "/v1/tokenize", "/v1/rerank"):
        reply = server.post({"input": "x"}, path)
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "not_ready", "5")
        assert reply.json()["error"]["message"] == "server is not ready"
    assert server.get("/v1/models").code == "not_ready"
    health = server.get("/health")
    assert (health.status, health.json()["status"], health.headers["retry-after"]) == (503, "starting", "5")
    for path in GENERATION:
        assert (server.post(b"no json", path).status, server.post({}, path).code) == (400, "unsupported_capability")
    gate.touch()
    server.wait_ready()
    assert server.post({"input": "x"}).status == 200


def test_e85_while_draining_new_requests_are_503_and_begun_ones_finish(faulty: Faulty, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = faulty(f"running:{gate}")
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle,
        ThreadPoolExecutor(1) as pool,
    ):
        idle.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        receive_until(idle, b'"serving"}')
        begun = pool.submit(server.post, {"input": "tide"})
        try:
            wait_until(lambda: b"ffwd_inflight_requests 1.0" in server.get("/metrics").body)
            server.terminate()
            wait_until(lambda: not listens(server))
            idle.sendall(raw_post({"input": "x"}))
            answer = receive_until(idle, b"}}")
            assert answer.startswith(b"HTTP/1.1 503 ") and b'"code":"draining"' in answer
            assert b"server is draining" in answer and b"retry-after: 1\r" in answer.lower()
        finally:
            gate.touch()
        assert begun.result().status == 200
    assert server.wait(30) == 0


def test_e86_a_text_that_overflows_is_500_and_its_neighbour_in_the_step_is_answered(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    tiny = TinyBert()
    folder = write_bert(tmp_path / "overflow", tiny)
    tensors = bert_tensors(tiny, len(VOCABULARY))
    # Each weight is finite. Their sum is not, where this word comes tenth: infinity, and NaN after the first norm.
    tensors["embeddings.word_embeddings.weight"][VOCABULARY.index("kelp")] = 3e38
    tensors["embeddings.position_embeddings.weight"][10] = 3e38
    poison = "the " * 9 + "kelp"
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    write_weights(folder, tensors, tiny)
    server = serve("--model", f"tiny={folder}", "--batch-wait-us", "500000")
    with ThreadPoolExecutor(2) as pool:
        bad, good = pool.map(lambda text: server.post({"input": text}), (poison, "the tide"))
    assert (bad.status, bad.code) == (500, "non_finite_vector")
    assert bad.json()["error"]["message"] == "the model produced a non-finite value"
    assert good.status == 200 and b"null" not in good.body and b"NaN" not in good.body
    assert np.isfinite(good.json()["data"][0]["embedding"]).all()
    # Two in the step that failed, then each alone: they did share it.
    assert b'ffwd_texts_total{model="tiny"} 4.0' in server.get("/metrics").body
    both = server.post({"input": ["the tide", poison]})
    assert (both.status, both.code) == (500, "non_finite_vector"), "a request fails as a whole"


def test_e87_what_the_runtime_says_is_not_told_and_neighbours_are_answered(faulty: Faulty) -> None:
    server = faulty("raise")
    bad = VOCABULARY[POISON]
    assert POISON in server.post({"input": bad}, "/v1/tokenize").json()["data"][0]["ids"]
    asked = ["the", bad, "the the"] * 4
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda text: server.post({"input": text}), asked))
    ranked = server.post({"query": "the", "documents": ["tide", bad]}, "/v1/rerank")
    for text, reply in zip(asked, replies, strict=True):
        assert reply.status == (500 if text == bad else 200)
    for reply, message in ((replies[1], "embedding failed"), (ranked, "reranking failed")):
        error = {"message": message, "type": "server_error", "param": None, "code": "inference_failed"}
        assert (reply.status, reply.json()) == (500, {"error": error})
        sent = reply.body + repr(reply.headers).encode()
        assert PATH.encode() not in sent and b"Traceback" not in sent and b"node 7" not in sent


def test_e88_a_deadline_that_passes_in_the_queue_is_503(faulty: Faulty) -> None:
    server = faulty("slow", "--request-timeout", "0.5")
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(server.post, {"input": "tide"})
        time.sleep(SLOW_SECONDS / 5)  # its step runs now, for longer than the others may wait
        late = list(pool.map(lambda i: server.post({"input": f"tide {'x ' * i}"}), range(5)))
    assert first.result().status == 200, "begun work is finished"
    for reply in late:
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "deadline_exceeded", "1")
        assert reply.json()["error"]["message"] == "request deadline exceeded"


def test_e82_generation_is_400_whatever_the_validation_status(edge: Server, edge_400: Server) -> None:
    for server in (edge, edge_400):
        for path in GENERATION:
            for body in (b"", b"no json", b'{"model":"mini","messages":[]}'):
                reply = server.post(body, path)
                assert (reply.status, reply.code) == (400, "unsupported_capability")
