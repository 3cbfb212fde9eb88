"""ffwd-ort conformance: a source against its reference, as a table and as JSON."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from ffwd_ort.errors import RefusedError, UsageError

REFERENCES = ("sentence-transformers", "transformers", "numpy")


def run_conformance(source: str, reference: str | None, report_file: Path | None, cache_dir: Path | None) -> None:
    """Compare and print; raise RefusedError if a level does not hold, or the reference is not installed."""
    chosen = reference or next(name for name in REFERENCES if _installed(name))
    if not _installed(chosen):
        raise RefusedError(
            f"--reference {chosen}: not installed here; pip install 'ffwd_ort[conformance]', or --reference numpy"
        )
    from ffwd_ort_conformance.report import conform

    report = conform(source, chosen, cache_dir)
    _print(report)
    if report_file is not None:
        try:
            report_file.write_bytes(orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
        except OSError as error:
            raise UsageError(f"--report {str(report_file)!r} cannot be written: {error.strerror}") from None
    if not report.passed:
        failed = ", ".join(finding.level for finding in report.findings if not finding.passed)
        raise RefusedError(f"{report.source} does not conform: {failed}")


def _installed(reference: str) -> bool:
    return reference == "numpy" or (
        find_spec("torch") is not None and find_spec(reference.replace("-", "_")) is not None
    )


def _print(report: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 132)
    console.print(f"{report.source}: {report.family} {report.kind} against {report.reference}", highlight=False)
    if report.note:
        console.print(report.note, highlight=False)
    table = Table("level", "compared", "worst", "bar", "")
    for finding in report.findings:
        verdict = "[green]holds[/]" if finding.passed else "[red]fails[/]"
        table.add_row(finding.level, finding.compared, finding.worst, finding.bar, verdict)
    console.print(table)
    for name, digest in report.hashes.items():
        console.print(f"{name} sha256 {digest}", highlight=False)
    console.print(", ".join(f"{name} {number}" for name, number in report.versions.items()), highlight=False)
    for text in report.not_covered:
        console.print(f"not covered: {text}", highlight=False)
