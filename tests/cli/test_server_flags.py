"""ffwd-server's flags: read from the command line and the environment, checked before anything is loaded."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.cli.server import main, make_parser
from ffwd_ort.config import FLAGS, ModelSpec, ServerConfig, make_config, parse_model
from ffwd_ort.errors import UsageError
from ffwd_ort.sources import DEMO_SOURCE
from ffwd_ort.version import VERSION
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

# A source that is not there: a command line that passes every check by mistake ends with 3, not in a server.
NOWHERE = "m=no/such/folder"
BY_NAME = {flag.name: flag for flag in FLAGS}
AVAILABLE = [flag.name for flag in FLAGS if flag.available]
NOT_AVAILABLE = [flag.name for flag in FLAGS if not flag.available]


def config(*argv: str, environ: Mapping[str, str] | None = None, model: bool = True) -> ServerConfig:
    """Settle a command line as the server does."""
    given = vars(make_parser().parse_args([*(["--model", NOWHERE] if model else []), *argv]))
    return make_config(given, positional=given.get("checkpoint"), environ=environ or {})


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command line that must be refused; return its one line."""
    try:
        code = main([*argv])
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("ffwd-server: ")
    assert captured.err.count("\n") == 1
    return captured.err


# --- every flag, its variable, and which wins ------------------------------------------------------

Look = Callable[[ServerConfig], Any]


def field(name: str) -> Look:
    return lambda settled: getattr(settled, name)


def first_source(settled: ServerConfig) -> str:
    return settled.models[0].source


def last_of(kind: str) -> Look:
    """See the source of the last label of a kind."""
    return lambda settled: [None, *(spec.source for spec in settled.models if spec.kind == kind)][-1]


# flag: (a text, what it becomes, another text, what that becomes, where it is seen)
VALUES: dict[str, tuple[str, Any, str, Any, Look]] = {
    "--model": ("a=x", "x", "b=y", "y", first_source),
    "--contextual-model": ("c=x", "x", "d=y", "y", last_of("contextual")),
    "--late-model": ("l=x", "x", "k=y", "y", last_of("late")),
    "--reranker-model": ("r=x", "x", "s=y", "y", last_of("cross_encoder")),
    "--cache-dir": ("/a", Path("/a"), "/b", Path("/b"), field("cache_dir")),
    "--host": ("0.0.0.0", "0.0.0.0:8000", "localhost", "localhost:8000", field("bind")),
    "--port": ("0", "127.0.0.1:0", "65535", "127.0.0.1:65535", field("bind")),
    "--bind": ("unix:/a", "unix:/a", "0.0.0.0:81", "0.0.0.0:81", field("bind")),
    "--threads": ("1", 1, "1024", 1024, field("threads")),
    "--workers": ("1", 1, "256", 256, field("workers")),
    "--batch-size": ("1", 1, "65536", 65536, field("batch_size")),
    "--step-tokens": ("16", 16, "65536", 65536, field("step_tokens")),
    "--batch-wait-us": ("0", 0, "1000000", 1_000_000, field("batch_wait_us")),
    "--max-batch-tokens": ("16", 16, "1048576", 1 << 20, field("max_batch_tokens")),
    "--max-request-tokens": ("1", 1, "1073741824", 1 << 30, field("max_request_tokens")),
    "--max-concurrent-requests": ("1", 1, "65536", 65536, field("max_concurrent_requests")),
    "--rows": ("1", 1, "65536", 65536, field("rows")),
    "--max-seq": ("3", 3, "1048576", 1 << 20, field("max_seq")),
    "--request-timeout": ("0.001", 0.001, "86400", 86400.0, field("request_timeout")),
    "--graceful-timeout": ("1", 1, "86400", 86400, field("graceful_timeout")),
    "--memory-utilization": ("0.05", 0.05, "1", 1.0, field("memory_utilization")),
    "--provider": ("cpu", "cpu", "numpy", "numpy", field("provider")),
    "--api-key": ("a,b", (b"a", b"b"), "c", (b"c",), field("api_keys")),
    "--cors-origin": ("https://a", ("https://a",), "*", ("*",), field("cors_origin")),
    "--log-format": ("json", "json", "text", "text", field("log_format")),
    "--validation-status": ("400", 400, "422", 422, field("validation_status")),
}
SWITCHES: dict[str, tuple[Any, Any, Look]] = {
    "--demo": (True, False, lambda settled: "demo" in [spec.label for spec in settled.models]),
    "--auto-truncate": (True, False, field("auto_truncate")),
    "--cuda": ("cuda", "auto", field("provider")),
    "--metrics-public": (True, False, field("metrics_public")),
    "--verbose": (True, False, field("verbose")),
}
# Flags of which one value is available so far: only that another one is refused can be seen.
SINGLE = {"--gpu-gemm-mode": "f32", "--gpu-weight-dtype": "f32"}
FILES = {"--api-key-file"}
DEFAULTS: dict[str, Any] = {
    "api_keys": (),
    "bind": "127.0.0.1:8000",
    "provider": "auto",
    "cache_dir": None,
    "threads": None,
    "workers": 1,
    "batch_size": None,
    "step_tokens": None,
    "batch_wait_us": 0,
    "auto_truncate": False,
    "max_batch_tokens": 16384,
    "max_request_tokens": 120_000,
    "max_concurrent_requests": 512,
    "rows": None,
    "max_seq": None,
    "request_timeout": 120.0,
    "graceful_timeout": 30,
    "memory_utilization": 0.9,
    "validation_status": 422,
    "cors_origin": (),
    "metrics_public": False,
    "log_format": "text",
    "verbose": False,
}


