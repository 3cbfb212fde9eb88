"""GET /metrics over two workers: counters equal what was sent. And the dashboard that reads the series."""

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.multiprocess import MultiProcessCollector

from ffwd_ort.cache import BundleCache
from ffwd_ort_conformance.tiny import TEXTS
from ffwd_ort_conformance.tiny_families import write_cross_encoder
from tests.serving import Reply, Server

KEY = {"Authorization": "Bearer sesame-7"}
# Every route of http.md section 2, and which of the two labels it serves.
POSTS = {
    "/v1/embeddings": ("m",),
    "/embed": ("m",),
    "/v1/rerank": ("m", "ce"),
    "/v2/rerank": ("m", "ce"),
    "/rerank": ("m", "ce"),
    "/v1/tokenize": ("m", "ce"),
    "/v1/contextualizedembeddings": (),
    "/v1/chat/completions": (),
    "/v1/completions": (),
}
STATES = ("/health", "/ready", "/metrics")  # asked before the first scrape
GETS = ("/v1/models", "/v1/models/{label}", "/info", "/openapi.json", "/docs", "/live", *STATES)
REASONS = (
    *("not_found", "method", "auth", "bad_http", "unsupported", "not_ready", "draining", "body_too_large"),
    *("overloaded", "validation", "deadline"),
)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FILL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Buckets and labels of the histograms, and the labels of what is not one.
HISTOGRAMS = {
    "ffwd_request_duration_seconds": (SECONDS, {"route", "model"}),
    "ffwd_queue_wait_seconds": (SECONDS, {"model"}),
    "ffwd_encode_step_duration_seconds": (SECONDS, {"model"}),
    "ffwd_encode_step_fill_ratio": (FILL, {"model"}),
}
OTHERS = {
    "ffwd_requests_total": {"route", "model", "status"},
    "ffwd_tokens_total": {"model", "kind"},
    "ffwd_texts_total": {"model"},
    "ffwd_inflight_requests": set(),
    "ffwd_queued_tokens": set(),
    "ffwd_encode_steps_total": {"model", "rows", "seq"},
    "ffwd_rejected_total": {"reason"},
    "ffwd_model_info": {"model", "kind", "family", "dim", "api", "pooling", "normalize", "provider", "precision"},
}
SERIES = OTHERS | {
    f"{name}{suffix}": labels | ({"le"} if suffix == "_bucket" else set())
    for name, (_, labels) in HISTOGRAMS.items()
    for suffix in ("_bucket", "_sum", "_count")
}
Labels = frozenset[tuple[str, str]]
Series = dict[tuple[str, Labels], float]


def scrape(server: Server) -> Series:
    page = server.get("/metrics", KEY).body.decode()
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


def answers(series: Series, routes: tuple[str, ...]) -> Counter[tuple[str, str, int]]:
    """Count answers by route, label and status, where there were any."""
    found = [(dict(has), number) for (name, has), number in series.items() if name == "ffwd_requests_total" and number]
    by = {(has["route"], has["model"], int(has["status"])): int(n) for has, n in found if has["route"] in routes}
    return Counter(by)


def eventually(check: Callable[[], None], seconds: float = 20) -> None:
    """Run a check until it holds: a step's numbers are written a moment after its answers are sent."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def workers(server: Server) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    ]


@pytest.fixture(scope="module")
def labels(tiny: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two workers, and two labels: m embeds and reranks by cosine, ce is a cross-encoder."""
    ce = write_cross_encoder(tmp_path_factory.mktemp("metrics") / "ce", "bert")
    models = ("--model", f"m={tiny}:rerank=cosine", "--reranker-model", f"ce={ce}")
    return [*models, "--workers", "2", "--api-key", "sesame-7", "--cache-dir", str(cache_dir)]


def start(arguments: list[str], place: Path) -> Server:
    """Start a server whose workers keep their numbers in `place`, each in files of its own; wait for both."""
    server = Server(arguments, place / "log", {"PROMETHEUS_MULTIPROC_DIR": str(place / "numbers")})
    server.wait_ready()
    statuses, deadline = {503}, time.monotonic() + 30
    with ThreadPoolExecutor(16) as pool:  # each worker answers for itself while it starts, and either may take one
        while statuses != {200} and time.monotonic() < deadline:
            statuses = set(pool.map(lambda _: server.get("/ready").status, range(200)))
    return server


