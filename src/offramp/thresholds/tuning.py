"""Thresholds chosen on val by a named method, and measured there."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.costs import costs_taken
from offramp.errors import ConfigError, LedgerError
from offramp.hints import did_you_mean
from offramp.ledger.chunks import folds
from offramp.thresholds.assigned import assigned_sweep
from offramp.thresholds.geometric import geometric_sweep, shared_sweep
from offramp.thresholds.optimized import optimized_sweep
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.smooth import calibrated_chances, smooth_sweep
from offramp.thresholds.taken import exits_taken

ThresholdMethod = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""`(scores [N, M], correct [N, M], costs, points) -> thresholds [P, M]`, all on val.

Costs are `[M]`, or `[N, M]` where they differ from sample to sample.
"""

THRESHOLD_METHODS: dict[str, ThresholdMethod] = {
    "geometric": geometric_sweep,
    "optimized": optimized_sweep,
    "smooth": smooth_sweep,
    "shared": shared_sweep,
    "assigned": assigned_sweep,
}

BY_ACCURACY = ("optimized", "smooth", "assigned")
"""Those that look at which answers are right."""

BY_CHANCE = ("smooth",)
"""Those that are better off with the chance that an answer is right, where it is known."""

COARSE = 11  # operating points that are enough to see how much val flatters

DEFAULT = "smooth"
"""What policies are tuned with unless told otherwise: seldom worse than the better of geometric
and optimised thresholds, from a hundred val samples to thousands."""


def tune_points(
    scores: Tensor,
    correct: Tensor | None,
    costs: Tensor,
    full_accuracy: float,
    method: str = DEFAULT,
    points: int = 201,
    chances: Tensor | None = None,
) -> OperatingPoints:
    """Choose thresholds on val by a named method and measure them there.

    Args:
        scores: `[N, M]`.
        correct: bool `[N, M]`, or None where there are no labels.
        costs: `[M]` or `[N, M]`, cumulative, as shares of the reference cost.
        full_accuracy: Accuracy of the network's own last exit.
        method: A key of `THRESHOLD_METHODS`.
        points: How many operating points; methods may return fewer.
        chances: `[N, M]`: of being right, from a source better than the exits (`Replay.chances`).

    Raises:
        LedgerError: There are no labels, and the method needs to know which answers are right.

    Example:
        >>> scores = torch.linspace(0, 1, 40).reshape(10, 4)
        >>> costs = torch.tensor([1, 4, 7, 10]) / 10
        >>> points = tune_points(scores, scores > 0.3, costs, 0.7, "geometric")
        >>> len(points), round(float(points.budgets[points.for_budget(0.5)]), 2)
        (201, 0.49)
    """
    if method not in THRESHOLD_METHODS:
        raise ConfigError(
            f"`thresholds` must be one of {', '.join(THRESHOLD_METHODS)}, got {method!r}"
            f"{did_you_mean(method, THRESHOLD_METHODS)}"
        )
    if points < 2:
        raise ConfigError(f"`points` must be at least 2, got {points}")
    thresholds = _choose(method, scores, correct, costs, points, chances)
    return points_of(thresholds, scores, correct, costs, full_accuracy)


def _choose(
    method: str,
    scores: Tensor,
    correct: Tensor | None,
    costs: Tensor,
    points: int,
    chances: Tensor | None,
) -> Tensor:
    """Thresholds `[P, M]` by a named method; from chances of being right where it takes them."""
    if chances is not None and method in BY_CHANCE:
        correct = chances if correct is None else calibrated_chances(chances, correct)
    if correct is None and method in BY_ACCURACY:
        raise LedgerError(
            f"`{method}` thresholds look at which answers are right, and val has no labels: tune "
            'with thresholds="shared" (for prices), "geometric" or "smooth"'
        )
    if scores.shape[1] == 1:  # the last exit always stops, whatever its threshold
        return torch.zeros(1, 1, dtype=torch.float64)
    right = torch.ones_like(scores, dtype=torch.bool) if correct is None else correct
    return THRESHOLD_METHODS[method](scores, right, costs, points)