def test_every_available_flag_is_covered_here() -> None:
    assert {*VALUES, *SWITCHES, *SINGLE, *FILES} == set(AVAILABLE)


def test_the_defaults_are_those_of_the_specification() -> None:
    settled = config()
    assert {name: getattr(settled, name) for name in ServerConfig.__dataclass_fields__ if name != "models"} == DEFAULTS


def test_every_variable_is_named_as_its_flag() -> None:
    for flag in FLAGS:
        assert flag.variable == "FFWD_" + flag.name.removeprefix("--").upper().replace("-", "_")


@pytest.mark.parametrize("name", VALUES)
def test_a_flag_and_its_variable_mean_the_same_and_the_flag_wins(name: str) -> None:
    one, becomes, other, otherwise, look = VALUES[name]
    variable, bare = BY_NAME[name].variable, name != "--model"
    assert look(config(name, one, model=bare)) == becomes
    assert look(config(f"{name}={one}", model=bare)) == becomes
    assert look(config(environ={variable: one}, model=bare)) == becomes
    assert look(config(environ={variable: other}, model=bare)) == otherwise
    assert look(config(name, other, environ={variable: one}, model=bare)) == otherwise


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_and_its_variable_mean_the_same_and_the_switch_wins(name: str) -> None:
    on, off, look = SWITCHES[name]
    variable = BY_NAME[name].variable
    assert look(config()) == off
    assert look(config(name)) == on
    for text in ("1", "true", "YES", "On"):
        assert look(config(environ={variable: text})) == on
    for text in ("0", "false", "No", "OFF"):
        assert look(config(environ={variable: text})) == off
        assert look(config(name, environ={variable: text})) == on
    with pytest.raises(UsageError, match=rf"^{variable} 'maybe': permitted: 1, true, yes, on, 0, false, no, off$"):
        config(environ={variable: "maybe"})


@pytest.mark.parametrize("name", SINGLE)
def test_a_flag_with_one_value_so_far_takes_that_value_from_both_places(name: str) -> None:
    variable, value = BY_NAME[name].variable, SINGLE[name]
    config(name, value)
    config(environ={variable: value})
    with pytest.raises(UsageError, match=rf"^{variable} 'x': permitted: {value}"):
        config(environ={variable: "x"})


def test_short_flags_are_their_long_ones() -> None:
    settled = config("-t", "3", "-b", "7", "-v")
    assert (settled.threads, settled.batch_size, settled.verbose) == (3, 7, True)


def test_repeatable_flags_repeat_and_their_variable_takes_lines() -> None:
    specs = (ModelSpec("a", "x"), ModelSpec("b", "y", min_dim=4))
    assert config("--model", "a=x", "--model", "b=y:min_dim=4", model=False).models == specs
    assert config(environ={"FFWD_MODEL": "a=x\n\nb=y:min_dim=4\n"}, model=False).models == specs


def test_the_positional_source_is_labelled_by_its_name_and_joins_the_others() -> None:
    every_route = ModelSpec("folder", "some/folder", kind=None, rerank="cosine")
    assert config("some/folder", model=False).models == (every_route,)
    assert [spec.label for spec in config("hf://org/tiny@main").models] == ["m", "tiny"]


def test_demo_is_a_model_of_the_package_index() -> None:
    assert config("--demo", model=False).models == (ModelSpec("demo", DEMO_SOURCE),)


