"""Thresholds chosen on val by a named method, and measured there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from offramp import check
from offramp.arrays import Array, as_numpy
from offramp.costs import costs_taken
from offramp.errors import ConfigError, LedgerError
from offramp.ledger.chunks import folds
from offramp.registry import THRESHOLDS, did_you_mean
from offramp.thresholds import DEFAULT, POINTS
from offramp.thresholds.rule import OperatingPoints, exits_taken, row_shares
from offramp.thresholds.smooth import calibrated_chances

ThresholdMethod = Callable[[Array, Array, Array, int], Array]
"""`(scores [N, M], correct [N, M], costs, points) -> thresholds [P, M]`, all on val.

Costs are `[M]`, or `[N, M]` where they differ from sample to sample.
"""

WITHOUT_CORRECT = ("geometric", "shared")
"""Methods that do not use which answers are right: val can do without labels."""

BY_CHANCE = ("smooth",)
"""Methods that take the chance that an answer is right in place of whether it is."""

CLEARLY = 2.0  # standard errors

COARSE = 11  # operating points that are enough to see how much val flatters


@dataclass(frozen=True)
class ScoredSamples:
    """What thresholds are chosen by.

    Attributes:
        scores: `[N, M]`.
        correct: bool `[N, M]`, or None where there are no labels.
        costs: `[M]` or `[N, M]`, cumulative, as shares of the reference cost.
        chances: `[N, M]`: of being right, from a source better than the exits (`Replay.chances`);
            not used where it is none.
        groups: `[N]`, the number of each sample's group, or None where there are none.
    """

    scores: Array
    correct: Array | None
    costs: Array
    chances: Array | None = None
    groups: Array | None = None

    def take(self, rows: Array | slice) -> "ScoredSamples":
        """Some of the samples."""
        shared = self.costs.ndim == 1
        parts = {
            name: part if part is None or (shared and name == "costs") else part[rows]
            for name, part in vars(self).items()
        }
        return ScoredSamples(**parts)

    @property
    def _right(self) -> Array:
        """Which answers are right; all of them where there are no labels."""
        return np.ones(self.scores.shape, dtype=bool) if self.correct is None else self.correct

    @property
    def _last_is_worse(self) -> bool:
        """Whether an earlier exit is clearly more accurate than the last.

        Then the last exit is no better source than which answers are right.
        """
        gains = self._right[:, :-1].astype(np.float64) - self._right[:, -1:]
        errors = gains.std(axis=0) / len(gains) ** 0.5
        return bool((gains.mean(axis=0) > CLEARLY * errors).any())

    def choose(self, method: str, points: int) -> Array:
        """Thresholds `[P, M]` by a named method."""
        right, chances = self._right, self.chances
        if method in BY_CHANCE and chances is not None:
            if self.correct is None:
                right = chances
            elif not self._last_is_worse:
                right = calibrated_chances(chances, right)
        elif self.correct is None and method not in WITHOUT_CORRECT:
            raise LedgerError(
                f"`{method}` thresholds need labels, to know which answers are right, and val has "
                'no labels: tune with thresholds="shared" (for prices), "geometric" or "smooth"'
            )
        if self.scores.shape[1] == 1:  # the last exit always stops, whatever its threshold
            return np.zeros((1, 1))
        found = threshold_method(method)(self.scores, right, self.costs, points)
        return as_numpy(found, np.float64)

    def points_of(self, thresholds: Array, full_accuracy: float) -> OperatingPoints:
        """What thresholds `[P, M]` give here, cheapest first; accuracies are nan without labels.

        Args:
            thresholds: `[P, M]`.
            full_accuracy: Accuracy of the network's own last exit.
        """
        exits = exits_taken(self.scores, thresholds)
        means, accuracies, shares = measure(exits, self._right, self.costs)
        if self.correct is None:
            accuracies = np.full_like(accuracies, np.nan)
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


def worth_their_cost(points: OperatingPoints, val: ScoredSamples) -> OperatingPoints:
    """The points without those that cost more than another one and are clearly less accurate.

    Where later exits are worse than earlier ones, more compute makes answers worse, and so would
    a larger budget. A point is left out if a cheaper one is more accurate by two standard errors
    of their difference on the same samples, which no luck explains; and so are points on the way
    there that are less accurate at all. The standard error counts a sample that has not been
    seen, since neighbours differ in few.

    Example:
        >>> correct = np.tile([[False, True, False]], (200, 1))  # the exit in the middle is best
        >>> val = ScoredSamples(np.zeros((200, 3)), correct, np.array([0.2, 0.6, 1.0]))
        >>> each_exit = np.array([[-1, -1, -1], [1, -1, -1], [1, 1, -1]])
        >>> worth_their_cost(val.points_of(each_exit, 0.0), val).budgets
        array([0.2, 0.6])
    """
    if val.correct is None or len(val.scores) < 2:
        return points
    exits = exits_taken(val.scores, points.thresholds)
    right = np.take_along_axis(val.correct, exits.T.astype(np.int64), axis=1).astype(np.float64)
    if val.groups is not None:
        _, numbers, counts = np.unique(val.groups, return_inverse=True, return_counts=True)
        sums = np.zeros((len(counts), right.shape[1]))
        np.add.at(sums, numbers, right)
        right = sums / counts[:, None]
    means, count = right.mean(axis=0), len(right)
    gaps = means[:, None] - means  # [P, P], of the cheaper one over the other
    second = right.T @ right / count
    squares = np.diag(second)[:, None] + np.diag(second) - 2 * second
    errors = np.sqrt((np.maximum(squares - gaps**2, 0) + 1 / count) / count)
    worse = np.triu(gaps > CLEARLY * errors, 1).any(axis=0)
    # On the way down to points that are clearly worse, no point is taken for better.
    before_worse = np.cumsum(worse[::-1])[::-1] > 0
    worse |= before_worse & (means < np.maximum.accumulate(means))
    return points.keep(~worse)


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
        >>> scores = np.linspace(0, 1, 40).reshape(10, 4)
        >>> val = ScoredSamples(scores, scores > 0.3, np.array([1, 4, 7, 10]) / 10)
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
        >>> rng = np.random.default_rng(0)
        >>> scores, correct = rng.normal(size=(60, 3)), rng.random((60, 3)) > 0.5  # pure noise
        >>> val = ScoredSamples(scores, correct, np.array([0.2, 0.6, 1.0]))
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
        for sign, half in ((1, chosen_on), (-1, other)):
            found = val.take(half).points_of(thresholds, 0.0)
            losses += sign * np.interp(points.budgets, found.budgets, found.accuracies)
    expected = points.accuracies - np.maximum(losses / 2, 0)
    return replace(points, accuracies=np.maximum(expected, 0))


def measure(exits: Array, correct: Array, costs: Array) -> tuple[Array, Array, Array]:
    """Mean cost `[P]`, accuracy `[P]` and exit shares `[P, M]` of exits taken, `[P, N]`."""
    shares, right = np.empty((2, len(exits), correct.shape[1]))
    for exit_index, is_right in enumerate(np.ascontiguousarray(correct.T)):
        here = exits == exit_index
        shares[:, exit_index] = row_shares(here)
        right[:, exit_index] = row_shares(here & is_right)
    means = shares @ costs if costs.ndim == 1 else costs_taken(costs, exits).mean(axis=1)
    return means, right.sum(axis=1), shares
