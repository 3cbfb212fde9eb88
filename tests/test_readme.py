"""The README tells the truth."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from gunicorn.config import KNOWN_SETTINGS

from ffwd_ort.cli.main import make_parser
from ffwd_ort.cli.zoo import markdown
from ffwd_ort.config import FLAGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_zoo_table_is_what_the_plugins_say() -> None:
    assert markdown() in README, "make it anew: ffwd-ort models --markdown"


def test_every_flag_that_is_named_exists() -> None:
    ours = {flag.name for flag in FLAGS} | set(_options(make_parser()))
    gunicorns = {option for setting in KNOWN_SETTINGS for option in setting.cli or ()}
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    benchmarks = set(re.findall(r'add_argument\("(--[a-z-]+)"', scripts))
    assert set(re.findall(r"--[a-z][a-z-]+", README)) <= ours | gunicorns | benchmarks


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"\b(?:ffwd_ort|models|exporters|conformance|tests|benchmarks)/[\w/]+\.py", README)
    assert named
    for name in set(named) - {"models/NAME.py", "exporters/NAME.py"}:
        assert (ROOT / name).is_file(), name