def test_keys_come_from_the_flag_and_from_a_file_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    assert config("--api-key-file", str(file)).api_keys == (b"one", b"two")
    assert config(environ={"FFWD_API_KEY_FILE": str(file), "FFWD_API_KEY": " zero , "}).api_keys == (
        b"zero",
        b"one",
        b"two",
    )
    assert config("--api-key", "").api_keys == ()
    assert config("--api-key", "", environ={"FFWD_API_KEY": "x"}).api_keys == ()


@pytest.mark.parametrize(
    ("bind", "public"),
    [
        ("127.0.0.1:80", False),
        ("localhost:80", False),
        ("[::1]:80", False),
        ("unix:/run/ffwd", False),
        ("0.0.0.0:80", True),
        ("[::]:80", True),
        ("10.0.0.7:80", True),
    ],
)
def test_an_address_that_others_reach_is_known_as_public(bind: str, public: bool) -> None:
    assert config("--bind", bind).public is public


def test_a_host_with_colons_is_bracketed() -> None:
    assert config("--host", "::1", "--port", "81").bind == "[::1]:81"
    assert config("--host", "[::1]", "--port", "81").bind == "[::1]:81"


def test_requests_are_divided_among_workers_and_rounded_up() -> None:
    assert config("--workers", "3", "--max-concurrent-requests", "10").requests_per_worker == 4


# --- values that are refused -----------------------------------------------------------------------

INTEGERS = {
    "--port": (0, 65535),
    "--threads": (1, 1024),
    "--workers": (1, 256),
    "--batch-size": (1, 65536),
    "--step-tokens": (16, 65536),
    "--batch-wait-us": (0, 1_000_000),
    "--max-batch-tokens": (16, 1 << 20),
    "--max-request-tokens": (1, 1 << 30),
    "--max-concurrent-requests": (1, 65536),
    "--rows": (1, 65536),
    "--max-seq": (3, 1 << 20),
    "--graceful-timeout": (1, 86400),
}
NUMBERS = {"--request-timeout": (0.001, 86400), "--memory-utilization": (0.05, 1)}
CHOICES = {
    "--provider": "auto, cpu, cuda, coreml, numpy",
    "--gpu-gemm-mode": "f32, tf32, bf16, 16f",
    "--gpu-weight-dtype": "f32, bf16, f16",
    "--validation-status": "422, 400",
    "--log-format": "text, json",
}
LATER = [
    ("--gpu-gemm-mode", "tf32"),
    ("--gpu-gemm-mode", "bf16"),
    ("--gpu-gemm-mode", "16f"),
    ("--gpu-weight-dtype", "bf16"),
    ("--gpu-weight-dtype", "f16"),
]


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_out_of_range_or_malformed_is_refused_with_flag_value_and_range(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = INTEGERS[name]
    for text in (str(low - 1), str(high + 1), "x", "", "1.5", "1e3", "0x10", " 8", "--5", "-", "9" * 5000):
        expected = f"ffwd-server: {name} {text!r}: an integer from {low} to {high} is permitted\n"
        assert refusal(capsys, "--model", NOWHERE, f"{name}={text}") == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_range_or_malformed_is_refused_with_flag_value_and_range(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = NUMBERS[name]
    for text in ("0", "-1", str(high * 2), "nan", "inf", "-inf", "x", ""):
        expected = f"ffwd-server: {name} {text!r}: a number from {low:g} to {high:g} is permitted\n"
        assert refusal(capsys, "--model", NOWHERE, f"{name}={text}") == expected


@pytest.mark.parametrize("name", CHOICES)
def test_a_word_that_is_no_choice_is_refused_with_the_choices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("x", "", CHOICES[name].partition(",")[0].upper() + "_"):
        expected = f"ffwd-server: {name} {text!r}: permitted: {CHOICES[name]}\n"
        assert refusal(capsys, "--model", NOWHERE, name, text) == expected


@pytest.mark.parametrize(("name", "text"), LATER)
def test_a_choice_of_a_later_version_is_refused_as_not_available(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "--model", NOWHERE, name, text)
    assert line.startswith(f"ffwd-server: {name} {text!r}: not available yet in this version; permitted: ")


@pytest.mark.parametrize("name", NOT_AVAILABLE)
def test_a_flag_of_a_later_version_is_refused_by_name_and_so_is_its_variable(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = [] if BY_NAME[name].switch else ["a=x"]
    expected = "is not available yet in this version\n"
    assert refusal(capsys, "--model", NOWHERE, name, *value) == f"ffwd-server: {name} {expected}"
    monkeypatch.setenv(BY_NAME[name].variable, "1")
    assert refusal(capsys, "--model", NOWHERE) == f"ffwd-server: {BY_NAME[name].variable} {expected}"


def test_a_bad_variable_is_refused_by_its_own_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFWD_PORT", "70000")
    expected = "ffwd-server: FFWD_PORT '70000': an integer from 0 to 65535 is permitted\n"
    assert refusal(capsys, "--model", NOWHERE) == expected


@pytest.mark.parametrize(
    "text", ["", "8000", "localhost", "localhost:", "localhost:x", "localhost:65536", ":80", "unix:"]
)
def test_an_address_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"ffwd-server: --bind {text!r}: HOST:PORT or unix:PATH is permitted\n"
    assert refusal(capsys, "--model", NOWHERE, f"--bind={text}") == expected


def test_a_key_file_that_is_missing_or_holds_no_key_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, reason in ((None, "cannot be read"), (b" \n\n", "holds no key"), (b"\xff\xfe", "cannot be read")):
        file = tmp_path / "keys"
        if content is not None:
            file.write_bytes(content)
        line = refusal(capsys, "--model", NOWHERE, "--api-key-file", str(file))
        assert line.startswith(f"ffwd-server: --api-key-file {str(file)!r} {reason}")


def test_cuda_and_another_provider_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--cuda and --provider cpu contradict" in refusal(capsys, "--model", NOWHERE, "--cuda", "--provider", "cpu")
    assert config("--cuda", "--provider", "cuda").provider == "cuda"


# --- the shape of the command line -----------------------------------------------------------------


@pytest.mark.parametrize("argument", ["--prot", "--mod", "--no-such-flag=3", "-z"])
def test_an_unknown_or_shortened_flag_is_named(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "--model", NOWHERE, argument)
    assert line == f"ffwd-server: unrecognized arguments: {argument}; see ffwd-server --help\n"


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if not flag.switch])
def test_a_missing_value_is_refused_naming_the_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "--model", NOWHERE, name)
    assert name in line
    assert "expected one argument" in line


