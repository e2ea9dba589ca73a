"""Budget curves: accuracy over realised test cost, with thresholds from val."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.replay import Trace
from offramp.thresholds.points import measure
from offramp.thresholds.rule import exits_taken

GRID = tuple(percent / 100 for percent in range(1, 101))
"""Budgets at which reports look: every whole per cent."""


class AccuracyAt(NamedTuple):
    """Accuracy at a budget; `cost` is the budget, or the nearest cost that can be had."""

    accuracy: float
    cost: float


@dataclass(frozen=True)
class Curve:
    """All operating points of a policy on one ledger, sorted by realised cost.

    Attributes:
        costs: `[P]`, mean cost as a share of the network without exits.
        accuracies: `[P]`.
        shares: `[P, M]`, share of samples that left at each exit.
        points: `[P]`, number of the operating point in `policy.points`.
    """

    costs: Tensor
    accuracies: Tensor
    shares: Tensor
    points: Tensor

    def at(self, budget: float) -> AccuracyAt:
        """Linear interpolation between the neighbouring points; no envelope, no maximum."""
        accuracies, costs = accuracy_at(
            self.costs[None], self.accuracies[None], torch.tensor([budget], dtype=torch.float64)
        )
        return AccuracyAt(float(accuracies[0, 0]), float(costs[0, 0]))


def budget_curve(policy: Policy, test: Ledger, allow_split: str | None = None) -> Curve:
    """Accuracy and cost on test at every operating point that was chosen on val.

    Args:
        policy: Fitted and tuned.
        test: Data that nothing was fitted or tuned on.
        allow_split: Another split's name, to measure on that one knowingly.

    Example:
        >>> from offramp import MaxProbability, Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"])
        >>> curve = budget_curve(policy, splits["test"])
        >>> curve.at(0.25).accuracy < curve.at(0.75).accuracy
        True
    """
    thresholds = policy.points.thresholds
    trace = policy.trace(test, "test", allow_split)
    return curve_of(trace, thresholds, policy.costs(test) / test.reference_cost)


def curve_of(trace: Trace, thresholds: Tensor, costs: Tensor) -> Curve:
    """The curve of a trace under thresholds `[P, M]`, with costs `[M]` as shares."""
    exits = exits_taken(trace.scores, thresholds)
    means, accuracies, shares = measure(exits, trace.correct, costs)
    order = means.argsort(stable=True)
    return Curve(means[order], accuracies[order], shares[order], order)


def accuracy_at(costs: Tensor, accuracies: Tensor, budgets: Tensor) -> tuple[Tensor, Tensor]:
    """Interpolate many curves at once.

    Args:
        costs: `[R, P]`, in any order.
        accuracies: `[R, P]`.
        budgets: `[B]`.

    Returns:
        Accuracies `[R, B]` and the costs they belong to `[R, B]`: the budget, or, where a curve
        does not reach it, the cost of its nearest point.

    Example:
        >>> costs, accuracies = torch.tensor([[0.2, 0.6]]), torch.tensor([[0.5, 0.7]])
        >>> accuracy_at(costs, accuracies, torch.tensor([0.1, 0.4]))
        (tensor([[0.5000, 0.6000]]), tensor([[0.2000, 0.4000]]))
    """
    costs, order = costs.sort(dim=1, stable=True)
    accuracies = accuracies.gather(1, order)
    wanted = budgets.expand(len(costs), -1).contiguous()
    wanted = torch.maximum(torch.minimum(wanted, costs[:, -1:]), costs[:, :1])
    right = torch.searchsorted(costs, wanted).clamp(1, costs.shape[1] - 1)
    left = (right - 1).clamp_min(0)  # a curve may be a single point
    low, high = costs.gather(1, left), costs.gather(1, right)
    share = ((wanted - low) / (high - low)).nan_to_num(0.0)
    below, above = accuracies.gather(1, left), accuracies.gather(1, right)
    return below + share * (above - below), wanted
