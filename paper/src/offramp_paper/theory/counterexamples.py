"""Two worlds that show what calibration alone does not give."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from offramp_paper.theory.calibration import Exits
from offramp_paper.theory.risks import conditional_risk, excess_risk, stopping_probability
from offramp_paper.theory.worlds import (
    Array,
    World,
    WorldError,
    as_numbers,
    group_mean,
    is_rational,
)


class Pair(NamedTuple):
    """Two early-exit networks with the same predictions, and the costs of their exits."""

    calibrated: Exits
    overconfident: Exits
    costs: tuple[int, ...]


def growing_excess_risk() -> Exits:
    """Calibrated exits that do not refine and get worse with depth.

    The first exit separates point 2 from the others, which is all there is to know. The second one
    separates point 0 from the others: as fine a grouping, but a useless one.

    Example:
        >>> exits = growing_excess_risk()
        >>> world = exits.world.per_exit()
        >>> world.mean(excess_risk(world, exits.predictors)).round(3)
        array([0.   , 0.462])
    """
    third = Fraction(1, 3)
    world = World([third] * 3, [[1, 0], [1, 0], [0, 1]])
    return Exits.calibrated(world, [[0, 0, 1], [0, 1, 1]])


def calibrated_but_worse() -> Pair:
    """Two networks, of which the one calibrated at every exit, with refinement, is worse.

    At point 0 the label is a coin flip: no exit gets it right more often than the first. Points 1
    and 2 look alike to the first exit, and the second one separates them, so continuing pays only
    for them. But the coin flip has the lower confidence, 1/2 against 2/3, so any threshold on the
    confidence lets point 0 continue before them. The other network makes the same predictions but
    claims 9/10 at the coin flip, which is wrong, and stops it.

    Example:
        >>> pair = calibrated_but_worse()
        >>> bool(pair.calibrated.is_chain)
        True
    """
    two, half, nine = Fraction(2, 5), Fraction(1, 2), Fraction(9, 10)
    world = World([two, two, Fraction(1, 5)], [[half, half], [1, 0], [0, 1]])
    calibrated = Exits.calibrated(world, [[0, 1, 1], [0, 1, 2]])
    predictors = calibrated.predictors.copy()
    predictors[0, 0] = [nine, 1 - nine]
    return Pair(calibrated, Exits(world, calibrated.grouping, predictors), (1, 2))


class TradeOff(NamedTuple):
    """Mean cost and accuracy."""

    cost: Any
    accuracy: Any


def frontier(exits: Exits, scores: Array, costs: Sequence[Any]) -> list[TradeOff]:
    """The best accuracies for their cost among all thresholds on the exits' scores.

    Args:
        exits: Of one small world.
        scores: `[M, N]`; a point stops at the first exit whose score reaches the threshold. The
            last exit always stops.
        costs: `[M]`, cumulative.

    Raises:
        WorldError: Scores or costs for another number of exits or points.

    Example:
        >>> pair = calibrated_but_worse()
        >>> best = frontier(pair.calibrated, pair.calibrated.predictors.max(-1), pair.costs)
        >>> [(str(point.cost), str(point.accuracy)) for point in best]
        [('1', '3/5'), ('2', '4/5')]
    """
    world, scores = exits.world, as_numbers(scores)
    shape = (exits.num_exits, world.num_points)
    if scores.shape != shape or len(costs) != shape[0]:
        raise WorldError(
            f"`scores` must have shape {list(shape)} and `costs` [{shape[0]}], got "
            f"{list(scores.shape)} and [{len(costs)}]"
        )
    costs = [Fraction(cost) if is_rational(world.p_x) else cost for cost in costs]
    right = 1 - conditional_risk(world.per_exit(), exits.predictors, "zero-one")  # [M, N]
    found = set()
    # None closes an exit.
    for chosen in itertools.product(*([*sorted(set(row)), None] for row in scores[:-1].tolist())):
        stops = np.ones(shape, dtype=bool)
        for exit_index, threshold in enumerate(chosen):
            stops[exit_index] = False if threshold is None else scores[exit_index] >= threshold
        taken = stops.argmax(0)
        cost = world.mean(as_numbers([costs[exit_index] for exit_index in taken]))
        found.add(TradeOff(cost, world.mean(right[taken, np.arange(shape[1])])))
    best: list[TradeOff] = []
    for point in sorted(found, key=lambda each: (each.cost, -each.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def counterexample_texts() -> list[str]:
    """The two worlds as text, with their risks and trade-offs."""
    exits = growing_excess_risk()
    world = exits.world.per_exit()
    excess = world.mean(excess_risk(world, exits.predictors))
    growing = (
        "\nCalibrated exits that do not refine, with an excess risk that grows with depth:\n"
        f"{exits}\nmean excess risk: {', then '.join(f'{value:.4f}' for value in excess)}"
    )
    pair = calibrated_but_worse()
    exits = pair.calibrated
    stops = stopping_probability(exits.world, exits.predictors, "argmax")
    worse = (
        "\nA network that is calibrated at every exit, with refinement, and still worse:\n"
        f"{exits}\n"
        "the other network predicts 9/10 1/10 at exit 0 of point 0 and is the same otherwise; the "
        "exits cost 1 and 2"
    )
    for name, network, scores in (
        ("calibrated network, thresholds on its confidence", exits, exits.predictors.max(-1)),
        (
            "overconfident network, thresholds on its confidence",
            pair.overconfident,
            pair.overconfident.predictors.max(-1),
        ),
        (
            "calibrated network, thresholds on the stopping probability of its groups",
            exits,
            group_mean(exits.world.per_exit().p_x, exits.grouping, stops),
        ),
    ):
        best = frontier(network, scores, pair.costs)
        shown = "; ".join(f"accuracy {point.accuracy} at cost {point.cost}" for point in best)
        worse += f"\n{name}: {shown}"
    return [growing, worse]