def test_a_value_for_a_switch_and_a_second_source_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--cuda" in refusal(capsys, "--model", NOWHERE, "--cuda=yes")
    assert "other/folder" in refusal(capsys, "some/folder", "other/folder")


def test_nothing_to_serve_is_refused_with_what_could_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to serve: give --model LABEL=SOURCE, a checkpoint folder, or --demo" in refusal(capsys)


def test_version_is_one_line_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"ffwd_ort {VERSION}\n"


def test_build_info_lists_versions_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--build-info"])
    assert caught.value.code == 0
    lines = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["ffwd_ort"] == VERSION
    assert {"python", "onnx", "tokenizers", "gunicorn"} <= set(lines)


@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_help_lists_every_flag_in_groups_with_defaults_and_fits_100_columns(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    body = text[text.index("\noptions:") :]
    for flag in FLAGS:
        assert f"\n{flag.group}:\n" in body
        assert f"{flag.name} " in body
        described = " ".join(body[body.index(f"{flag.name} ") :].split()).partition(" --")[0]
        if not flag.available:
            assert "(not available yet)" in described
        elif flag.default not in (None, (), "") and flag.default is not False:
            assert f"(default {flag.default})" in described


# --- LABEL=SRC:opts --------------------------------------------------------------------------------


def parse(text: str) -> ModelSpec:
    return parse_model("--model", text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a=dir", ModelSpec("a", "dir")),
        ("a=/some/dir", ModelSpec("a", "/some/dir")),
        ("a=dir=x", ModelSpec("a", "dir=x")),
        ("a=hf://org/name@main", ModelSpec("a", "hf://org/name@main")),
        ("a=hf://org/name@main:max_seq=9", ModelSpec("a", "hf://org/name@main", max_seq=9)),
        ("a=pypi://p==1.0/m#sha256=0:min_dim=8", ModelSpec("a", "pypi://p==1.0/m#sha256=0", min_dim=8)),
        ("a=dir:", ModelSpec("a", "dir")),
        ("a=dir:min_dim=64", ModelSpec("a", "dir", min_dim=64)),
        ("a=dir:max_seq=64", ModelSpec("a", "dir", max_seq=64)),
        ("a=dir:pooling=mean", ModelSpec("a", "dir", pooling="mean")),
        ("a=dir:pooling=cls", ModelSpec("a", "dir", pooling="cls")),
        ("a=dir:pooling=last", ModelSpec("a", "dir", pooling="last")),
        ("a=dir:normalize=contract", ModelSpec("a", "dir")),
        ("a=dir:normalize=always", ModelSpec("a", "dir", normalize="always")),
        ("a=dir:normalize=never", ModelSpec("a", "dir", normalize="never")),
        ("a=dir:token_ids=refuse", ModelSpec("a", "dir")),
        ("a=dir:token_ids=accept", ModelSpec("a", "dir", token_ids="accept")),
        ("a=dir:api=openai", ModelSpec("a", "dir")),
        ("a=dir:api=default", ModelSpec("a", "dir")),
        ("a=dir:precision=f32", ModelSpec("a", "dir")),
        ("a=dir:rerank=cosine", ModelSpec("a", "dir", rerank="cosine")),
        ("a=dir:query=find: ", ModelSpec("a", "dir", prompts={"query": "find: "})),
        ("a=dir:query_instruct=x", ModelSpec("a", "dir", prompts={"query": "x"})),
        ("a=dir:query=", ModelSpec("a", "dir", prompts={"query": ""})),
        (
            "a=hf://o/n:min_dim=8:max_seq=9:pooling=cls:normalize=never:token_ids=accept:query=Task: a:b=c",
            ModelSpec("a", "hf://o/n", 8, 9, "cls", "never", "accept", {"query": "Task: a:b=c"}),
        ),
    ],
)
def test_every_option_is_read(text: str, spec: ModelSpec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (r"a\nb", "a\nb"),
        (r"a\tb", "a\tb"),
        (r"a\\nb", r"a\nb"),
        (r"\\\n", "\\\n"),
        (r"a\qb", r"a\qb"),
        ("a\\", "a\\"),
        ("Instruct: find\\nQuery:", "Instruct: find\nQuery:"),
        ("http://x:1/?q=2", "http://x:1/?q=2"),
        (":min_dim=8", ":min_dim=8"),
        ("ümläut ☂", "ümläut ☂"),
    ],
)
def test_query_takes_the_rest_with_colons_and_reads_escapes(written: str, means: str) -> None:
    assert parse(f"a=dir:max_seq=9:query={written}") == ModelSpec("a", "dir", max_seq=9, prompts={"query": means})