@pytest.fixture(scope="module")
def quiet(labels: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is never asked anything but STATES."""
    server = start(labels, tmp_path_factory.mktemp("quiet"))
    yield server
    server.stop()


@pytest.fixture
def server(labels: list[str], tmp_path: Path) -> Iterator[Server]:
    server = start(labels, tmp_path)
    yield server
    server.stop()


def share(server: Server, pid: int, kind: str, name: str, **labels: str) -> float:
    """Add up one worker's part of the series of a counter or gauge that have these labels."""
    file = server.log.parent / "numbers" / f"{kind}_{pid}.db"
    merged = MultiProcessCollector.merge([str(file)], accumulate=True)
    samples = [sample for metric in merged for sample in metric.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_every_series_is_there_at_0_before_any_request(quiet: Server) -> None:
    series = scrape(quiet)
    assert {name: {label for each, has in series if each == name for label, _ in has} for name in SERIES} == SERIES
    assert {name for name, _ in series} == set(SERIES), "and no others"

    def expect(name: str, **labels: str) -> None:
        assert (name, frozenset(labels.items())) in series, (name, labels)

    for route, labels in POSTS.items():
        for label in labels:
            for status in ("200", "422", "500", "503"):
                expect("ffwd_requests_total", route=route, model=label, status=status)
            expect("ffwd_request_duration_seconds_count", route=route, model=label)
        for status in ("401", "413", "422", "429", "503"):
            expect("ffwd_requests_total", route=route, model="", status=status)
    for route in GETS:
        expect("ffwd_requests_total", route=route, model="", status="200")
    expect("ffwd_requests_total", route="unmatched", model="", status="404")
    for reason in REASONS:
        expect("ffwd_rejected_total", reason=reason)
    for label in ("m", "ce"):
        for kind in ("prompt", "padding"):
            expect("ffwd_tokens_total", model=label, kind=kind)
        for name in ("ffwd_queue_wait_seconds", "ffwd_encode_step_duration_seconds", "ffwd_encode_step_fill_ratio"):
            expect(f"{name}_count", model=label)
    for model in quiet.get("/health").json()["models"]:
        for rows, seq in model["prepared_shapes"] + model["shapes_not_run"]:
            expect("ffwd_encode_steps_total", model=model["label"], rows=str(rows), seq=str(seq))
    asked = {frozenset({"route": route, "model": ""}.items()) for route in STATES}
    for (name, has), number in series.items():
        if name == "ffwd_model_info":
            assert number == 1
        elif not any(each <= has for each in asked):
            assert number == 0, (name, has)


def test_model_info_says_what_is_settled(quiet: Server) -> None:
    series = scrape(quiet)
    info = [dict(has) for name, has in series if name == "ffwd_model_info"]
    common = {"family": "bert", "api": "openai", "provider": "cpu", "precision": "f32"}
    m, ce = sorted(info, key=lambda labels: labels["kind"], reverse=True)
    assert m == common | {"model": "m", "kind": "embedding", "dim": "48", "pooling": "mean", "normalize": "true"}
    assert common.items() <= ce.items() and (ce["model"], ce["kind"]) == ("ce", "cross_encoder")


def test_histograms_have_the_buckets_of_the_contract(quiet: Server) -> None:
    series = scrape(quiet)
    for name, (buckets, _) in HISTOGRAMS.items():
        bounds = {dict(has)["le"] for each, has in series if each == f"{name}_bucket"}
        assert {float(bound) for bound in bounds} == {*buckets, float("inf")}


@dataclass(frozen=True)
class Sent:
    """How many requests of a kind are sent, and what each counts as."""

    many: int
    counted: tuple[str, str, int]  # route, label, status
    method: str
    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=lambda: KEY)

    def send(self, server: Server) -> Reply:
        """Send one on a connection of its own, so that either worker may take it."""
        return server.request(self.method, self.path, json.dumps(self.body).encode(), self.headers)


ASK = {"query": "when does the ferry sail?", "documents": list(TEXTS)}
TEI = {"query": ASK["query"], "texts": list(TEXTS), "model": "ce"}
EMBED = Sent(40, ("/v1/embeddings", "m", 200), "POST", "/v1/embeddings", {"input": list(TEXTS)})
KINDS = (
    EMBED,
    Sent(8, ("/embed", "m", 200), "POST", "/embed", {"inputs": list(TEXTS)}),
    Sent(6, ("/v1/rerank", "m", 200), "POST", "/v1/rerank", {"model": "m", **ASK}),
    Sent(6, ("/v2/rerank", "ce", 200), "POST", "/v2/rerank", {"model": "ce", **ASK}),
    Sent(4, ("/rerank", "ce", 200), "POST", "/rerank", TEI),
    Sent(5, ("/v1/tokenize", "m", 200), "POST", "/v1/tokenize", {"model": "m", "input": list(TEXTS)}),
    Sent(7, ("/v1/embeddings", "m", 422), "POST", "/v1/embeddings", {"input": ""}),
    Sent(3, ("/v1/embeddings", "", 422), "POST", "/v1/embeddings", {"model": "sesame-8", "input": "x"}),
    Sent(4, ("/v1/embeddings", "", 401), "POST", "/v1/embeddings", {"input": "x"}, {}),
    Sent(2, ("/v1/rerank", "", 401), "POST", "/v1/rerank", ASK, {"Authorization": "Bearer sesame-8"}),
    Sent(5, ("/v1/embeddings", "", 405), "GET", "/v1/embeddings", {}),
    Sent(3, ("/info", "", 405), "POST", "/info", {}),
    Sent(6, ("unmatched", "", 404), "POST", "/v1/sesame-8", {}),
    Sent(2, ("/v1/models/{label}", "", 404), "GET", "/v1/models/sesame-8", {}),
    Sent(3, ("/v1/models/{label}", "", 200), "GET", "/v1/models/m", {}),
    Sent(2, ("/v1/completions", "", 400), "POST", "/v1/completions", {}),
)
REJECTED = dict.fromkeys(REASONS, 0) | {
    "validation": 10, "auth": 6, "method": 8, "not_found": 8, "unsupported": 2,
}  # fmt: skip


def test_counters_equal_what_was_sent_to_both_workers_and_survive_the_death_of_one(server: Server) -> None:
    plan = [kind for kind in KINDS for _ in range(kind.many)]
    Random(7).shuffle(plan)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda kind: kind.send(server), plan))
    assert [reply.status for reply in replies] == [kind.counted[2] for kind in plan]
    sent = Counter({kind.counted: kind.many for kind in KINDS})
    used: Counter[str] = Counter()
    one: dict[tuple[str, str], int] = {}
    for kind, reply in zip(plan, replies, strict=True):
        route, label, status = kind.counted
        if status == 200 and "usage" in reply.json():
            used[label] += reply.json()["usage"]["prompt_tokens"]
            one[route, label] = reply.json()["usage"]["prompt_tokens"]
    used["m"] += 8 * one["/v1/embeddings", "m"]  # TEI's shapes say nothing of it, and are counted alike
    used["ce"] += 4 * one["/v2/rerank", "ce"]
    routes = (*POSTS, "/info", "/v1/models/{label}", "unmatched")

    def check(more: int = 0) -> None:
        series = scrape(server)
        assert answers(series, routes) == sent + Counter({("/v1/embeddings", "m", 200): more})
        assert {reason: value(series, "ffwd_rejected_total", reason=reason) for reason in REASONS} == REJECTED
        each = one["/v1/embeddings", "m"]
        assert value(series, "ffwd_tokens_total", model="m", kind="prompt") == used["m"] + more * each
        assert value(series, "ffwd_tokens_total", model="ce", kind="prompt") == used["ce"]
        count = len(TEXTS)
        assert value(series, "ffwd_texts_total", model="m") == (48 + more) * count + 6 * (count + 1)
        assert value(series, "ffwd_texts_total", model="ce") == 10 * count
        durations = "ffwd_request_duration_seconds_count"
        assert value(series, durations, route="/v1/embeddings", model="m") == 47 + more
        assert value(series, "ffwd_queue_wait_seconds_count", model="ce") == 10
        for label in ("m", "ce"):
            steps = value(series, "ffwd_encode_steps_total", model=label)
            assert steps > 0 and steps == value(series, "ffwd_encode_step_duration_seconds_count", model=label)
            assert steps == value(series, "ffwd_encode_step_fill_ratio_count", model=label)
            assert value(series, "ffwd_model_info", model=label) == 1
        assert value(series, "ffwd_inflight_requests") == 0 and value(series, "ffwd_queued_tokens") == 0

    eventually(check)
    before = workers(server)
    requests = [share(server, pid, "counter", "ffwd_requests_total", route="/v1/embeddings") for pid in before]
    assert len(requests) == 2 and min(requests) > 0, "both served"
    with socket.create_connection(("127.0.0.1", server.port)) as holder:
        holder.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: 9\r\n\r\n"
            % b"Authorization: Bearer sesame-7"
        )
        eventually(lambda: _equal(value(scrape(server), "ffwd_inflight_requests"), 1))
        (victim,) = [pid for pid in before if share(server, pid, "gauge_livesum", "ffwd_inflight_requests") == 1]
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: _equal(victim in workers(server), False))
    eventually(check)
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(lambda _: EMBED.send(server).status, range(30)))
    assert again == [200] * 30, "a sibling's death never shows"
    eventually(lambda: check(more=30))
    assert "sesame" not in server.get("/metrics", KEY).body.decode(), "no client's text became a label's value"


