"""ffwd-ort bench: figures of a real server and of the engine, and refusals that name what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ffwd_ort.cli.main import main
from tests.serving import Server

SHORT = ["--seconds", "0.5", "--concurrency", "2", "--json"]


def test_a_servers_figures_are_those_of_the_requests_it_answered(
    tiny: Path, serve: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve("--model", f"a={tiny}", "--model", f"b={tiny}", "--api-key", "sesame")
    options = ["--model", "b", "--api-key", "sesame", "--batch", "3", "--words", "5"]
    assert main(["bench", server.url, *options, *SHORT]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["errors"], figures["batch"], figures["concurrency"]) == (0, 3, 2)
    assert figures["requests"] > 5 and 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"]
    assert figures["vectors_per_second"] == pytest.approx(figures["requests"] * 3 / figures["seconds"])
    assert figures["tokens_per_second"] > 6 * figures["vectors_per_second"], "five words and two special tokens"
    assert 0.1 < figures["fill"] <= 1
    page = server.request("GET", "/metrics", headers={"Authorization": "Bearer sesame"}).body.decode()
    (line,) = [
        line
        for line in page.splitlines()
        if line.startswith("ffwd_requests_total") and 'model="b"' in line and '"/v1/embeddings",status="200"' in line
    ]
    assert float(line.split()[-1]) >= figures["requests"]


def test_the_engine_is_measured_in_this_process(
    tiny: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the tide falls\n\nkelp\n")
    arguments = [str(tiny), "--file", str(texts), "--cache-dir", str(cache_dir)]
    assert main(["bench", *arguments, *SHORT]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["requests"] > 5 and figures["tokens_per_second"] > 0 and 0 < figures["fill"] <= 1
    assert main(["bench", *arguments, *SHORT[:-1]]) == 0
    assert "vectors/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["http://127.0.0.1:9", "--seconds", "0"], "--seconds 0.0: at least 0.1"),
        (["http://127.0.0.1:9", "--batch", "0"], "--batch 0: at least 1"),
        (["http://127.0.0.1:9", "--file", "no/such"], "--file 'no/such' cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) != 0
    assert says in capsys.readouterr().err