def test_prompts_come_from_a_file_and_query_overrides_it(tmp_path: Path) -> None:
    write_json(tmp_path / "p.json", {"query": "q: ", "document": "d: "})
    assert parse(f"a=dir:prompts={tmp_path / 'p.json'}").prompts == {"query": "q: ", "document": "d: "}
    assert parse(f"a=dir:prompts={tmp_path / 'p.json'}:query=Q").prompts == {"query": "Q", "document": "d: "}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"q"', b'{"query": 5}', b"\xff", None])
def test_a_prompts_file_that_is_missing_or_no_map_of_texts_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "p.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        parse(f"a=dir:prompts={file}")
    assert str(caught.value).startswith(f"--model a: option prompts={str(file)!r}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "a", "=dir", "a=", "=", "a=:max_seq=9", "a=hf://", "a=hf://:max_seq=9", " =dir"])
def test_a_label_and_a_source_are_needed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"ffwd-server: --model {text!r}: write LABEL=SOURCE[:option=value…], with a label and a source\n"
    assert refusal(capsys, f"--model={text}") == expected


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("min_dim=0", "option min_dim='0': a positive integer is permitted"),
        ("min_dim=-1", "option min_dim='-1': a positive integer is permitted"),
        ("min_dim=x", "option min_dim='x': a positive integer is permitted"),
        ("max_seq=", "option max_seq='': a positive integer is permitted"),
        ("max_seq=" + "9" * 5000, f"option max_seq='{'9' * 5000}': a positive integer is permitted"),
        ("max_seq=1.5", "option max_seq='1.5': a positive integer is permitted"),
        ("pooling=max", "option pooling='max': permitted: mean, cls, last"),
        ("normalize=yes", "option normalize='yes': permitted: contract, always, never"),
        ("token_ids=1", "option token_ids='1': permitted: refuse, accept"),
        ("api=cohere", "option api='cohere': permitted: openai, default, perplexity, pplx"),
        ("precision=f64", "option precision='f64': permitted: f32, int8"),
        ("rerank=maxsim", "option rerank='maxsim': permitted: cosine"),
        ("colour=red", "unknown option 'colour'; there are api, min_dim, max_seq,"),
        ("max_seq=9:colour=red", "unknown option 'colour'; there are"),
        ("MAX_SEQ=9", "unknown option 'MAX_SEQ'; there are"),
        ("=9", "unknown option ''; there are"),
        ("max_seq", "option 'max_seq' needs a value: max_seq=…"),
        ("pooling:max_seq=9", "option 'pooling' needs a value: pooling=…"),
        ("query", "option 'query' needs a value: query=…"),
    ],
)
def test_a_malformed_option_is_refused_naming_flag_label_option_and_what_is_permitted(
    option: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "--model", f"a=dir:{option}")
    assert line.startswith(f"ffwd-server: --model a: {says}")


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("--model", "embedding"),
        ("--contextual-model", "contextual"),
        ("--late-model", "late"),
        ("--reranker-model", "cross_encoder"),
    ],
)
def test_each_flag_loads_its_kind_with_the_options_of_every_kind(flag: str, kind: str) -> None:
    spec = parse_model(flag, "a=dir:max_seq=64:normalize=always:precision=f32")
    assert spec == ModelSpec("a", "dir", max_seq=64, normalize="always", kind=kind)
    assert spec.flag == flag


