"""The soak of benchmarks/soak.py in small: mixed load leaves nothing behind, and what would be left is told."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak import Sample, Tally, kinds, server_arguments, soak, table, verdict
from tests.serving import Server

SECONDS = 18.0
WORKER = 7


def test_mixed_load_leaves_no_memory_and_no_descriptors_and_every_answer_is_the_expected_one(
    serve: Callable[..., Server], tiny: Path
) -> None:
    server = serve(*server_arguments(str(tiny), 1))
    # The memory of a large body goes back in steps, which are noise for so short a time (test_huge_bodies.py).
    mix = [replace(kind, pause=kind.pause / 4) for kind in kinds() if kind.name != "large body"]
    wrong, figures = soak(server, 1, SECONDS, mix)
    assert not wrong, table(figures)


def samples(mib: list[int] | None = None, fds: list[int] | None = None) -> list[Sample]:
    """Make a worker's samples: 40 of them, steady where nothing else is said."""
    mib, fds = mib or [200] * 40, fds or [20] * 40
    return [{WORKER: {"MiB": m, "fds": f, "threads": 9}} for m, f in zip(mib, fds, strict=True)]


def judge(
    series: list[Sample], *, before: int = 18, after: int = 18, worker: int = WORKER, unexpected: str = ""
) -> list[str]:
    tallies = {"short query": Tally([1.0], Counter({unexpected: 2} if unexpected else {}))}
    return verdict({WORKER: {"fds": before}}, series, {worker: {"fds": after}}, tallies)


def test_a_steady_worker_is_fine_whatever_it_did_in_the_first_quarter() -> None:
    assert judge(samples([100, *range(110, 190, 9), *[200] * 29, 205], [20, 40] * 5 + [20, 22] * 15)) == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (judge(samples([200 + i for i in range(40)])), "worker 7: memory grew from 214 to 234 MiB"),
        (judge(samples(fds=[20 + i // 4 for i in range(40)])), "worker 7: descriptors grew from 23 to 28 under load"),
        (judge(samples(), after=19), "worker 7: 19 descriptors are left of 18 before the load"),
        (judge(samples(), worker=8), "the workers changed: [7] at first, [8] at last"),
        (judge(samples(), unexpected="503 for 200"), "short query: 503 for 200 (2 times)"),
    ],
)
def test_what_grows_or_is_not_expected_is_the_reason(wrong: list[str], reason: str) -> None:
    assert wrong == [reason]


def test_clients_that_got_no_answer_at_all_are_told_of() -> None:
    tallies = {"rerank": Tally()}
    idle: Sample = {WORKER: {"fds": 1}}
    assert verdict(idle, samples(), idle, tallies) == ["rerank: nothing was answered"]
