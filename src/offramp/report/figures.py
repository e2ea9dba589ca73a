"""The paper's three-panel figure: cost-accuracy, ECE per exit, EEFP per exit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offramp.evaluation.comparison import Comparison, MethodResult, accuracy_key
from offramp.extras import require
from offramp.storage import atomic_path

__all__ = ["gains", "three_panels"]

# Okabe and Ito's colours, which people with colour blindness can tell apart.
COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000")


def three_panels(comparison: Comparison, path: str | Path) -> Path:
    """Draw the figure and write it as SVG (or what the suffix says); return its path.

    Bands are one standard deviation over corrector seeds.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    figure = figures.Figure(figsize=(13, 4), layout="constrained")
    trade, calibration, prediction = figure.subplots(1, 3)
    for number, method in enumerate(comparison.methods):
        colour = COLOURS[number % len(COLOURS)]
        style = ("-", "--", ":")[number // len(COLOURS) % 3]
        look = {"color": colour, "linestyle": style, "label": method.label}
        _draw_curve(trade, method, look)
        _draw_exits(calibration, [run.ece[:-1] for run in method.exits], look)
        _draw_exits(prediction, [run.eefp[:-1] for run in method.exits], look)
    _draw_references(trade, comparison)
    _label(trade, "cost (share of the network without exits)", "accuracy (%)", "Cost-accuracy")
    _label(calibration, "exit", "ECE", "Calibration error (lower = calibrated)")
    _label(prediction, "exit", "EEFP", "Failure prediction (higher = better)")
    trade.legend(fontsize=8)
    path = Path(path)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "svg", dpi=120)
    return path


def gains(comparison: Comparison, path: str | Path, rival: str = "baseline") -> Path:
    """Draw what every method gains over a rival at each budget, with 95 % intervals.

    Methods whose name says which thresholds they have (`ours:optimized`) share a row with the
    plain one, so that one sees what the score brings, what the thresholds, and what both.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    rows = list(dict.fromkeys(method.name.partition(":")[0] for method in comparison.methods))
    figure = figures.Figure(figsize=(4 + 3 * len(comparison.budgets), 1 + 0.4 * len(rows)))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(comparison.budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, comparison.budgets, strict=True):
        for method in comparison.methods:
            gap = method.differences.get(rival, {}).get(accuracy_key(budget))
            if gap is not None:
                _draw_gain(axes, rows, method.name, [gap.low, gap.value, gap.high])
        axes.axvline(0, color="black", linewidth=0.8)
        _label(axes, f"points over {rival}", "", f"{budget:.0%} of the compute")
    labels = {m.name.partition(":")[0]: m.label.partition(", opt")[0] for m in comparison.methods}
    panels[0].set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=8)
    panels[0].invert_yaxis()
    _draw_keys(panels[0], sorted({m.name.partition(":")[2] for m in comparison.methods} - {""}))
    path = Path(path)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "svg", dpi=120)
    return path


def _draw_gain(axes: Any, rows: Sequence[str], name: str, ends: Sequence[float]) -> None:  # noqa: ANN401
    """A dot with its interval: thresholds as they are in grey, others in orange below."""
    plain, _, ways = name.partition(":")
    place = rows.index(plain) + (0.18 if ways else -0.18)
    low, value, high = (100 * end for end in ends)
    colour = COLOURS[2] if ways else COLOURS[0]
    axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
    axes.plot([value], [place], marker="o", markersize=4, color=colour)


def _draw_keys(axes: Any, ways: Sequence[str]) -> None:  # noqa: ANN401
    """Say what the colours mean, where there are two."""
    if ways:
        axes.plot([], [], color=COLOURS[0], marker="o", label="thresholds of the method")
        axes.plot([], [], color=COLOURS[2], marker="o", label=f"{', '.join(ways)} thresholds")
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8)


def _draw_curve(axes: Any, method: MethodResult, look: dict[str, Any]) -> None:  # noqa: ANN401
    """Mean over seeds on a common grid of costs, with a band."""
    low = max(float(curve.costs[0]) for curve in method.curves)
    high = min(float(curve.costs[-1]) for curve in method.curves)
    grid = np.linspace(low, high, 200)
    runs = np.array([np.interp(grid, c.costs, 100 * c.accuracies) for c in method.curves])
    _draw_band(axes, grid, runs, look)


def _draw_exits(axes: Any, runs: Sequence[Any], look: dict[str, Any]) -> None:  # noqa: ANN401
    if not np.isnan(runs).all():
        _draw_band(axes, np.arange(len(runs[0])), np.array(runs), {**look, "marker": "o"})


def _draw_band(axes: Any, x: Any, runs: Any, look: dict[str, Any]) -> None:  # noqa: ANN401
    mean = runs.mean(axis=0)
    axes.plot(x, mean, linewidth=1.5, markersize=4, **look)
    if len(runs) > 1:
        spread = runs.std(axis=0, ddof=1)
        axes.fill_between(
            x, mean - spread, mean + spread, alpha=0.2, linewidth=0, color=look["color"]
        )


def _draw_references(axes: Any, comparison: Comparison) -> None:  # noqa: ANN401
    fixed = comparison.references.fixed
    axes.plot(
        [row.cost for row in fixed],
        [100 * row.accuracy for row in fixed],
        linestyle="none",
        marker="x",
        color="black",
        label="each exit alone",
    )


def _label(axes: Any, x: str, y: str, title: str) -> None:  # noqa: ANN401
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
