"""Break-even prices of compute: what stopping gains over going on, at many prices at once."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

import numpy as np

from offramp.arrays import AnyArray, Array, clipped, values_at
from offramp.costs import mean_costs
from offramp.ledger import History
from offramp.scorers.ridge import RidgeScorer, SoftTargets
from offramp.targets import soft_correctness

PRICE_GRID = tuple(np.logspace(-2.2, 0.8, 12).tolist())
"""Accuracy for the cost of the whole network, from next to nothing to hardly affordable."""

_LOWEST = math.log(PRICE_GRID[0])
_STEP = math.log(PRICE_GRID[1]) - _LOWEST  # from one price to the next
BEYOND = 5.0  # how fast the logarithm of the price moves with the gain beyond the grid


@dataclass
class BreakEven(RidgeScorer):
    """Break-even prices of compute, by ridge regression backwards from the last exit.

    For a sample at an exit there is a price of compute at which stopping and going on are worth
    the same. For twelve prices at once, what stopping gains over going on is regressed on the
    exits so far; the price at which that gain is zero is read off between them. Minus its
    logarithm is the score. It means the same at every exit, so a single threshold serves them all
    (`thresholds="shared"`), and that needs no labels of val. Nor does the fit: without labels
    it takes the last exit's probabilities for what they are, and loses what labels would have
    told of how far to trust them.

    Args:
        history: Also look at the earlier exits.
        classes: Also look at the probability of every class, if there are at most 500.

    Attributes:
        means_: `[M-1, D]`, of the features.
        scales_: `[M-1, D]`.
        coefficients_: `[M-1, D+1, 12]` float64, the constant last.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> policy = Policy(BreakEven()).fit(splits["held_out"]).tune(splits["val"], "shared")
        >>> len(np.unique(policy.at(budget=0.5).thresholds))  # one, and -inf at the last exit
        2
    """

    def fit_unlabelled(self, history: History, costs: Array) -> Self:
        """The same with the last exit's probabilities, taken as they are, in place of labels."""
        return self._fit(history, SoftTargets.unlabelled(history), costs)

    def _score(self, outputs: AnyArray) -> AnyArray:
        """Minus the logarithm of the break-even price."""
        return -log_break_even(outputs)

    @property
    def _num_outputs(self) -> int:
        return len(PRICE_GRID)

    def _solve(
        self,
        designs: list[Array],
        penalties: Array,
        predictions: Array,
        teacher: SoftTargets,
        costs: Array,
    ) -> list[Array]:
        chances = soft_correctness(predictions, teacher.probs)
        shares = np.broadcast_to(costs / mean_costs(costs)[-1], predictions.shape)
        paid = shares.T[..., None] * np.array(PRICE_GRID)  # [M, N, P]
        later = chances[:, -1:] - paid[-1]  # [N, P], worth of going on
        found: list[Array] = []
        for exit_index in reversed(range(len(designs))):
            here, design = chances[:, exit_index, None] - paid[exit_index], designs[exit_index]
            normal = design.T @ design + np.diag(penalties)
            weights = np.linalg.solve(normal, design.T @ (here - later))
            gains = design @ weights
            # Who goes on is worth half what happened to come of it, and half what was expected.
            later = np.where(gains >= 0, here, (later + here - gains) / 2)
            found.insert(0, weights)
        return found


def log_break_even(gains: AnyArray) -> AnyArray:
    """Logarithm of the price at which stopping begins to gain, `[n]` from gains `[n, 12]`.

    Between the prices of the grid it is interpolated, and beyond them extrapolated.

    Example:
        >>> gains = np.linspace(-1, 1, 12)[None]
        >>> 10 ** (log_break_even(gains) / np.log(10)).round(4)  # the middle of the grid
        array([0.19952623])
    """
    gains = _running_max(gains)  # a higher price never speaks for going on
    if len(gains) == 1 and isinstance(gains, np.ndarray):
        return np.array([_log_root(gains[0].tolist())])
    # The step of the grid in which the gain becomes zero, and how much of it lies below.
    step = clipped((gains[:, 1:] < 0).sum(axis=1), 0, len(PRICE_GRID) - 2)[:, None]
    low, high = values_at(gains, step)[:, 0], values_at(gains, step + 1)[:, 0]
    share = clipped(-low / clipped(high - low, TINY, math.inf), 0.0, 1.0)
    beyond = clipped(gains[:, 0], 0.0, math.inf) + clipped(gains[:, -1], -math.inf, 0.0)
    return (step[:, 0] + share) * _STEP + _LOWEST - BEYOND * beyond


TINY = 1e-12  # a step up of the gain


def _log_root(gains: list[float]) -> float:
    """The same for one sample, in numbers of Python: a third of the time."""
    step = min(bisect_left(gains, 0.0, 1) - 1, len(PRICE_GRID) - 2)
    low, high = gains[step], gains[step + 1]
    share = min(max(-low / max(high - low, TINY), 0.0), 1.0)
    beyond = max(gains[0], 0.0) + min(gains[-1], 0.0)
    return (step + share) * _STEP + _LOWEST - BEYOND * beyond


def _running_max(values: AnyArray) -> AnyArray:
    """The largest value so far along the rows of `[n, j]`.

    Example:
        >>> _running_max(np.array([[1.0, 3.0, 2.0]]))
        array([[1., 3., 3.]])
    """
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values, axis=1)
    return values.cummax(1).values