def _equal(found: object, expected: object) -> None:
    assert found == expected


def test_what_runs_and_what_waits_is_counted_until_it_is_answered(tiny: Path, cache_dir: Path, tmp_path: Path) -> None:
    """Three texts of four tokens, a step takes one and waits: two are queued."""
    bundle, gate = BundleCache(cache_dir).open(str(tiny)).path, tmp_path / "gate"
    command = [str(bundle), f"running:{gate}", "-b", "1"]
    server = Server(command, tmp_path / "log", module="tests.server.edge.faulty")
    try:
        server.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(server.post, {"input": texts}) for texts in (["the tide"], ["a boat", "the bar"])]
            eventually(lambda: _equal(_waiting(server), (2, 8)))
            gate.touch()
            assert [future.result().status for future in asked] == [200, 200]
        eventually(lambda: _equal(_waiting(server), (0, 0)))
    finally:
        gate.touch()
        server.stop()


def _waiting(server: Server) -> tuple[float, float]:
    series = scrape(server)
    return value(series, "ffwd_inflight_requests"), value(series, "ffwd_queued_tokens")


def test_the_dashboard_shows_every_series_and_only_labels_that_they_have() -> None:
    dashboard = json.loads(files("ffwd_ort.server").joinpath("assets/grafana-dashboard.json").read_text("utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    shown: set[str] = set()
    for target in targets:
        names = set(re.findall(r"ffwd_\w+", target["expr"]))
        assert names and names <= set(SERIES), target["expr"]
        has = set.intersection(*(SERIES[name] for name in names))
        by = {label.strip() for group in re.findall(r"by \((.*?)\)", target["expr"]) for label in group.split(",")}
        assert by <= has, target["expr"]
        assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"])) <= (by or has), target["legendFormat"]
        shown |= names
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert families == {*HISTOGRAMS, *OTHERS}
    quantiles = {
        (quantile, name)
        for target in targets
        for quantile, name in re.findall(r"histogram_quantile\(([\d.]+), .*?(ffwd_\w+)_bucket", target["expr"])
    }
    asked = ("ffwd_request_duration_seconds", "ffwd_queue_wait_seconds")
    assert quantiles >= {(quantile, name) for name in asked for quantile in ("0.5", "0.95", "0.99")}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places) and len(targets) >= 16