def points_of(
    thresholds: Tensor,
    scores: Tensor,
    correct: Tensor | None,
    costs: Tensor,
    full_accuracy: float,
) -> OperatingPoints:
    """Measure thresholds `[P, M]` on the samples that they were chosen on, cheapest first."""
    right = torch.ones_like(scores, dtype=torch.bool) if correct is None else correct
    means, accuracies, shares = measure(exits_taken(scores, thresholds), right, costs)
    if correct is None:
        accuracies = torch.full_like(accuracies, torch.nan)
    return OperatingPoints(thresholds, means, accuracies, shares, full_accuracy).priced(means)


def not_flattered(
    points: OperatingPoints,
    scores: Tensor,
    correct: Tensor | None,
    costs: Tensor,
    method: str,
    chances: Tensor | None = None,
    groups: Tensor | None = None,
) -> OperatingPoints:
    """The same points with the accuracies that samples like val can be expected to give.

    Thresholds that were chosen by the accuracy on val look better there than they are, by a point
    or two, and the cheapest point that seems accurate enough would be one that val flatters. So
    what thresholds from one half of val lose on the other half is taken off, at the same cost.

    Args:
        points: Chosen and measured on all of val.
        scores: `[N, M]`, on val.
        correct: bool `[N, M]`, or None where there are no labels, and so nothing to flatter.
        costs: `[M]` or `[N, M]`, cumulative, as shares of the reference cost.
        method: A key of `THRESHOLD_METHODS`; those that do not look at `correct` flatter nobody.
        chances: `[N, M]`, as for `tune_points`.
        groups: `[N]`, the number of each sample's group; the halves keep them whole.

    Example:
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> scores, correct = torch.randn(60, 3), torch.rand(60, 3) > 0.5  # nothing to be found
        >>> costs = torch.tensor([0.2, 0.6, 1.0])
        >>> found = tune_points(scores, correct, costs, 0.5)
        >>> honest = not_flattered(found, scores, correct, costs, "optimized")
        >>> bool(found.accuracies.max() > honest.accuracies.max())
        True
    """
    if method not in BY_ACCURACY or len(scores) < 2 or correct is None:
        return points
    losses = np.zeros(len(points))
    for chosen_on, other in folds(len(scores), 2, groups):
        half_chances = None if chances is None else chances[chosen_on]
        paid = [costs if costs.ndim == 1 else costs[half] for half in (chosen_on, other)]
        thresholds = _choose(
            method, scores[chosen_on], correct[chosen_on], paid[0], COARSE, half_chances
        )
        seen, unseen = (
            points_of(thresholds, scores[half], correct[half], cost, 0.0)
            for half, cost in zip((chosen_on, other), paid, strict=True)
        )
        losses += _at(seen, points.budgets) - _at(unseen, points.budgets)
    expected = points.accuracies - torch.from_numpy(losses / 2).clamp_min(0)
    return replace(points, accuracies=expected.clamp_min(0))


def _at(points: OperatingPoints, budgets: Tensor) -> npt.NDArray[np.float64]:
    """Accuracies at mean costs `[P]`, by linear interpolation."""
    found: npt.NDArray[np.float64] = np.interp(
        budgets.numpy(), points.budgets.numpy(), points.accuracies.numpy()
    )
    return found


def measure(exits: Tensor, correct: Tensor, costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cost `[P]`, accuracy `[P]` and exit shares `[P, M]` of exits taken, `[P, N]`."""
    taken, right = exits.numpy(), correct.T.contiguous().numpy()
    counts = np.empty((2, len(right), len(taken)))  # how many left at an exit, and left right
    for exit_index in range(len(right)):
        here = taken == exit_index
        counts[0, exit_index] = _row_counts(here)
        counts[1, exit_index] = _row_counts(here & right[exit_index])
    left, left_right = torch.from_numpy(counts) / exits.shape[1]
    costs = costs.double()
    means = costs @ left if costs.ndim == 1 else costs_taken(costs, exits).mean(dim=1)
    return means, left_right.sum(dim=0), left.T.contiguous()


def _row_counts(mask: npt.NDArray[np.bool_]) -> list[Any]:
    """True values per row; numpy counts one row at a time far faster than along an axis."""
    return [np.count_nonzero(row) for row in mask]
