"""Figures as files: the paper's three panels, and what every method gains over another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.results import Comparison
from offramp.files import atomic_path
from offramp.imports import require
from offramp.report.lines import PALETTE, Band, curve_band, exit_band, line_style, shown_first

FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
ROW_STEP = 0.3  # between kinds of thresholds, in rows


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
        style = {**line_style(number).matplotlib(), "label": _literal(method.label)}
        # Markers of different lines do not hide each other where the lines run together.
        sparse = {**style, "markevery": (2 * number, 12)}
        _draw_band(trade, curve_band(method, points=60), sparse, scale=100)
        _draw_band(calibration, exit_band(method, "ece"), style)
        _draw_band(prediction, exit_band(method, "eefp"), style)
    _draw_references(trade, comparison)
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
    figure = figures.Figure(figsize=(4 + 3 * len(comparison.budgets), 1 + 0.4 * len(rows)))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(comparison.budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, comparison.budgets, strict=True):
        key = accuracy_key(budget)
        found = {m.name: m.differences.get(rival, {}) for m in comparison.methods}
        gaps = {name: each[key] for name, each in found.items() if key in each}
        _draw_gains(axes, rows, kinds, gaps)
        axes.axvline(0, color="black", linewidth=0.8)
        _label(axes, f"points over {rival}", "", f"{budget:.0%} of the compute")
    by_length = sorted(comparison.methods, key=lambda m: -len(m.name))  # plain names come last
    labels = {m.name.partition(":")[0]: m.label for m in by_length}
    panels[0].set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=8)
    panels[0].invert_yaxis()
    _draw_keys(panels[0], kinds)
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
    rows: Sequence[str],
    kinds: Sequence[str],
    gaps: Mapping[str, Interval],
) -> None:
    """Dots with intervals, one below the other where a row has several kinds of thresholds."""
    present = {row: [kind for kind in kinds if _named(row, kind) in gaps] for row in rows}
    for kind in kinds:
        found = {}
        for place, row in enumerate(rows):
            if kind in present[row]:
                below = present[row].index(kind) - (len(present[row]) - 1) / 2
                found[place + ROW_STEP * below] = gaps[_named(row, kind)]
        low, value, high = (
            [100 * getattr(gap, end) for gap in found.values()] for end in ("low", "value", "high")
        )
        axes.hlines(list(found), low, high, color=_colour(kinds, kind), linewidth=1.5)
        axes.plot(value, list(found), "o", markersize=4, color=_colour(kinds, kind))


def _named(row: str, kind: str) -> str:
    return f"{row}:{kind}" if kind else row


def _colour(kinds: Sequence[str], kind: str) -> str:
    return PALETTE[2 * kinds.index(kind) % len(PALETTE)][0]


def _draw_keys(axes: Any, kinds: Sequence[str]) -> None:  # noqa: ANN401
    """Say what the colours mean, where there are several."""
    if len(kinds) > 1:
        for kind in kinds:
            label = f"{kind} thresholds" if kind else "the method's own thresholds"
            axes.plot([], [], color=_colour(kinds, kind), marker="o", label=label)
        axes.figure.legend(loc="outside lower center", ncols=len(kinds), fontsize=8)


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
