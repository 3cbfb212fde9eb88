"""A picture of the ratios."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import BASE

OURS, THEIRS = "#0b6e4f", "#8d99ae"


def draw(found: dict[str, Any], sets: Sequence[str], titles: dict[str, str], caption: str, path: Path) -> None:
    """Draw a panel for each set: how many times longer than ffwd_ort each contender takes, with the spread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(found["contenders"])
    figure, panels = pyplot.subplots(1, len(sets), sharey=True, figsize=(11, 1.6 + 0.45 * len(names)))
    for panel, key in zip(panels, sets, strict=True):
        ratios = [found["contenders"][name]["ratio"][key] for name in names]
        medians, spreads = [r["median"] for r in ratios], [r["spread"] for r in ratios]
        colours = [OURS if name == BASE else THEIRS for name in names]
        panel.barh(names, medians, xerr=spreads, color=colours, height=0.62, capsize=3, ecolor="#333333")
        for position, (median, spread) in enumerate(zip(medians, spreads, strict=True)):
            panel.annotate(
                f"{median:.2f}", (median + spread, position), (6, 0), textcoords="offset points", va="center"
            )
        panel.axvline(1.0, color="#222222", linewidth=1, linestyle="--")
        panel.set_title(titles[key], fontsize=11)
        panel.set_xlim(0, 1.14 * max(m + s for m, s in zip(medians, spreads, strict=True)))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()  # of the one axis that the panels share: ours on top
    figure.supxlabel(f"time relative to ffwd_ort, lower is faster; {caption}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
