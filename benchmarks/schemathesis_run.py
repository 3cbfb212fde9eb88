"""Have schemathesis ask a server of its own thousands of things, and say what came back.

    python -m benchmarks.schemathesis_run [--max 2500] [--seed N]

Prints how many requests were sent and the statuses by route, every answer that is a 5xx, not documented or not as
documented, the slowest answer, and the worker's memory before and after. Fails if there is anything wrong.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzzing import Report, explore, resident, start_fleet

WARM = 1000  # requests before memory is first looked at
GROWTH = 1.05


def show(report: Report, seconds: float, before: float, after: float) -> None:
    """Print the figures."""
    for (label, status), count in sorted(report.statuses.items()):
        print(f"{label:<40} {status} {count:6}")
    totals = Counter({status: 0 for _, status in report.statuses})
    for (_, status), count in report.statuses.items():
        totals[status] += count
    print(f"{report.count} requests in {seconds:.0f} s: {dict(sorted(totals.items()))}")
    print("problems:", ", ".join(f"{name} {count}" for name, count in report.problems.most_common()))
    print(f"slowest {report.slowest * 1000:.0f} ms; worker {before:.1f} MiB before, {after:.1f} MiB after")
    for fault in report.faults:
        print("FAULT", fault)


def main() -> int:
    """Warm the server, then explore it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        server = start_fleet(Path(scratch), Path(scratch) / "cache")
        try:
            explore(server, WARM, arguments.seed + 1)
            before, began = resident(server), time.monotonic()
            report = explore(server, arguments.max, arguments.seed)
            show(report, time.monotonic() - began, before, after := resident(server))
        finally:
            server.stop()
    if after > before * GROWTH:
        print(f"memory grew by {after / before - 1:.1%}")
    return int(bool(report.faults) or after > before * GROWTH)


if __name__ == "__main__":
    sys.exit(main())
