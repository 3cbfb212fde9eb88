"""What goes wrong, as HTTP says it: one table from kinds to answers, and the problems of a body."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ffwd_ort.errors import RequestError

MAX_BODY_BYTES = 67_108_864


@dataclass(frozen=True)
class Answer:
    """One row of http.md section 4.3."""

    status: int
    message: str
    type: str
    code: str
    retry_after: int | None = None


ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "bad_http": Answer(400, "bad HTTP request", "invalid_request_error", "bad_request"),
        "incomplete_body": Answer(400, "request body ended early", "invalid_request_error", "incomplete_body"),
        "generation": Answer(
            400, "this server does not generate text", "unsupported_capability", "unsupported_capability"
        ),
        "auth": Answer(401, "missing or invalid bearer token", "authentication_error", "invalid_api_key"),
        "not_found": Answer(404, "unknown endpoint", "invalid_request_error", "not_found"),
        "model_not_found": Answer(404, "model is not loaded", "invalid_request_error", "model_not_found"),
        "method": Answer(405, "method not allowed", "invalid_request_error", "method_not_allowed"),
        "stalled_body": Answer(408, "request body stalled", "invalid_request_error", "request_timeout"),
        "body_too_large": Answer(
            413, f"request body exceeds {MAX_BODY_BYTES} bytes", "invalid_request_error", "body_too_large"
        ),
        "uri_too_long": Answer(414, "request line too long (over 4094 bytes)", "invalid_request_error", "uri_too_long"),
        "content_encoding": Answer(
            415, "unsupported content encoding", "invalid_request_error", "unsupported_content_encoding"
        ),
        "expectation": Answer(417, "unsupported expectation", "invalid_request_error", "expectation_failed"),
        "overloaded": Answer(429, "server is overloaded", "overloaded_error", "overloaded", 1),
        "headers_too_large": Answer(
            431,
            "request headers too large (a field over 8190 bytes, or over 100 fields)",
            "invalid_request_error",
            "headers_too_large",
        ),
        "inference": Answer(500, "embedding failed", "server_error", "inference_failed"),
        "contextual_inference": Answer(500, "contextual embedding failed", "server_error", "inference_failed"),
        "rerank_inference": Answer(500, "reranking failed", "server_error", "inference_failed"),
        "non_finite": Answer(500, "the model produced a non-finite value", "server_error", "non_finite_vector"),
        "internal": Answer(500, "internal error", "server_error", "internal_error"),
        "not_ready": Answer(503, "server is not ready", "server_error", "not_ready", 5),
        "draining": Answer(503, "server is draining", "server_error", "draining", 1),
        "deadline": Answer(503, "request deadline exceeded", "server_error", "deadline_exceeded", 1),
    }
)


class HttpFault(Exception):
    """Ends a request with a row of ANSWERS."""

    def __init__(self, kind: str, *, param: str | None = None, headers: Mapping[str, str] = MappingProxyType({})):
        super().__init__(kind)
        self.kind = kind
        self.answer = ANSWERS[kind]
        self.param = param
        self.headers = headers


def fault_of(error: RequestError) -> HttpFault:
    """Turn an engine's error into its answer."""
    return HttpFault(error.kind if error.kind in ANSWERS else "internal")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a body: where (without the leading `body`), the message, its type."""

    loc: tuple[str | int, ...]
    msg: str
    type: str


class Invalid(Exception):
    """Ends a request with every problem of one validation phase."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems[0].msg)
        self.problems = problems
