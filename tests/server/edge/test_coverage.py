"""Every row of http.md section 16 is named by a test."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LAST = 90
# Rows that other files hold without their number: what they are, and where.
ELSEWHERE = {
    "E08": ("test_transport.py", "range(65)"),
    "E09": ("test_transport.py", "zz"),
    "E10": ("test_transport.py", "incomplete_body"),
    "E11": ("test_transport.py", "headers_too_large"),
    "E12": ("test_transport.py", "100-continue"),
    "E15": ("test_other_clients.py", "--max-concurrent-requests"),
    "E85": ("test_lifecycle.py", "draining"),
    "E86": ("test_lifecycle.py", "non_finite_vector"),
    "E90": ("test_metrics.py", "test_every_series_is_there_before_any_request"),
}


def test_every_row_of_the_table_has_its_test() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py") if path.name != "test_coverage.py")
    named = {f"E{number}" for number in re.findall(r"[eE](\d\d)(?=[_\"'\-\s])", text)}
    every = {f"E{number:02}" for number in range(1, LAST + 1)}
    assert every - named - set(ELSEWHERE) == set()
    for row, (file, mark) in ELSEWHERE.items():
        assert mark in (TESTS / file).read_text(), f"{row}: {file} no longer has {mark}"
