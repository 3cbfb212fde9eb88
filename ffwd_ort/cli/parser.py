"""argparse, with errors of one line: the flag, the value, what is permitted."""

import argparse
import sys
from functools import partial
from typing import Any, NoReturn

USAGE, REFUSED = 2, 3
HELP_WIDTH = 98  # argparse leaves two columns free: help fits 100


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
