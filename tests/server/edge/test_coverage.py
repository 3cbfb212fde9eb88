"""Every row of http.md section 16 has a test, by the names of the tests: comments and docstrings do not count."""

import ast
import re
from pathlib import Path

SERVER = Path(__file__).parents[1]
EVERY = {f"E{number:02}" for number in range(1, 91)}
# Rows whose tests are elsewhere, and why they are not here.
ELSEWHERE = {
    # Bodies of 64 MiB take seconds: once is enough.
    "E08": [
        "test_transport.py::test_bodies_of_64_mib_are_read_and_larger_ones_refused",
        "test_transport.py::test_a_chunked_body_is_read_and_one_that_grows_too_large_refused",
    ],
    # Needs two workers, and what reads the page.
    "E90": ["test_metrics.py::test_every_series_is_there_at_0_before_any_request"],
}


def functions_of(path: Path) -> list[ast.FunctionDef]:
    """Return a module's test functions."""
    body = ast.parse(path.read_text()).body
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def rows_of(path: Path) -> set[str]:
    """Return the rows in a module's test names, and those of the tables its tests are parametrised with."""
    tests = functions_of(path)
    rows = {f"E{number}" for test in tests for number in re.findall(r"_e(\d\d)(?=_)", test.name)}
    used = {
        node.id
        for test in tests
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Name)
    }
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            constants = [node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)]
            if statement.target.id in used:
                rows |= {row for row in constants if isinstance(row, str) and re.fullmatch(r"E\d\d", row)}
    return rows


def test_every_row_of_the_table_has_its_test() -> None:
    found = set().union(*(rows_of(path) for path in Path(__file__).parent.glob("test_*.py")))
    assert found | set(ELSEWHERE) == EVERY
    assert not found & set(ELSEWHERE), "a row that is here is not elsewhere"
    for row, places in ELSEWHERE.items():
        for file, _, name in (place.partition("::") for place in places):
            assert name in [test.name for test in functions_of(SERVER / file)], f"{row}: {file} no longer has {name}"
