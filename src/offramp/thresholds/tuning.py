"""Thresholds chosen on val by a named method, and measured there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp import check
from offramp.costs import costs_taken
from offramp.errors import ConfigError, LedgerError
from offramp.ledger.chunks import folds
from offramp.registry import THRESHOLDS, did_you_mean
from offramp.thresholds import DEFAULT, POINTS
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.rule import exits_taken
from offramp.thresholds.smooth import calibrated_chances

ThresholdMethod = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""`(scores [N, M], correct [N, M], costs, points) -> thresholds [P, M]`, all on val.

Costs are `[M]`, or `[N, M]` where they differ from sample to sample.
"""

WITHOUT_CORRECT = ("geometric", "shared")
"""Methods that do not use which answers are right: val can do without labels."""

BY_CHANCE = ("smooth",)
"""Methods that take the chance that an answer is right in place of whether it is."""

COARSE = 11  # operating points that are enough to see how much val flatters


@dataclass(frozen=True)
class ScoredSamples:
    """What thresholds are chosen by.

    Attributes:
        scores: `[N, M]`.
        correct: bool `[N, M]`, or None where there are no labels.
        costs: `[M]` or `[N, M]`, cumulative, as shares of the reference cost.
        chances: `[N, M]`: of being right, from a source better than the exits (`Replay.chances`).
        groups: `[N]`, the number of each sample's group, or None where there are none.
    """

    scores: Tensor
    correct: Tensor | None
    costs: Tensor
    chances: Tensor | None = None
    groups: Tensor | None = None

    def take(self, rows: Tensor) -> "ScoredSamples":
        """Some of the samples."""
        return ScoredSamples(
            self.scores[rows],
            None if self.correct is None else self.correct[rows],
            self.costs if self.costs.ndim == 1 else self.costs[rows],
            None if self.chances is None else self.chances[rows],
            None if self.groups is None else self.groups[rows],
        )

    def choose(self, method: str, points: int) -> Tensor:
        """Thresholds `[P, M]` by a named method."""
        correct = self.correct
        if method in BY_CHANCE and self.chances is not None:
            chances = self.chances
            correct = chances if correct is None else calibrated_chances(chances, correct)
        if correct is None and method not in WITHOUT_CORRECT:
            raise LedgerError(
                f"`{method}` thresholds need labels, to know which answers are right, and val has "
                'no labels: tune with thresholds="shared" (for prices), "geometric" or "smooth"'
            )
        if self.scores.shape[1] == 1:  # the last exit always stops, whatever its threshold
            return torch.zeros(1, 1, dtype=torch.float64)
        right = torch.ones_like(self.scores, dtype=torch.bool) if correct is None else correct
        return threshold_method(method)(self.scores, right, self.costs, points)

    def points_of(self, thresholds: Tensor, full_accuracy: float) -> OperatingPoints:
        """What thresholds `[P, M]` give here, cheapest first; accuracies are nan without labels.

        Args:
            thresholds: `[P, M]`.
            full_accuracy: Accuracy of the network's own last exit.
        """
        exits, correct = exits_taken(self.scores, thresholds), self.correct
        right = torch.ones_like(self.scores, dtype=torch.bool) if correct is None else correct
        means, accuracies, shares = measure(exits, right, self.costs)
        if correct is None:
            accuracies = torch.full_like(accuracies, torch.nan)
        return OperatingPoints(thresholds, means, accuracies, shares, full_accuracy).priced(means)


def threshold_method(name: str) -> ThresholdMethod:
    """A threshold method by name: one of the library, or of an installed package.

    Raises:
        ConfigError: There is none of that name.
        PluginError: The package's cannot be loaded.
    """
    found = THRESHOLDS.get(name) or THRESHOLDS.plugin(name)
    if not callable(found):
        known = THRESHOLDS.listed()
        raise ConfigError(
            f"`thresholds` must be one of {', '.join(known)}, got {name!r}"
            f"{did_you_mean(name, known)}"
        )
    return cast(ThresholdMethod, found)


def tune_points(
    val: ScoredSamples, full_accuracy: float, method: str = DEFAULT, points: int = POINTS
) -> OperatingPoints:
    """Choose thresholds on val by a named method and measure them there.

    Args:
        val: Scores, costs, and what is known of which answers are right.
        full_accuracy: Accuracy of the network's own last exit.
        method: One of `offramp.registry.THRESHOLDS`, or of an installed package.
        points: How many operating points; methods may return fewer.

    Raises:
        LedgerError: There are no labels, and the method needs to know which answers are right.

    Example:
        >>> scores = torch.linspace(0, 1, 40).reshape(10, 4)
        >>> val = ScoredSamples(scores, scores > 0.3, torch.tensor([1, 4, 7, 10]) / 10)
        >>> points = tune_points(val, 0.7, "geometric")
        >>> len(points), round(float(points.budgets[points.for_budget(0.5)]), 2)
        (201, 0.49)
    """
    threshold_method(method)
    check.whole("points", points, least=2)
    return val.points_of(val.choose(method, points), full_accuracy)


def not_flattered(points: OperatingPoints, val: ScoredSamples, method: str) -> OperatingPoints:
    """The same points with the accuracies that samples like val can be expected to give.

    Thresholds that were chosen by the accuracy on val are a point or two less accurate elsewhere,
    and the cheapest point that seems accurate enough would be one that is accurate on val alone.
    So what thresholds from one half of val lose on the other half, at the same cost, is taken off.

    Args:
        points: Chosen and measured on all of val.
        val: The same samples; the halves keep groups whole.
        method: The threshold method; one that does not use `correct` gains nothing on val.

    Example:
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> scores, correct = torch.randn(60, 3), torch.rand(60, 3) > 0.5  # nothing to be found
        >>> val = ScoredSamples(scores, correct, torch.tensor([0.2, 0.6, 1.0]))
        >>> found = tune_points(val, 0.5)
        >>> honest = not_flattered(found, val, "smooth")
        >>> bool(found.accuracies.mean() > honest.accuracies.mean() + 0.02)
        True
    """
    if method in WITHOUT_CORRECT or len(val.scores) < 2 or val.correct is None:
        return points
    losses = np.zeros(len(points))
    for chosen_on, other in folds(len(val.scores), 2, val.groups):
        thresholds = val.take(chosen_on).choose(method, COARSE)
        seen, unseen = (
            _accuracies_at(points.budgets, val.take(half).points_of(thresholds, 0.0))
            for half in (chosen_on, other)
        )
        losses += seen - unseen
    expected = points.accuracies - torch.from_numpy(losses / 2).clamp_min(0)
    return replace(points, accuracies=expected.clamp_min(0))


def _accuracies_at(budgets: Tensor, points: OperatingPoints) -> npt.NDArray[np.float64]:
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
