"""Verdicts and the bridge as tables, and the smallest worlds as text."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from offramp.extras import require
from offramp.report import Table
from offramp.report.tables import Cell
from offramp.storage import atomic_path
from offramp.theory.bridge import Bridge, BridgeExit
from offramp.theory.check import Verdict
from offramp.theory.counterexamples import calibrated_but_worse, growing_excess_risk, worsened
from offramp.theory.exits import Exits, TradeOff, frontier, stopping_probability
from offramp.theory.risks import excess_risk
from offramp.theory.statements import Sides
from offramp.theory.worlds import Grouping, World, group_mean


def describe(exits: Exits) -> str:
    """One small world and its exits, a line per point.

    Example:
        >>> from offramp.theory.counterexamples import growing_excess_risk
        >>> print(describe(growing_excess_risk()))
        x  P(x)  P(y|x)  exit 0: {0,1}{2}  exit 1: {0}{1,2}
        0  1/3   1 0     1 0               1 0
        1  1/3   1 0     1 0               1/2 1/2
        2  1/3   0 1     0 1               1/2 1/2
    """
    groups = [exits.grouping.exit(m) for m in range(exits.num_exits)]
    head = ["x", "P(x)", "P(y|x)", *(f"exit {m}: {group}" for m, group in enumerate(groups))]
    rows = [
        [
            str(x),
            _number(exits.world.p_x[x]),
            _numbers(exits.world.p_y_given_x[x]),
            *(_numbers(exits.predictors[m, x]) for m in range(exits.num_exits)),
        ]
        for x in range(exits.world.num_points)
    ]
    return "\n".join(_aligned([head, *rows]))


def describe_sides(sides: Sides) -> str:
    """Both sides at the place where they are furthest from what is claimed.

    Example:
        >>> describe_sides(Sides(np.array([0.5, 0.25]), np.array([0.5, 0.125]), "<="))
        '0.25 <= 0.125 is false'
    """
    place = sides.worst
    left, right = (
        _number(np.broadcast_to(side, sides.gap.shape)[place])
        for side in (sides.left, sides.right)
    )
    return f"{left} {sides.relation} {right} is {'true' if sides.holds else 'false'}"


def _number(value: object) -> str:
    """A Fraction as it is, a float to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(values: Sequence[object]) -> str:
    return " ".join(_number(value) for value in values)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def table(verdicts: Sequence[Verdict]) -> Table:
    """Statement x definition x reading, with what was found."""
    rows = []
    before = ""
    for verdict in verdicts:
        claim = verdict.claim
        source = f" ({claim.source})" if claim.source else ""
        title = f"{claim.name}: {claim.title}{source}"
        rows.append(
            [
                Cell("" if title == before else title),
                Cell(claim.setting.definition),
                Cell(claim.variant or "-"),
                Cell("holds" if verdict.holds else "fails", bold=not verdict.holds),
                Cell(f"{verdict.worlds:,} + {verdict.small_worlds:,}"),
                Cell("-" if claim.exists else f"{verdict.deviation:.1e}"),
                Cell(_size(verdict)),
            ]
        )
        before = title
    columns = ["statement", "calibration", "reading", "verdict", "worlds", "deviation", "smallest"]
    return Table("theory", "The paper's statements in finite worlds", columns, rows, _CAPTION)


_CAPTION = (
    "Worlds: random ones, and small ones of the search. Deviation: the largest in a random world; "
    "1 or 0 for statements that have no size. Smallest: points x classes x exits of the smallest "
    "world where the statement fails, or that is an example of what can be. Refinement is assumed "
    "where it is spoken of, unless the reading says otherwise."
)


def _size(verdict: Verdict) -> str:
    example = verdict.example
    if example is None:
        return "-"
    world = example.world
    return f"{world.num_points} x {world.num_classes} x {example.num_exits}"


def examples(verdicts: Sequence[Verdict]) -> list[str]:
    """The smallest worlds of the verdicts that have one, with both sides."""
    found = []
    for verdict in verdicts:
        if verdict.example is None or verdict.sides is None:
            continue
        claim = verdict.claim
        kind = "holds, for example" if verdict.holds else "fails"
        variant = f", {claim.variant}" if claim.variant else ""
        found.append(
            f"\n{claim.title} ({claim.setting.definition}{variant}) {kind}:\n"
            f"{describe(verdict.example)}\n{describe_sides(verdict.sides)}"
        )
    return found


def named_examples() -> list[str]:
    """The two worlds that show what calibration alone does not give."""
    return [_growing(), _worse()]


def bridge_table(bridge: Bridge) -> Table:
    """Excess risk and stopping probability per exit, known and measured."""
    columns = ["exit", "excess", "from labels", "stop true", "stop target", "corrector"]
    return Table(
        "bridge",
        f"A small network on `mixture`, {bridge.samples:,} test samples",
        [*columns, "it misses", "unseen"],
        [_bridge_row(each) for each in bridge.exits],
        "Excess: mean log-loss excess risk from the known P(y|x), and from labels alone with its "
        "standard error. Stop true: mean P(stop|x), reading argmax; stop target: how often it was "
        "right to stop; corrector: its mean estimate. It misses: root mean square of its estimate "
        "minus the true probability averaged over the samples that look most alike to it; unseen: "
        "of that average minus the truth, which nobody could know who sees what it sees.",
    )


