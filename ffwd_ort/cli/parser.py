"""What both commands share: argparse with errors of one line, and exit codes."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ffwd_ort.errors import FfwdError, UsageError

USAGE, REFUSED, INTERRUPTED = 2, 3, 130

HELP_WIDTH = 98  # argparse leaves two columns free: help fits 100


def exit_code(program: str, run: Callable[[], object]) -> int:
    """Run a command; print what it refuses as one line, and return its exit code (cli.md)."""
    try:
        run()
    except FfwdError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


class Parser(argparse.ArgumentParser):
    """A parser that neither abbreviates flags nor prints its usage before an error."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["allow_abbrev"] = False
        options.setdefault("formatter_class", partial(argparse.HelpFormatter, width=HELP_WIDTH))
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(USAGE)
