"""What an early-exit network costs and how often it is right, under every set of thresholds."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from offramp.errors import WorldError
from offramp.theory.exits import Exits
from offramp.theory.risks import conditional_risk
from offramp.theory.worlds import Array, as_numbers, is_rational

__all__ = ["TradeOff", "frontier"]


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
        WorldError: Scores or costs of another number of exits or points.

    Example:
        >>> from offramp.theory.counterexamples import calibrated_but_worse
        >>> pair = calibrated_but_worse()
        >>> best = frontier(pair.calibrated, pair.calibrated.predictors.max(-1), pair.costs)
        >>> [(str(point.cost), str(point.accuracy)) for point in best]
        [('1', '3/5'), ('2', '4/5')]
    """
    scores = as_numbers(scores)
    costs = [Fraction(cost) if is_rational(exits.world.p_x) else cost for cost in costs]
    shape = (exits.num_exits, exits.world.num_points)
    if scores.shape != shape or len(costs) != shape[0]:
        raise WorldError(
            f"`scores` must have the shape {list(shape)} and `costs` [{shape[0]}], got "
            f"{list(scores.shape)} and [{len(costs)}]"
        )
    right = 1 - conditional_risk(exits.world.per_exit(), exits.predictors, "zero-one")  # [M, N]
    points = np.arange(shape[1])
    found = set()
    # None closes an exit.
    for chosen in itertools.product(*([*sorted(set(row)), None] for row in scores[:-1].tolist())):
        stops = np.ones(shape, dtype=bool)
        for m, threshold in enumerate(chosen):
            stops[m] = False if threshold is None else scores[m] >= threshold
        taken = stops.argmax(0)
        cost = exits.world.mean(as_numbers([costs[m] for m in taken]))
        found.add(TradeOff(cost, exits.world.mean(right[taken, points])))
    return _undominated(found)


def _undominated(found: set[TradeOff]) -> list[TradeOff]:
    best: list[TradeOff] = []
    for point in sorted(found, key=lambda each: (each.cost, -each.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best
