"""The lines of a comparison, as the charts of the page and the figures show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.results import RIVALS, Comparison, MethodResult
from offramp.metrics import Floats

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