@pytest.mark.parametrize("option", ["api=openai", "min_dim=4"])
def test_an_option_about_vectors_is_for_the_kinds_that_answer_with_them(option: str) -> None:
    name = option.partition("=")[0]
    assert parse_model("--contextual-model", f"a=dir:{option}").kind == "contextual"
    for flag in ("--late-model", "--reranker-model"):
        with pytest.raises(UsageError, match=rf"^{flag} a: option {name} means nothing to labels of this kind$"):
            parse_model(flag, f"a=dir:{option}")


@pytest.mark.parametrize("option", ["pooling=cls", "token_ids=accept", "rerank=cosine"])
@pytest.mark.parametrize("flag", ["--contextual-model", "--late-model", "--reranker-model"])
def test_an_option_of_embedders_is_refused_for_other_kinds(
    flag: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"{flag} a: option {option.partition('=')[0]} means nothing to labels of this kind"
    assert refusal(capsys, flag, f"a=dir:{option}") == f"ffwd-server: {expected}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["--model", "a=x", "--model", "a=y"],
        ["--late-model", "a=x", "--contextual-model", "a=y"],
        ["--model", "demo=x", "--demo"],
        ["--model", "a=x", "some/a"],
    ],
)
def test_a_label_given_twice_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    label = argv[1].partition("=")[0]
    expected = f"ffwd-server: --model: the label {label!r} is given twice; labels must differ\n"
    assert refusal(capsys, *argv) == expected


# --- nothing is loaded before everything is checked ------------------------------------------------


HEAVY = {"numpy", "onnx", "onnxruntime", "onnxscript", "tokenizers", "huggingface_hub", "gunicorn", "falcon"}


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run ffwd-server in a process of its own, which then says what it imported."""
    script = (
        "import sys\n"
        "from ffwd_ort.cli.server import main\n"
        "try:\n    code = main()\nexcept SystemExit as exit:\n    code = exit.code\n"
        f"print(*sorted({HEAVY} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FFWD_")}
    return subprocess.run(
        [sys.executable, "-c", script, *argv], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "tiny", TinyBert(layers=1, hidden=12, heads=3, intermediate=16, positions=32))


def test_a_bad_flag_is_found_before_any_model_is_read_or_library_imported(tiny_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = run("--model", f"a={tiny_folder}", "--cache-dir", str(cache), "--memory-utilization", "2")
    assert done.returncode == 2
    assert done.stderr == "ffwd-server: --memory-utilization '2': a number from 0.05 to 1 is permitted\n"
    assert done.stdout == "\n"
    assert not cache.exists()


def test_version_imports_nothing_heavy() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ffwd_ort {VERSION}\n\n", "")


def test_a_folder_that_is_no_checkpoint_is_found_before_another_label_is_exported(
    tiny_folder: Path, tmp_path: Path
) -> None:
    empty, cache = tmp_path / "empty", tmp_path / "cache"
    empty.mkdir()
    done = run("--model", f"a={tiny_folder}", "--model", f"b={empty}", "--cache-dir", str(cache))
    assert done.returncode == 3
    assert (
        done.stderr == f"ffwd-server: {empty}: neither a checkpoint (no config.json) nor a bundle (no manifest.json)\n"
    )
    assert "onnxruntime" not in done.stdout
    assert not (cache / "bundles").exists()
