"""Figures of the theory page."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from offramp.report import save_figure
from offramp_paper.theory.calibration import Exits
from offramp_paper.theory.counterexamples import calibrated_but_worse, frontier
from offramp_paper.theory.risks import excess_risk
from offramp_paper.theory.statements import worsened
from offramp_paper.theory.trained_network import ExitTruth
from offramp_paper.theory.worlds import Grouping, World

# Okabe and Ito's colours, distinguishable with colour blindness.
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#7f7f7f"


def draw_figures(folder: Path) -> list[Path]:
    """Write the figures that need no training and return their paths."""
    return [_floor_figure(folder / "theory-floor.svg"), _worse_figure(folder / "theory-worse.svg")]


def largest_excess(confidence: float, classes: int, epsilon: float) -> float:
    """The worst excess risk at a point whose most probable class has P(y|x) = confidence.

    The other classes are equally probable, and the predictor gives one of them epsilon if it can.
    """
    other = (1 - confidence) / (classes - 1)
    world = World([1.0], [[confidence, *[other] * (classes - 1)]])
    exits = Exits(world, Grouping([[0]]), world.p_y_given_x[None])
    return float(excess_risk(world, worsened(exits, epsilon))[0])


def truth_figure(exits: Sequence[ExitTruth], path: Path) -> Path:
    """Excess risk per exit, and the corrector's estimate against the true probability."""
    figure, (risk, stop) = _figure(2, (9, 3.6))
    index = [each.exit_index for each in exits]
    risk.plot(index, [each.excess for each in exits], color=BLUE, label="known P(y|x)")
    measured = [each.measured_excess for each in exits]
    errors = [2 * each.measured_error for each in exits]
    style = {"color": RED, "fmt": "o", "capsize": 3, "markersize": 4}
    risk.errorbar(index, measured, errors, label="labels alone, ± 2 SE", **style)
    risk.set_xticks(index)
    _label(risk, "exit", "excess risk (nats)", "Excess risk falls with depth")
    for each, colour in zip(exits[:-1], (BLUE, RED, GREEN), strict=True):
        estimate, truth = _binned(each.estimate, each.truth)
        look = {"color": colour, "marker": "o", "markersize": 4}
        stop.plot(estimate, truth, label=f"exit {each.exit_index}", **look)
    stop.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    _label(stop, "corrector's estimate", "true P(stop), mean", "The corrector, against the truth")
    return save_figure(figure, path)


def _floor_figure(path: Path) -> Path:
    figure, (few, many) = _figure(2, (9, 3.6), sharey=True)
    for axes, classes in ((few, 3), (many, 6)):
        grid = np.linspace(1 / classes + 1e-6, 0.95, 400)
        for epsilon, style in ((1e-3, ":"), (1e-9, "--"), (1e-27, "-")):
            values = [largest_excess(float(c), classes, epsilon) for c in grid]
            axes.plot(grid, values, color=BLUE, linestyle=style, label=f"ε = {epsilon:g}")
        axes.axvline(1 / (classes - 1), color=RED, linewidth=1)
        _label(axes, "confidence c", "largest excess risk (nats)", f"K = {classes} classes")
    return save_figure(figure, path)


def _worse_figure(path: Path) -> Path:
    figure, axes = _figure(1, (5, 3.6))
    pair = calibrated_but_worse()
    for exits, name, colour in (
        (pair.overconfident, "overconfident", RED),
        (pair.calibrated, "calibrated", BLUE),
    ):
        best = frontier(exits, exits.predictors.max(-1), pair.costs)
        costs, right = zip(*best, strict=True)
        costs = (*costs, Fraction(21, 10))  # a larger budget buys nothing more
        steps = [*map(float, right), float(right[-1])]
        look = {"where": "post", "color": colour, "label": name, "linewidth": 2, "alpha": 0.8}
        axes.step([float(cost) for cost in costs], steps, **look)
    axes.set_ylim(0.55, 0.85)
    _label(axes, "mean cost", "accuracy", "Thresholds on the confidence")
    return save_figure(figure, path)


def _figure(panels: int, size: tuple[float, float], sharey: bool = False) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, panels, sharey=sharey)


def _binned(estimate: Any, truth: Any, bins: int = 10) -> tuple[list[float], list[float]]:  # noqa: ANN401
    """Means of both over equally filled bins of the estimate."""
    order = np.array_split(np.argsort(estimate), bins)
    return [float(estimate[b].mean()) for b in order], [float(truth[b].mean()) for b in order]


def _label(axes: Any, x: str, y: str, title: str) -> None:  # noqa: ANN401
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
