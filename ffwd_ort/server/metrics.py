"""The series of http.md section 14, in prometheus_client's multiprocess mode.

The mode is chosen by a variable that must be set before the library is imported; `metrics_folder` sets it in the
process that forks, and this module imports the library late.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ffwd_ort.engine.engine import LoadedModel, StepDone

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FILL = tuple(n / 10 for n in range(1, 11))
NO_ROUTE = "unmatched"
# Why a request was turned away, by the kind of answer (server/errors.py); kinds that are not here are no refusals.
REASONS: Mapping[str, str] = {
    "not_found": "not_found",
    "model_not_found": "not_found",
    "method": "method",
    "auth": "auth",
    "bad_http": "bad_http",
    "incomplete_body": "bad_http",
    "stalled_body": "bad_http",
    "uri_too_long": "bad_http",
    "headers_too_large": "bad_http",
    "expectation": "bad_http",
    "generation": "unsupported",
    "content_encoding": "unsupported",
    "not_ready": "not_ready",
    "draining": "draining",
    "body_too_large": "body_too_large",
    "overloaded": "overloaded",
    "validation": "validation",
    "deadline": "deadline",
}


def metrics_folder() -> Path:
    """Make the folder in which workers keep their numbers, empty, and name it to prometheus_client.

    An operator's own PROMETHEUS_MULTIPROC_DIR is used, and emptied of what an earlier server left.
    """
    given = os.environ.get(VARIABLE)
    folder = Path(given) if given else Path(tempfile.mkdtemp(prefix="ffwd-metrics-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.db"):
        old.unlink(missing_ok=True)
    os.environ[VARIABLE] = str(folder)
    return folder


def remove_folder(folder: Path, given: bool) -> None:
    """Remove the folder at the end, unless the operator named it."""
    if not given:
        shutil.rmtree(folder, ignore_errors=True)


def worker_died(pid: int) -> None:
    """Take a dead worker out of the sums over live ones; its counters stay."""
    from prometheus_client import multiprocess

    if VARIABLE in os.environ:
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


class Metrics:
    """One process's numbers."""

    def __init__(self) -> None:
        import prometheus_client as prometheus

        self._prometheus = prometheus
        self._registry = prometheus.CollectorRegistry()

        def make(kind: Any, name: str, text: str, labels: Iterable[str] = (), **options: Any) -> Any:
            return kind(f"ffwd_{name}", text, tuple(labels), registry=self._registry, **options)

        counter, gauge, histogram = prometheus.Counter, prometheus.Gauge, prometheus.Histogram
        self.requests = make(counter, "requests_total", "Answers sent", ("route", "model", "status"))
        self.duration = make(
            histogram, "request_duration_seconds", "Admission to last byte ready", ("route", "model"), buckets=SECONDS
        )
        self.queue_wait = make(
            histogram, "queue_wait_seconds", "Tokenised to first encode step", ("model",), buckets=SECONDS
        )
        self.tokens = make(counter, "tokens_total", "Tokens run", ("model", "kind"))
        self.texts = make(counter, "texts_total", "Sequences run", ("model",))
        self.inflight = make(
            gauge, "inflight_requests", "Requests admitted, not yet answered", multiprocess_mode="livesum"
        )
        self.queued = make(gauge, "queued_tokens", "Tokens tokenised, not yet running", multiprocess_mode="livesum")
        self.steps = make(counter, "encode_steps_total", "Encode steps by shape", ("model", "rows", "seq"))
        self.step_duration = make(
            histogram, "encode_step_duration_seconds", "Time of an encode step", ("model",), buckets=SECONDS
        )
        self.fill = make(
            histogram, "encode_step_fill_ratio", "Real tokens / (rows * seq) of a step", ("model",), buckets=FILL
        )
        self.rejected = make(counter, "rejected_total", "Requests turned away", ("reason",))
        names = ("model", "kind", "family", "dim", "api", "pooling", "normalize", "provider", "precision")
        self.info = make(gauge, "model_info", "A label's settled settings", names, multiprocess_mode="max")
        for reason in set(REASONS.values()):
            self.rejected.labels(reason)

    def answered(self, route: str, model: str, status: int, refusal: str | None, seconds: float | None) -> None:
        """Count an answer; `refusal` is the kind of error, `seconds` the time since admission, if it came to that."""
        self.requests.labels(route, model, status).inc()
        if (reason := REASONS.get(refusal or "")) is not None:
            self.rejected.labels(reason).inc()
        if seconds is not None:
            self.duration.labels(route, model).observe(seconds)

    def step_done(self, step: StepDone) -> None:
        """Count an encode step."""
        self.steps.labels(step.label, step.shape.rows, step.shape.seq).inc()
        self.step_duration.labels(step.label).observe(step.seconds)
        self.fill.labels(step.label).observe(step.tokens / step.size)
        self.tokens.labels(step.label, "padding").inc(step.size - step.tokens)
        self.texts.labels(step.label).inc(step.texts)

    def publish(
        self, models: Mapping[str, LoadedModel], routes: Mapping[str, tuple[bool, Iterable[str]]], invalid: int
    ) -> None:
        """Make every series that can be expected be there at 0.

        `routes` are the registered paths: whether one takes POST, and the labels it serves. `invalid` is the status
        of validation errors.
        """
        for route, (posts, labels) in routes.items():
            for label in labels:
                for status in (200, invalid, 500, 503):
                    self.requests.labels(route, label, status)
                self.duration.labels(route, label)
            for status in (401, 413, 429, invalid, 503) if posts else (200,):
                self.requests.labels(route, "", status)
        self.requests.labels(NO_ROUTE, "", 404)
        for label, model in models.items():
            served = model.served
            self.queue_wait.labels(label)
            self.step_duration.labels(label)
            self.fill.labels(label)
            self.texts.labels(label)
            for kind in ("prompt", "padding"):
                self.tokens.labels(label, kind)
            for shape in served.packing.shapes():
                self.steps.labels(label, shape.rows, shape.seq)
            self.info.labels(
                label,
                served.kind,
                served.manifest.family,
                served.dim,
                served.api,
                "+".join(served.pooling),
                str(served.normalize).lower(),
                model.runner.provider,
                served.manifest.dtype,
            ).set(1)

    def page(self) -> tuple[bytes, str]:
        """Return the text of all workers' numbers, and its content type."""
        registry = self._registry
        if VARIABLE in os.environ:
            from prometheus_client import multiprocess

            registry = self._prometheus.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return self._prometheus.generate_latest(registry), self._prometheus.CONTENT_TYPE_LATEST
