"""`pairs`: at each budget the best cascade of two stages, what more stages have to beat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from offramp.ledger import Ledger
from offramp.methods import Fits, Method, Plan, register
from offramp.thresholds import OperatingPoints


@dataclass(frozen=True)
class Pairs(Method):
    """Two stages and one threshold on the confidence, the best such pair on val for each budget.

    Every cascade of two models, with all thresholds between them, is a curve of cost and accuracy;
    this is their envelope. Single stages are its ends: a pair in which nobody goes on, or all do.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> (plan,) = Pairs().plans(splits["held_out"], splits["val"], [0.5], seeds=1)
        >>> len(plan[0.5].exits)
        2
    """

    name: str = "pairs"
    label: str = "Best pair of stages"
    thresholds: str = "shared"

    def describe(self) -> dict[str, Any]:
        """As any method's; the plan says which pairs were chosen."""
        return {**super().describe(), "stages": 2}

    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        budgets: Sequence[float],
        seeds: int,
        fits: Fits | None = None,
    ) -> list[Plan]:
        """Choose a pair for each budget by the accuracy on val at that cost."""
        found = {}
        for pair in combinations(range(val.num_exits), 2):
            kept = held_out.keep_exits(pair), val.keep_exits(pair)
            (policy,) = self.policy().fit_seeds(kept[0], range(1))
            found[pair] = policy.tune(kept[1], self.thresholds)
        chosen, why = {}, {}
        for budget in budgets:
            rated = {pair: _accuracy(policy.points, budget) for pair, policy in found.items()}
            best = max(rated, key=lambda pair: rated[pair])
            points = found[best].points
            chosen[budget] = found[best].at_point(points.nearest(budget))
            why[budget] = f"stages {best[0]} and {best[1]}: {rated[best]:.2%} on val"
        exits = list(range(val.num_exits))
        plan = Plan(chosen, exits, dict.fromkeys(budgets, self.name))
        return [replace(plan, why=why)]


def _accuracy(points: OperatingPoints, budget: float) -> float:
    """On val at a cost, by linear interpolation; nothing where a pair costs more."""
    budgets, accuracies = points.budgets.numpy(), points.accuracies.numpy()
    if budget < budgets[0] - 1e-9:
        return -1.0
    return float(np.interp(budget, budgets, accuracies))


register(Pairs())
