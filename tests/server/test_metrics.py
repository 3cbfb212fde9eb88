"""GET /metrics over two workers, the access log, and the dashboard that reads the series."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest

from ffwd_ort.server.metrics import FILL, REASONS, SECONDS
from tests.serving import Server

KEY = {"Authorization": "Bearer sesame-7"}
SECRET = "a text that nobody may read in a log"
HISTOGRAMS = {
    "ffwd_request_duration_seconds": SECONDS,
    "ffwd_queue_wait_seconds": SECONDS,
    "ffwd_encode_step_duration_seconds": SECONDS,
    "ffwd_encode_step_fill_ratio": FILL,
}
OTHERS = {
    "ffwd_requests_total",
    "ffwd_tokens_total",
    "ffwd_texts_total",
    "ffwd_inflight_requests",
    "ffwd_queued_tokens",
    "ffwd_encode_steps_total",
    "ffwd_rejected_total",
    "ffwd_model_info",
}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server: Server) -> Series:
    page = server.request("GET", "/metrics", headers=KEY).body.decode()
    found: Series = {}
    for line in page.splitlines():
        if line.startswith("ffwd_"):
            name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()  # type: ignore[union-attr]
            found[name, frozenset(re.findall(r'(\w+)="(.*?)"', labels or ""))] = float(value)
    return found


def value(series: Series, name: str, **labels: str) -> float:
    """Add up the series of a name that have these labels."""
    wanted = set(labels.items())
    return sum(number for (each, has), number in series.items() if each == name and wanted <= has)


def post(server: Server, body: object, path: str = "/v1/embeddings") -> int:
    """Send on a connection of its own, so that either worker may take it; again where that one is still loading."""
    while (status := server.request("POST", path, json.dumps(body).encode(), KEY).status) == 503:
        time.sleep(0.05)
    return status


@pytest.fixture
def server(tiny: Path, serve: Callable[..., Server]) -> Server:
    server = serve("--model", f"m={tiny}:rerank=cosine", "--workers", "2", "--api-key", "sesame-7", "-v")
    statuses, deadline = {503}, time.monotonic() + 30
    with ThreadPoolExecutor(16) as pool:  # each worker answers for itself while it starts, and either may take one
        while statuses != {200} and time.monotonic() < deadline:
            statuses = set(pool.map(lambda _: server.get("/ready").status, range(200)))
    return server


def test_every_series_is_there_before_any_request(server: Server) -> None:
    series = scrape(server)
    names = {name for name, _ in series}
    assert names >= OTHERS
    assert value(series, "ffwd_model_info", model="m", kind="embedding", family="bert", provider="cpu") == 1
    for name, buckets in HISTOGRAMS.items():
        bounds = {dict(labels)["le"] for each, labels in series if each == f"{name}_bucket"}
        assert {float(bound) for bound in bounds} == {*buckets, float("inf")}
    for route in ("/v1/embeddings", "/v1/rerank", "/embed", "/v1/tokenize"):
        for status in ("200", "422", "500", "503"):
            assert (
                "ffwd_requests_total",
                frozenset({"route": route, "model": "m", "status": status}.items()),
            ) in series
        for status in ("401", "413", "429", "422", "503"):
            assert ("ffwd_requests_total", frozenset({"route": route, "model": "", "status": status}.items())) in series
    assert ("ffwd_requests_total", frozenset({"route": "unmatched", "model": "", "status": "404"}.items())) in series
    assert {dict(labels)["reason"] for name, labels in series if name == "ffwd_rejected_total"} == {*REASONS.values()}
    shapes = server.get("/health").json()["models"][0]
    prepared = {(str(rows), str(seq)) for rows, seq in shapes["prepared_shapes"] + shapes["shapes_not_run"]}
    steps = {(dict(has)["rows"], dict(has)["seq"]) for name, has in series if name == "ffwd_encode_steps_total"}
    assert steps == prepared
    posts = [
        n
        for (name, has), n in series.items()
        if name == "ffwd_requests_total" and "/v1/embeddings" in dict(has).values()
    ]
    assert set(posts) == {0.0}


def test_counters_equal_the_requests_sent_to_both_workers_and_survive_ones_death(server: Server) -> None:
    bodies = [{"input": f"the tide {i}"} for i in range(40)] + [{"input": ""}] * 6 + [{"model": "no", "input": "x"}] * 4
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda body: post(server, body), bodies))
    assert [statuses.count(status) for status in (200, 422)] == [40, 10]
    usage = server.request("POST", "/v1/embeddings", json.dumps({"input": ["a", "a"]}).encode(), KEY).json()["usage"]
    for path in ("/nope", "/v1/embeddings"):
        server.request("GET", path, headers=KEY)
    server.request("POST", "/v1/embeddings", b"{}")

    def check() -> None:
        series = scrape(server)
        requests = "ffwd_requests_total"
        assert value(series, requests, route="/v1/embeddings", model="m", status="200") == 41
        assert value(series, requests, route="/v1/embeddings", model="m", status="422") == 6
        assert value(series, requests, route="/v1/embeddings", model="", status="422") == 4
        assert value(series, requests, route="unmatched", status="404") == 1
        assert value(series, requests, route="/v1/embeddings", status="405") == 1
        assert value(series, requests, route="/v1/embeddings", status="401") == 1
        assert value(series, "ffwd_rejected_total", reason="validation") == 10
        assert value(series, "ffwd_rejected_total", reason="auth") == 1
        prompt = value(series, "ffwd_tokens_total", model="m", kind="prompt")
        assert prompt >= 40 * 4 + usage["prompt_tokens"]
        assert value(series, "ffwd_texts_total", model="m") == 41, "equal texts of a request run once"
        assert value(series, "ffwd_request_duration_seconds_count", route="/v1/embeddings", model="m") == 47
        assert value(series, "ffwd_inflight_requests") == 0 and value(series, "ffwd_queued_tokens") == 0

    check()
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while children[0] in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    check()


def test_a_line_is_logged_for_a_request_and_never_a_text_or_a_key(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"m={tiny}", "--api-key", "sesame-7", "--log-format", "json")
    assert post(server, {"input": [SECRET, "b"]}) == 200
    assert post(server, {"input": SECRET, "dimensions": 3}) == 422
    assert server.request("POST", "/v1/embeddings", b"{}", {"Authorization": f"Bearer {SECRET}"}).status == 401
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    assert [(line["route"], line["model"], line["status"], line["texts"]) for line in lines] == [
        ("/v1/embeddings", "m", 200, 2),
        ("/v1/embeddings", "m", 422, 0),
        ("/v1/embeddings", "", 401, 0),
    ]
    assert lines[0]["tokens"] > 4 and {f"{s}_ms" for s in ("queue", "tokenize", "infer", "encode")} <= set(lines[0])
    assert len(lines[0]["id"]) == 32 and lines[1]["refusal"] == "validation"
    assert SECRET not in server.output and "sesame-7" not in server.output
    text = serve("--model", f"m={tiny}")
    assert text.post({"input": SECRET}).status == 200
    (line,) = [line for line in text.output.splitlines() if "route=" in line]
    assert "route=/v1/embeddings model=m status=200 texts=1" in line and SECRET not in text.output


def test_the_dashboard_uses_only_series_that_exist(server: Server) -> None:
    dashboard = json.loads(files("ffwd_ort.server").joinpath("assets/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= 8
    existing = {name for name, _ in scrape(server)}
    used = {name for expression in expressions for name in re.findall(r"ffwd_\w+", expression)}
    assert used <= existing
