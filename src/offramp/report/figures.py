"""The lines of a comparison, as the page shows them too, and figures as files.

These are the paper's three panels, and what every method gains over another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offramp.arrays import Floats
from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.results import RIVALS, Comparison, MethodResult
from offramp.files import atomic_path
from offramp.imports import require

FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
ROW_STEP = 0.3  # between kinds of thresholds, in rows
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
# Plotly's names, and matplotlib's for the same.
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}
MARKERS = {
    **{"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D"},
    **{"triangle-down": "v", "star": "*", "pentagon": "p", "hexagon": "h"},
}
MOST_CURVES = 6  # that are drawn unless others are asked for; more of them hide each other


class LineStyle(NamedTuple):
    """How a line is drawn: its neighbours differ in all three, so grey paper shows it, too."""

    colour: int  # its place in the palette
    dash: str
    marker: str

    def matplotlib(self) -> dict[str, str]:
        """The same as arguments of `Axes.plot`."""
        return {
            "color": PALETTE[self.colour][0],
            "linestyle": DASHES[self.dash],
            "marker": MARKERS[self.marker],
        }


def line_style(number: int) -> LineStyle:
    """The style of the line with this number; 64 of them differ.

    Example:
        >>> line_style(2), line_style(10)
        (LineStyle(colour=2, dash='dashdot', marker='triangle-up'),
         LineStyle(colour=2, dash='dot', marker='diamond'))
        >>> len({line_style(number) for number in range(64)})
        64
    """
    lap = number // len(PALETTE)
    return LineStyle(
        number % len(PALETTE),
        list(DASHES)[(number + lap) % len(DASHES)],
        list(MARKERS)[(number + lap) % len(MARKERS)],
    )


@dataclass(frozen=True)
class Band:
    """A line with a band."""

    x: Floats  # `[P]`
    mean: Floats  # `[P]`, over seeds
    spread: Floats | None  # `[P]`, standard deviation over seeds; None where there is only one run


def curve_band(method: MethodResult, points: int = 200) -> Band:
    """Accuracy over cost, on the costs that all seeds reach."""
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


def shown_first(comparison: Comparison) -> list[MethodResult]:
    """The methods that are drawn unless others are asked for, at most six, in their order.

    These are the rivals, and the most accurate of the others.
    """

    def accuracy(method: MethodResult) -> float:
        budgets = comparison.budgets
        return float(np.mean([method.figures[accuracy_key(b)].value for b in budgets]))

    rivals = [method.name for method in comparison.methods if method.name in RIVALS]
    others = [method for method in comparison.methods if method.name not in RIVALS]
    best = sorted(others, key=accuracy, reverse=True)[: MOST_CURVES - len(rivals)]
    chosen = {*rivals, *(method.name for method in best)}
    return [method for method in comparison.methods if method.name in chosen]


def plot_comparison(comparison: Comparison, path: str | Path) -> Path:
    """Draw the paper's three panels as SVG (or what the suffix says); return the path.

    Bands are one standard deviation over corrector seeds. Of more than six methods, the rivals
    and the most accurate of the others are drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    figure = figures.Figure(figsize=(13, 4), layout="constrained")
    trade, calibration, prediction = figure.subplots(1, 3)
    drawn = shown_first(comparison)
    for number, method in enumerate(drawn):
        label = method.label.replace("$", r"\$")  # which would start a formula
        style = {**line_style(number).matplotlib(), "label": label}
        # Markers of different lines do not hide each other where the lines run together.
        sparse = {**style, "markevery": (2 * number, 12)}
        _draw_band(trade, curve_band(method, points=60), sparse, scale=100)
        _draw_band(calibration, exit_band(method, "ece"), style)
        _draw_band(prediction, exit_band(method, "eefp"), style)
    fixed = comparison.references.fixed
    costs, accuracies = [row.cost for row in fixed], [100 * row.accuracy for row in fixed]
    trade.plot(costs, accuracies, "x", color="black", label="each exit alone")
    mix = comparison.references.mix_curve
    curve = [row.cost for row in mix], [100 * row.accuracy for row in mix]
    trade.plot(*curve, color="black", linewidth=0.8, label="mix of two fixed exits")
    total = len(comparison.methods)
    title = "Cost-accuracy" + (f", {len(drawn)} of {total} methods" if len(drawn) < total else "")
    _label(trade, "cost (share of the network without exits)", "accuracy (%)", title)
    _label(calibration, "exit", "ECE", "Calibration error (lower = calibrated)")
    _label(prediction, "exit", "EEFP", "Failure prediction (higher = better)")
    for axes in (calibration, prediction):  # there is no exit 1.5
        axes.xaxis.get_major_locator().set_params(integer=True)
    trade.legend(fontsize=8)
    return save_figure(figure, Path(path))


