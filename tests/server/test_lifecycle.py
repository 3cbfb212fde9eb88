"""The life of a server: starting, serving under load, failing, draining."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort.sources import default_cache_dir
from ffwd_ort_conformance.tiny import VOCABULARY, TinyBert, bert_tensors, long_text, write_bert, write_weights
from tests.serving import Reply, Server, free_port

Serve = Callable[..., Server]


def raw_post(body: object) -> bytes:
    raw = json.dumps(body).encode()
    return (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
    )


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    """Read one answer of a kept connection: head and body may come apart."""
    received = b""
    while not received.endswith(end):
        piece = connection.recv(4096)
        assert piece, received
        received += piece
    return received


def read_all(connections: list[socket.socket], seconds: float) -> list[bytes]:
    """Read every connection to its end, all at once."""
    received = dict.fromkeys(connections, b"")
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} requests hang"
            for key, _ in selector.select(1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                piece = connection.recv(1 << 16)
                received[connection] += piece
                if not piece:
                    selector.unregister(connection)
    return [received[connection] for connection in connections]


def test_500_requests_at_once_with_a_limit_of_64_are_all_answered_and_every_200_is_right(
    serve: Serve, minilm: Path
) -> None:
    server = serve("--model", f"mini={minilm}", "--max-concurrent-requests", "64")
    texts = [" ".join(["tide", str(i)] * 20) for i in range(8)]
    expected = server.post({"input": texts}).json()["data"]
    message = raw_post({"input": texts})
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(500)]
    for connection in connections:
        connection.sendall(message)
    answers = read_all(connections, 120)
    statuses = Counter(int(answer.split(b" ", 2)[1]) for answer in answers)
    assert set(statuses) == {200, 429} and statuses[200] >= 64 and statuses[429] > 200
    for answer in answers:
        header, _, body = answer.partition(b"\r\n\r\n")
        if answer.startswith(b"HTTP/1.1 200"):
            found = np.array([entry["embedding"] for entry in json.loads(body)["data"]])
            assert np.abs(found - [entry["embedding"] for entry in expected]).max() < 5e-6
        else:
            assert b"retry-after: 1" in header.lower()
    for connection in connections:
        connection.close()
    assert server.post({"input": "x"}).status == 200


def test_sigterm_under_load_loses_no_accepted_request(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}")
    body = {"input": [long_text(100)] * 32 + [long_text(n) for n in range(3, 100)]}
    message = raw_post(body)
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            except ConnectionRefusedError:
                outcomes["refused"] += 1
                return
            with connection:
                try:
                    connection.sendall(message)
                    answer = b""
                    while piece := connection.recv(1 << 16):
                        answer += piece
                    outcomes[answer.split(b" ", 2)[1].decode() if answer else "lost"] += 1
                except OSError:
                    outcomes["lost"] += 1

    threads = [threading.Thread(target=load) for _ in range(16)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while outcomes["200"] <= 16:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.terminate()
    assert server.wait(30) == 0
    stop.set()
    for thread in threads:
        thread.join(30)
    assert outcomes["200"] > 16
    assert set(outcomes) <= {"200", "503", "refused"}, outcomes


def test_while_draining_new_requests_on_open_connections_are_503(serve: Serve, minilm: Path) -> None:
    server = serve("--model", f"mini={minilm}")
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as busy,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle,
    ):
        idle.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in receive_until(idle, b'"serving"}')
        busy.sendall(raw_post({"input": [" ".join(["tide"] * 400)] * 40}))
        time.sleep(0.5)
        server.terminate()
        time.sleep(0.5)
        idle.sendall(raw_post({"input": "x"}))
        answer = receive_until(idle, b"}}")
        assert b" 503 " in answer and b'"draining"' in answer and b"retry-after: 1" in answer.lower()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)
        received = b""
        while piece := busy.recv(1 << 16):
            received += piece
        assert received.startswith(b"HTTP/1.1 200")
    assert server.wait(30) == 0


def test_what_cannot_be_finished_in_the_graceful_time_is_answered_503(serve: Serve, minilm: Path) -> None:
    server = serve("--model", f"mini={minilm}", "--graceful-timeout", "3")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as busy:
        busy.sendall(raw_post({"input": [" ".join(["tide", str(i)] * 100) for i in range(512)]}))
        time.sleep(0.7)
        server.terminate()
        received = b""
        while piece := busy.recv(1 << 16):
            received += piece
        assert b" 503 " in received and b'"draining"' in received
    assert server.wait(30) == 0


def test_while_models_load_health_is_503_starting_and_posts_are_refused(serve: Serve, minilm: Path) -> None:
    labels = [argument for i in range(12) for argument in ("--model", f"m{i}={minilm}:max_seq={500 - i}")]
    serve("--model", f"warm={minilm}").stop()  # the bundle is exported by now
    server = serve(*labels, wait=False)
    seen: list[tuple[Reply, Reply, Reply, Reply]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            replies = (
                server.get("/health"),
                server.get("/live"),
                server.post({"input": "x"}),
                server.get("/v1/models"),
            )
            if replies[0].status == 200:
                break
            seen.append(replies)
    assert seen, "the server was never seen starting"
    health, live, post, models = seen[0]
    assert health.status == 503 and health.json()["status"] == "starting" and health.headers["retry-after"] == "5"
    assert health.json()["models"][-1]["dim"] is None and len(health.json()["models"]) == 12
    assert live.status == 200
    if post.status != 422:  # it may have begun to serve between two of the four requests
        assert (post.status, post.code, post.headers["retry-after"]) == (503, "not_ready", "5")
    assert models.status in (200, 503)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_3_and_its_reason(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}:max_seq=128", "--memory-utilization", "0.05", wait=False)
    limited = serve("--model", f"tiny={tiny}:min_dim=64", wait=False)
    assert limited.wait(30) == 3
    assert "min_dim=64 is above the model's 48 dimensions" in limited.output
    assert "Traceback" not in limited.output
    server.stop()


@pytest.mark.parametrize("provider", ["cuda", "coreml"])
def test_a_provider_that_is_not_there_ends_the_server_with_3(serve: Serve, tiny: Path, provider: str) -> None:
    server = serve("--model", f"tiny={tiny}", "--provider", provider, wait=False)
    assert server.wait(30) == 3
    assert f"--provider {provider}" in server.output and "CPUExecutionProvider" in server.output


def test_a_checkpoint_that_makes_nan_is_500_for_its_request_alone(serve: Serve, tmp_path: Path) -> None:
    tiny = TinyBert()
    folder = write_bert(tmp_path / "nan", tiny)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 0.0'))
    tensors = bert_tensors(tiny, len(VOCABULARY))
    # The word "kelp" at a text's start has no variance, and its norm is 0 / 0.
    tensors["embeddings.word_embeddings.weight"][VOCABULARY.index("kelp")] = 1.0
    tensors["embeddings.position_embeddings.weight"][1] = 0.0
    tensors["embeddings.token_type_embeddings.weight"][0] = 0.0
    write_weights(folder, tensors, tiny)
    server = serve("--model", f"tiny={folder}", "--batch-wait-us", "200000")
    replies: dict[str, Reply] = {}

    def ask(text: str) -> None:
        replies[text] = server.post({"input": text})

    threads = [threading.Thread(target=ask, args=[text]) for text in ("kelp", "the tide", "a boat")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (replies["kelp"].status, replies["kelp"].code) == (500, "non_finite_vector")
    for text in ("the tide", "a boat"):
        vector = np.array(replies[text].json()["data"][0]["embedding"], float)
        assert np.isfinite(vector).all() and abs(np.linalg.norm(vector) - 1) < 1e-6
    assert server.get("/health").status == 200


def test_a_killed_worker_is_replaced_by_one_that_serves(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}")
    (worker,) = children(server.process.pid)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while children(server.process.pid) in ([], [worker]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.wait_ready(30)
    assert server.post({"input": "x"}).status == 200


def test_a_label_in_8_bits_stands_beside_the_exact_one_and_says_so(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"exact={tiny}", "--model", f"quick={tiny}:precision=int8")
    exact, quick = (server.post({"input": "low water", "model": m}).json()["data"][0] for m in ("exact", "quick"))
    assert 1e-6 < np.abs(np.subtract(exact["embedding"], quick["embedding"])).max() < 0.05
    assert [model["precision"] for model in server.get("/health").json()["models"]] == ["f32", "int8"]
    assert "int8, approximate; " in server.output


def test_two_workers_share_the_load_and_the_limit(serve: Serve, tiny: Path) -> None:
    server = serve("--model", f"tiny={tiny}", "--workers", "2", "--max-concurrent-requests", "9")
    deadline = time.monotonic() + 30
    while len(children(server.process.pid)) < 2:  # the first may answer before the second is forked
        assert time.monotonic() < deadline
    while not all(server.post({"input": "x"}).status == 200 for _ in range(40)):  # each answers for itself
        assert time.monotonic() < deadline


def children(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in listed.split()]


def test_a_unix_socket_can_be_bound(serve: Serve, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "ffwd.sock"
    serve("--model", f"tiny={tiny}", "--bind", f"unix:{path}", wait=False)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if b"200 OK" in receive_until(connection, b"}"):
                return
        time.sleep(0.1)
    raise AssertionError("never ready on the socket")


def test_plain_gunicorn_serves_from_the_environment(tiny: Path, cache_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "FFWD_MODEL": f"tiny={tiny}\nother={tiny}:max_seq=64",
        "FFWD_PORT": str(port),
        "FFWD_CACHE_DIR": str(cache_dir),
        "FFWD_API_KEY": "secret",
    }
    command = [sys.executable, "-m", "gunicorn", "-c", "python:ffwd_ort.server.gunicorn_conf"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Server.__new__(Server)
        server.port, server.process, server.log = port, process, tmp_path / "log"
        server.wait_ready()
        assert server.post({"model": "other", "input": "x"}).status == 401
        assert server.post({"model": "other", "input": "x"}, headers={"Authorization": "Bearer secret"}).status == 200
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_warm_start_opens_no_socket_but_its_own(serve: Serve, minilm: Path, cache_dir: Path, tmp_path: Path) -> None:
    """A demo that was served once starts again where nothing can be reached."""
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import socket\n"
        "def refuse(self, address):\n"
        "    raise RuntimeError(f'a socket was opened to {address}')\n"
        "socket.socket.connect = socket.socket.connect_ex = refuse\n"
    )
    port = free_port()
    command = [sys.executable, "-m", "ffwd_ort.cli.server", "--demo", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PIP_NO_INDEX": "1"}
    assert default_cache_dir().is_dir()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Server.__new__(Server)
        server.port, server.process, server.log = port, process, tmp_path / "log"
        server.wait_ready()
        assert len(server.post({"input": "x"}).json()["data"][0]["embedding"]) == 384
    finally:
        process.terminate()
        process.wait(20)


def test_nobody_reading_the_start_up_lines_ends_no_engine(tiny: Path, cache_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "ffwd_ort.cli.server", "--model", f"tiny={tiny}"]
    command += ["--port", str(port), "--cache-dir", str(cache_dir)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    process.stdout.close()
    try:
        server = Server.__new__(Server)
        server.port, server.process, server.log = port, process, tmp_path / "log"
        server.wait_ready()
        time.sleep(0.5)
        assert "failed" not in server.output and server.post({"input": "x"}).status == 200
    finally:
        process.terminate()
        assert process.wait(20) == 0
