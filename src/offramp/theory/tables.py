"""Verdicts and the bridge as tables, and the smallest worlds as text."""

from collections.abc import Sequence

import numpy as np

from offramp.report import Table
from offramp.report.tables import Cell
from offramp.theory.bridge import Bridge, BridgeExit
from offramp.theory.checking import Verdict
from offramp.theory.counterexamples import calibrated_but_worse, growing_excess_risk
from offramp.theory.describing import describe, describe_sides
from offramp.theory.groupings import group_mean
from offramp.theory.risks import excess_risk
from offramp.theory.stopping import stopping_probability
from offramp.theory.tradeoffs import TradeOff, frontier

__all__ = ["bridge_table", "examples", "named_examples", "table"]


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