def _bridge_row(each: BridgeExit) -> list[Cell]:
    numbers = [each.truth.mean(), each.stop_frequency, each.estimate.mean()]
    texts = [
        str(each.exit_index),
        f"{each.excess:.4f}",
        f"{each.measured_excess:.4f} ± {each.measured_error:.4f}",
        *("-" if np.isnan(value) else f"{value:.4f}" for value in numbers),
        *("-" if np.isnan(value) else f"{value:.4f}" for value in (each.missed, each.unseen)),
    ]
    return [Cell(text) for text in texts]


def _growing() -> str:
    exits = growing_excess_risk()
    world = exits.world.per_exit()
    excess = world.mean(excess_risk(world, exits.predictors))
    shown = ", then ".join(f"{value:.4f}" for value in excess)
    return (
        "\nCalibrated exits that do not refine, and whose excess risk grows with depth:\n"
        f"{describe(exits)}\nmean excess risk: {shown}"
    )


def _worse() -> str:
    pair = calibrated_but_worse()
    lines = []
    for name, exits in (("calibrated", pair.calibrated), ("overconfident", pair.overconfident)):
        best = frontier(exits, exits.predictors.max(-1), pair.costs)
        lines.append(f"{name} network, thresholds on its confidence: {_shown(best)}")
    exits = pair.calibrated
    stops = stopping_probability(exits.world, exits.predictors, "argmax")
    seen = group_mean(exits.world.per_exit().p_x, exits.grouping, stops)
    best = frontier(exits, seen, pair.costs)
    lines.append(f"thresholds on the stopping probability of its groups: {_shown(best)}")
    return (
        "\nA network calibrated at every exit, with refinement, that is the worse one:\n"
        f"{describe(pair.calibrated)}\n"
        "the other network says 9/10 1/10 at exit 0 of point 0, and the same otherwise; the exits "
        "cost 1 and 2\n" + "\n".join(lines)
    )


def _shown(best: Sequence[TradeOff]) -> str:
    return "; ".join(f"accuracy {point.accuracy} at cost {point.cost}" for point in best)


# Okabe and Ito's colours, which people with colour blindness can tell apart.
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#7f7f7f"


def draw_figures(folder: Path) -> list[Path]:
    """Write the figures that need no training; return their paths.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return [_floor_figure(folder / "theory-floor.svg"), _worse_figure(folder / "theory-worse.svg")]


def largest_excess(confidence: float, classes: int, epsilon: float) -> float:
    """The worst excess risk at a point whose modal class has P(y|x) = c = confidence.

    The other classes are equally probable, and the predictor gives one of them epsilon, if it can.

    Example:
        >>> round(largest_excess(0.4, classes=3, epsilon=1e-9), 3)  # a floor of 0.2 for each class
        0.035
        >>> round(largest_excess(0.6, classes=3, epsilon=1e-9), 3)
        3.684
    """
    other = (1 - confidence) / (classes - 1)
    world = World([1.0], [[confidence, *[other] * (classes - 1)]])
    exits = Exits(world, Grouping([[0]]), world.p_y_given_x[None])
    return float(excess_risk(world, worsened(exits, epsilon))[0])


def bridge_figure(bridge: Bridge, path: Path) -> Path:
    """Excess risk per exit, and the corrector's estimate against the true probability.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, (risk, stop) = _figure(2, (9, 3.6))
    exits = bridge.exits
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
    return _save(figure, path)


def _floor_figure(path: Path) -> Path:
    figure, (few, many) = _figure(2, (9, 3.6), sharey=True)
    for axes, classes in ((few, 3), (many, 6)):
        grid = np.linspace(1 / classes + 1e-6, 0.95, 400)
        for epsilon, style in ((1e-3, ":"), (1e-9, "--"), (1e-27, "-")):
            values = [largest_excess(float(c), classes, epsilon) for c in grid]
            axes.plot(grid, values, color=BLUE, linestyle=style, label=f"ε = {epsilon:g}")
        axes.axvline(1 / (classes - 1), color=RED, linewidth=1)
        _label(axes, "confidence c", "largest excess risk (nats)", f"K = {classes} classes")
    return _save(figure, path)


def _worse_figure(path: Path) -> Path:
    figure, axes = _figure(1, (5, 3.6))
    pair = calibrated_but_worse()
    for exits, name, colour in (
        (pair.overconfident, "overconfident", RED),
        (pair.calibrated, "calibrated", BLUE),
    ):
        best = frontier(exits, exits.predictors.max(-1), pair.costs)
        costs, right = zip(*best, strict=True)
        costs = (*costs, Fraction(21, 10))  # a budget that is not used up buys as much
        steps = [*map(float, right), float(right[-1])]
        look = {"where": "post", "color": colour, "label": name, "linewidth": 2, "alpha": 0.8}
        axes.step([float(cost) for cost in costs], steps, **look)
    axes.set_ylim(0.55, 0.85)
    _label(axes, "mean cost", "accuracy", "Thresholds on the confidence")
    return _save(figure, path)


def _figure(panels: int, size: tuple[float, float], sharey: bool = False) -> tuple[Any, Any]:
    figures = require("matplotlib.figure", extra="report")
    figure = figures.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, panels, sharey=sharey)


def _binned(estimate: Any, truth: Any, bins: int = 10) -> tuple[list[float], list[float]]:  # noqa: ANN401
    """Means of both over equally full bins of the estimate."""
    parts = np.array_split(np.argsort(estimate), bins)
    return [float(estimate[p].mean()) for p in parts], [float(truth[p].mean()) for p in parts]


def _label(axes: Any, x: str, y: str, title: str) -> None:  # noqa: ANN401
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> Path:  # noqa: ANN401
    """Write the figure so that the same numbers give the same file: no date, no random names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    matplotlib = require("matplotlib", extra="report")
    with atomic_path(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "offramp"}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    return path
