"""The paper's three-panel figure: cost-accuracy, ECE per exit, EEFP per exit."""

from pathlib import Path
from typing import Any

import numpy as np

from offramp.evaluation.comparison import Comparison
from offramp.extras import require
from offramp.report.bands import Band, curve_band, exit_band
from offramp.report.palette import PALETTE, look_of
from offramp.storage import atomic_path

__all__ = ["three_panels"]

LINES = {"solid": "-", "dash": "--", "dot": ":"}


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
    trade.legend(fontsize=8)
    path = Path(path)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "svg", dpi=120)
    return path


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
