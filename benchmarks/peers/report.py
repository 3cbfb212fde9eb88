"""Ratios of a race, as a table and as JSON."""

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import BASE
from benchmarks.peers.rounds import Measured, Race
from benchmarks.workloads import table


def results(race: Race, sets: Sequence[str]) -> dict[str, Any]:
    """Gather each contender's numbers, ratios to ffwd_ort's included."""
    base = race.measured.get(BASE)
    return {
        "contenders": {
            name: {**vars(measured), "ratio": {key: _ratio(measured, base, key) for key in sets} if base else {}}
            for name, measured in race.measured.items()
        },
        "left_out": race.left_out,
    }


def _ratio(measured: Measured, base: Measured, key: str) -> dict[str, float]:
    """Return the median of the rounds' ratios, and half the range between their quartiles."""
    ratios = [theirs / ours for theirs, ours in zip(measured.seconds[key], base.seconds[key], strict=True)]
    first, _, third = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"median": statistics.median(ratios), "spread": (third - first) / 2}


def machine(threads: int) -> dict[str, Any]:
    """Say what this was measured on."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    return {"cpu": cpu, "cores": threads, "architecture": platform.machine(), "system": platform.system()}


def print_table(found: dict[str, Any], sets: Sequence[str], tokens: dict[str, int]) -> None:
    """Print a row for each contender, then who was left out."""
    header = ["contender"]
    for name in sets:
        header += [f"{name} s", "tokens/s", "times ours", "spread"]
    rows = []
    for name, numbers in found["contenders"].items():
        row = [name]
        for key in sets:
            median, ratio = statistics.median(numbers["seconds"][key]), numbers["ratio"].get(key)
            row += [f"{median:.2f}", f"{tokens[key] / median:.0f}"]
            row += [f"{ratio['median']:.2f}", f"{ratio['spread']:.2f}"] if ratio else ["", ""]
        peak, cosines = numbers["peak_mb"], numbers["least_cosine"].values()
        row += [f"{numbers['load_seconds']:.1f}", f"{peak:.0f}" if peak else ""]
        rows.append([*row, f"{min(cosines):.7f}" if cosines else ""])
    print("\n" + table([*header, "load s", "peak MB", "least cosine"], rows))
    print("times ours: the median of the rounds' ratios; spread: half the range between their quartiles")
    for name, numbers in found["contenders"].items():
        print(f"{name}: " + ", ".join(f"{package} {number}" for package, number in numbers["versions"].items()))
    for name, reason in found["left_out"].items():
        print(f"left out: {name}: {reason}")