def _draw_band(
    axes: Any,  # noqa: ANN401
    band: Band,
    style: dict[str, Any],
    scale: float = 1,
) -> None:
    if np.isnan(band.mean).all():
        return
    mean = scale * band.mean
    axes.plot(band.x, mean, linewidth=1.5, markersize=4, **style)
    if band.spread is not None:
        low, high = mean - scale * band.spread, mean + scale * band.spread
        axes.fill_between(band.x, low, high, alpha=0.2, linewidth=0, color=style["color"])


def plot_gains(comparison: Comparison, path: str | Path, rival: str = "baseline") -> Path:
    """Draw each method's gain over a rival at every budget, with 95 % intervals; return the path.

    Methods whose name says which thresholds they have (`eefp:smooth`) share a row with the
    plain one, which shows what the score gains, what the thresholds gain, and what both gain.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    names = [method.name.partition(":") for method in comparison.methods]
    rows = list(dict.fromkeys(row for row, _, _ in names))
    kinds = sorted({thresholds for _, _, thresholds in names})  # the method's own, "", first
    colours = {kind: PALETTE[2 * n % len(PALETTE)][0] for n, kind in enumerate(kinds)}
    figure = figures.Figure(figsize=(4 + 3 * len(comparison.budgets), 1 + 0.4 * len(rows)))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(comparison.budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, comparison.budgets, strict=True):
        gaps: dict[str, dict[str, Interval]] = {row: {} for row in rows}
        for method, (row, _, kind) in zip(comparison.methods, names, strict=True):
            gap = method.differences.get(rival, {}).get(accuracy_key(budget))
            if gap is not None:
                gaps[row][kind] = gap
        _draw_gains(axes, list(gaps.values()), colours)
        axes.axvline(0, color="black", linewidth=0.8)
        _label(axes, f"points over {rival}", "", f"{budget:.0%} of the compute")
    by_length = sorted(comparison.methods, key=lambda m: -len(m.name))  # plain names come last
    labels = {m.name.partition(":")[0]: m.label for m in by_length}
    panels[0].set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=8)
    panels[0].invert_yaxis()
    if len(kinds) > 1:  # say what the colours mean
        for kind in kinds:
            label = f"{kind} thresholds" if kind else "the method's own thresholds"
            panels[0].plot([], [], color=colours[kind], marker="o", label=label)
        figure.legend(loc="outside lower center", ncols=len(kinds), fontsize=8)
    return save_figure(figure, Path(path))


def save_figure(figure: Any, path: Path) -> Path:  # noqa: ANN401 - matplotlib is optional
    """Write a matplotlib figure, SVG unless the suffix says otherwise, and return its path.

    The same figure gives the same file: no date, and no random names inside an SVG. Text stays
    text.
    """
    kind = path.suffix.lstrip(".") or "svg"
    settings = {"svg.hashsalt": "offramp", "svg.fonttype": "none", "font.sans-serif": FONTS}
    settled = require("matplotlib", extra="report").rc_context(settings)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with atomic_path(path) as temporary, settled:
        figure.savefig(temporary, format=kind, dpi=120, metadata=dates.get(kind))
    return path


def _draw_gains(
    axes: Any,  # noqa: ANN401
    rows: Sequence[Mapping[str, Interval]],
    colours: Mapping[str, str],
) -> None:
    """Dots with intervals, one below the other where a row has several kinds of thresholds."""
    for place, gaps in enumerate(rows):
        for number, kind in enumerate(sorted(gaps)):
            gap, y = gaps[kind], place + ROW_STEP * (number - (len(gaps) - 1) / 2)
            axes.hlines(y, 100 * gap.low, 100 * gap.high, color=colours[kind], linewidth=1.5)
            axes.plot(100 * gap.value, y, "o", markersize=4, color=colours[kind])


def _label(axes: Any, x: str, y: str, title: str) -> None:  # noqa: ANN401
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
