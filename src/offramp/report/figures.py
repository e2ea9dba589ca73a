"""Figures: the paper's three panels, and what every method gains over another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offramp.evaluation.comparison import Comparison, MethodResult, accuracy_key
from offramp.extras import require
from offramp.metrics import Floats
from offramp.storage import atomic_path

# Okabe and Ito's colours, which people with colour blindness can tell apart, for a light and for
# a dark background.
PALETTE = (
    ("#7f7f7f", "#a3a8b0"),
    ("#0072b2", "#4aa5e4"),
    ("#d55e00", "#f5813d"),
    ("#e69f00", "#f3bd45"),
    ("#009e73", "#35c79c"),
    ("#cc79a7", "#e29cc3"),
    ("#56b4e9", "#93d3f7"),
    ("#000000", "#f2f2f2"),
)
DASHES = ("solid", "dash", "dot")


def look_of(number: int) -> tuple[int, str]:
    """Colour (its place in the palette) and dash of the method with this number.

    Example:
        >>> look_of(2), look_of(9)
        ((2, 'solid'), (1, 'dash'))
    """
    return number % len(PALETTE), DASHES[number // len(PALETTE) % len(DASHES)]


@dataclass(frozen=True)
class Band:
    """A line with a band.

    Attributes:
        x: `[P]`.
        mean: `[P]`, over seeds.
        spread: `[P]`, standard deviation over seeds; None where there is only one run.
    """

    x: Floats
    mean: Floats
    spread: Floats | None


def curve_band(method: MethodResult, points: int = 200) -> Band:
    """Accuracy over cost, on the costs that all seeds reach.

    Example:
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=200), methods=["baseline"], resamples=10)
        >>> band = curve_band(table["baseline"])
        >>> band.mean.shape, band.spread
        ((200,), None)
    """
    low = max(float(curve.costs[0]) for curve in method.curves)
    high = min(float(curve.costs[-1]) for curve in method.curves)
    grid = np.linspace(low, high, points)
    return _band(grid, [np.interp(grid, c.costs, c.accuracies) for c in method.curves])


def exit_band(method: MethodResult, figure: str) -> Band:
    """A figure of `ExitMetrics` at every exit but the last, where no scorer runs."""
    runs = [getattr(run, figure)[:-1] for run in method.exits]
    return _band(np.arange(len(runs[0]), dtype=np.float64), runs)


def _band(x: Floats, runs: Sequence[Floats]) -> Band:
    values = np.array(runs)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Band(x, values.mean(axis=0), spread)


LINES = {"solid": "-", "dash": "--", "dot": ":"}
FEW = 10  # methods whose legend leaves room for their curves
LEGEND_COLUMNS = 5


def three_panels(comparison: Comparison, path: str | Path) -> Path:
    """Draw the figure and write it as SVG (or what the suffix says); return its path.

    Bands are one standard deviation over corrector seeds.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    # A legend of many methods would cover the panel that it is in, so it goes below all of them.
    rows = -(-len(comparison.methods) // LEGEND_COLUMNS)
    below = len(comparison.methods) > FEW
    figure = figures.Figure(figsize=(13, 4 + 0.2 * rows * below), layout="constrained")
    trade, calibration, prediction = figure.subplots(1, 3)
    for number, method in enumerate(comparison.methods):
        colour, dash = look_of(number)
        look = {
            "color": PALETTE[colour][0],
            "linestyle": LINES[dash],
            "label": _literal(method.label),
        }
        _draw_band(trade, curve_band(method), look, scale=100)
        _draw_band(calibration, exit_band(method, "ece"), {**look, "marker": "o"})
        _draw_band(prediction, exit_band(method, "eefp"), {**look, "marker": "o"})
    _draw_references(trade, comparison)
    _label(trade, "cost (share of the network without exits)", "accuracy (%)", "Cost-accuracy")
    _label(calibration, "exit", "ECE", "Calibration error (lower = calibrated)")
    _label(prediction, "exit", "EEFP", "Failure prediction (higher = better)")
    if below:
        figure.legend(
            *trade.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=LEGEND_COLUMNS,
            fontsize=8,
        )
    else:
        trade.legend(fontsize=8)
    return _save(figure, Path(path))


def _draw_band(
    axes: Any,  # noqa: ANN401
    band: Band,
    look: dict[str, Any],
    scale: float = 1,
) -> None:
    if np.isnan(band.mean).all():
        return
    mean = scale * band.mean
    axes.plot(band.x, mean, linewidth=1.5, markersize=4, **look)
    if band.spread is not None:
        low, high = mean - scale * band.spread, mean + scale * band.spread
        axes.fill_between(band.x, low, high, alpha=0.2, linewidth=0, color=look["color"])


def gains(comparison: Comparison, path: str | Path, rival: str = "baseline") -> Path:
    """Draw what every method gains over a rival at each budget, with 95 % intervals.

    Methods whose name says which thresholds they have (`eefp:optimized`) share a row with the
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
    return _save(figure, Path(path))


def _save(figure: Any, path: Path) -> Path:  # noqa: ANN401
    kind = path.suffix.lstrip(".") or "svg"
    # The same comparison gives the same file: no date, and no random names inside an SVG.
    settled = require("matplotlib", extra="report").rc_context({"svg.hashsalt": "offramp"})
    with atomic_path(path) as temporary, settled:
        dated = {"metadata": {"Date": None}} if kind == "svg" else {}
        figure.savefig(temporary, format=kind, dpi=120, **dated)
    return path


def _draw_gain(axes: Any, rows: Sequence[str], name: str, ends: Sequence[float]) -> None:  # noqa: ANN401
    """A dot with its interval: thresholds as they are in grey, others in orange below."""
    plain, _, ways = name.partition(":")
    place = rows.index(plain) + (0.18 if ways else -0.18)
    low, value, high = (100 * end for end in ends)
    colour = PALETTE[2][0] if ways else PALETTE[0][0]
    axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
    axes.plot([value], [place], marker="o", markersize=4, color=colour)


def _draw_keys(axes: Any, ways: Sequence[str]) -> None:  # noqa: ANN401
    """Say what the colours mean, where there are two."""
    if ways:
        axes.plot([], [], color=PALETTE[0][0], marker="o", label="thresholds of the method")
        axes.plot([], [], color=PALETTE[2][0], marker="o", label=f"{', '.join(ways)} thresholds")
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8)


def _literal(text: str) -> str:
    """A label from a user, in which dollar signs do not start a formula."""
    return text.replace("$", r"\$")


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
