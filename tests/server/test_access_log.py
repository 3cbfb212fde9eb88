"""One line for each request that is worked on, as text or as JSON: numbers, never a text or a key."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.serving import Server

SECRET = "a text that nobody may read in a log"
KEY = {"Authorization": "Bearer sesame-7"}
STAGES = {f"{stage}_ms" for stage in ("queue", "parse", "tokenize", "infer", "encode")}
FIELDS = ["time", "id", "method", "route", "model", "status", "texts", "tokens"]
WRONG = {"Authorization": f"Bearer {SECRET}"}


def ask(server: Server) -> list[tuple[str, str, str, str]]:
    """Send a POST of each outcome, with a secret in every place; return each one's route, label, status and texts."""
    outcomes = [
        ("/v1/embeddings", {"input": [SECRET, "b"]}, KEY, ("/v1/embeddings", "m", "200", "2")),
        ("/v1/embeddings", {"input": SECRET, "dimensions": 3}, KEY, ("/v1/embeddings", "m", "422", "0")),
        ("/v1/embeddings", {"model": SECRET, "input": SECRET}, KEY, ("/v1/embeddings", "", "422", "0")),
        ("/v1/embeddings", {"input": "x"}, WRONG, ("/v1/embeddings", "", "401", "0")),
        ("/v1/tokenize", {"input": SECRET}, KEY, ("/v1/tokenize", "m", "200", "1")),
        ("/v1/rerank", {"query": SECRET, "documents": [SECRET, "b"]}, KEY, ("/v1/rerank", "m", "200", "2")),
        (f"/{SECRET.replace(' ', '%20')}?{SECRET.replace(' ', '+')}", {}, KEY, ("unmatched", "", "404", "0")),
        ("/v1/chat/completions", {"messages": [SECRET]}, KEY, ("/v1/chat/completions", "", "400", "0")),
    ]
    for path, body, headers, (_, _, status, _) in outcomes:
        assert server.post(body, path, headers).status == int(status)
    assert server.get("/v1/models", KEY).status == 200 and server.get("/health").status == 200
    return [expected for *_, expected in outcomes]


def test_json_has_one_object_for_each_post_and_no_text_or_key(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"m={tiny}:rerank=cosine", "--api-key", "sesame-7", "--log-format", "json")
    expected = ask(server)
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    assert [tuple(str(line[name]) for name in ("route", "model", "status", "texts")) for line in lines] == expected
    assert all(list(line)[: len(FIELDS)] == FIELDS and line["method"] == "POST" for line in lines)
    assert lines[0]["tokens"] > 4 and set(lines[0]) == {*FIELDS, *STAGES} and lines[0]["infer_ms"] > 0
    assert all(re.fullmatch("[0-9a-f]{32}", line["id"]) for line in lines)
    refusals = [line.get("refusal") for line in lines]
    assert refusals == [None, "validation", "validation", "auth", None, None, "not_found", "generation"]
    _tells_no_secret(server)


def test_text_has_one_line_for_each_post_and_no_text_or_key(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"m={tiny}:rerank=cosine", "--api-key", "sesame-7")
    expected = ask(server)
    lines = [line for line in server.output.splitlines() if "route=" in line]
    found = [dict(field.split("=", 1) for field in line.split(" ")) for line in lines]
    assert [tuple(fields[name] for name in ("route", "model", "status", "texts")) for fields in found] == expected
    assert set(found[0]) == {*FIELDS, *STAGES}
    _tells_no_secret(server)


def test_the_id_in_the_log_is_the_one_that_the_client_got(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"m={tiny}", "--log-format", "json")
    assert server.post({"input": "x"}, headers={"X-Request-Id": "tide-7"}).headers["x-request-id"] == "tide-7"
    made = server.post({"input": "x"}).headers["x-request-id"]
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == ["tide-7", made]


def test_verbose_also_logs_gets(tiny: Path, serve: Callable[..., Server]) -> None:
    server = serve("--model", f"m={tiny}", "-v")
    assert server.get("/v1/models").status == 200
    assert "method=GET route=/v1/models model= status=200" in server.output


def _tells_no_secret(server: Server) -> None:
    for secret in (SECRET, SECRET.replace(" ", "%20"), SECRET.replace(" ", "+"), "nobody", "sesame-7"):
        assert secret not in server.output
