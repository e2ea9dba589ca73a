"""Means and spreads over seeds, as every chart shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offramp.evaluation.comparison import MethodResult
from offramp.metrics import Floats

__all__ = ["Band", "curve_band", "exit_band"]


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
