"""The stop rule, and operating points. Search, evaluation and runtime all decide by `stops`."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import (
    AnyArray,
    Array,
    as_numpy,
    as_tensor,
    float64,
    is_tensor,
    namespace,
    positions,
)
from offramp.errors import BudgetError, LedgerError

SURE = 0.5
"""A sample that stops with a lower confidence stops as hopeless: its answer is probably wrong."""

NOTED = 0.01  # of the full network's cost; less than this is not worth a sentence

ROUNDING = 1e-9
"""Costs are sums of many floats; a point must not miss its own budget by rounding."""


def stops(scores: AnyArray, threshold: AnyArray) -> AnyArray:
    """Whether to stop: the score reaches the threshold. A NaN score never stops.

    Args:
        scores: Any shape, of either kind of array; or a number.
        threshold: Broadcast against the scores; of their float type, see `rounded_up`.

    Example:
        >>> stops(np.array([0.1, 0.5, np.nan]), 0.3)
        array([False,  True, False])
    """
    return scores >= threshold


def rounded_up(thresholds: AnyArray, dtype: Any) -> AnyArray:  # noqa: ANN401 - of their library
    """Thresholds in a smaller float type that decide exactly as before.

    A score of that type reaches a float64 threshold if and only if it reaches the next number
    of its own type above it; rounding to the nearest could fall on a score from above.

    Example:
        >>> up = rounded_up(np.array([1.0 + 1e-12]), np.float32)
        >>> np.float32(1.0) >= up
        array([False])
    """
    xp = namespace(thresholds)
    near = xp.asarray(thresholds, dtype=dtype)
    above = xp.nextafter(near, xp.full_like(near, xp.inf))
    return xp.where(float64(near) < float64(thresholds), above, near)


def exits_taken(scores: AnyArray, thresholds: AnyArray) -> AnyArray:
    """The exit at which each sample stops: the first whose score reaches its threshold.

    Args:
        scores: `[N, M]`, higher = better to stop.
        thresholds: `[M]`, or `[P, M]` for many operating points at once; `+inf` closes an exit.
            The last exit always stops, whatever its score and threshold.

    Returns:
        int16 `[N]` or `[P, N]`, exit numbers, of the kind of array that the scores are.

    Example:
        >>> scores = np.array([[0.9, 0.0, 0.0], [0.1, 0.8, 0.0], [0.1, 0.2, 0.0]])
        >>> exits_taken(scores, np.array([0.5, 0.5, 0.0]))
        array([0, 1, 2], dtype=int16)
    """
    values, limits = as_numpy(scores), as_numpy(thresholds)
    if values.ndim != 2 or limits.shape[-1:] != values.shape[1:]:
        raise LedgerError(
            "`scores` must have the shape [N, M] and `thresholds` [M] or [P, M], got "
            f"{list(values.shape)} and {list(limits.shape)}"
        )
    columns = np.ascontiguousarray(values.T if values.dtype.kind == "f" else float64(values.T))
    limits = rounded_up(limits, columns.dtype)
    # A sample takes one more exit for every one that it passes.
    going_on = np.ones((*limits.shape[:-1], columns.shape[1]), dtype=bool)
    exits = np.zeros(going_on.shape, dtype=np.int16)
    for exit_index in range(len(columns) - 1):
        going_on &= ~stops(columns[exit_index], limits[..., exit_index, None])
        exits += going_on
    return as_tensor(exits) if is_tensor(scores) else exits


def exit_shares(exits: Array, count: int) -> Array:
    """`[P, M]` float64: the share of the samples that take each exit, from exits `[P, N]`."""
    return np.stack([row_shares(exits == m) for m in range(count)], axis=1)


def row_shares(mask: Array) -> Array:
    """`[P]` float64: the share of true values in each row of `[P, N]`."""
    # numpy counts one row at a time far faster than along an axis
    return np.array([np.count_nonzero(row) / mask.shape[1] for row in mask])


@dataclass(frozen=True, eq=False)  # by identity: policies for several budgets share one
class OperatingPoints:
    """P sets of thresholds, cheapest first, and what each gave on val.

    Attributes:
        thresholds: `[P, M]` float64.
        budgets: `[P]`, mean cost on val as a share of the reference cost.
        accuracies: `[P]`, on val; in a tuned policy without what the thresholds gain there by
            having been chosen on the same samples, see `not_flattered`; nan without labels.
        shares: `[P, M]`, share of the val samples that left at each exit.
        full_accuracy: Accuracy of the network's own last exit on val; nan without labels.
    """

    thresholds: Array
    budgets: Array
    accuracies: Array
    shares: Array
    full_accuracy: float

    def __len__(self) -> int:
        return len(self.budgets)

    def tensors(self) -> dict[str, Array]:
        """The arrays by name, for a file."""
        return {item.name: getattr(self, item.name) for item in fields(self)[:-1]}

    def keep(self, rows: Array) -> "OperatingPoints":
        """Some of the points, by their numbers or by a mask."""
        parts = {name: part[rows] for name, part in self.tensors().items()}
        return OperatingPoints(**parts, full_accuracy=self.full_accuracy)

    def priced(self, budgets: Array) -> "OperatingPoints":
        """The same points with other mean costs `[P]`, cheapest first again."""
        return replace(self, budgets=budgets).keep(budgets.argsort(kind="stable"))

    def for_budget(self, budget: float) -> int:
        """The point with the highest val cost that is not above the budget.

        Raises:
            BudgetError: With the range that is possible.
        """
        if not isinstance(budget, int | float) or not 0 < budget <= 1:
            raise BudgetError(
                f"`budget` is a share of the network without exits in (0, 1], got {budget!r}"
            )
        if self.budgets[0] > budget + ROUNDING:
            raise BudgetError(
                f"`budget` must lie in [{bound_text(float(self.budgets[0]))}, 1] for these costs, "
                f"got {budget}: exit 0 alone, with its head and scorer, costs "
                f"{bound_text(float(self.budgets[0]))} of the network without exits"
            )
        return self.nearest(budget)

    def nearest(self, budget: float) -> int:
        """The point for a budget, or the cheapest one where the budget is below all of them."""
        limit = max(budget, float(self.budgets[0]))
        within = positions(self.budgets <= limit + ROUNDING)
        best = within[self.budgets[within] == self.budgets[within].max()]
        return int(best[self.accuracies[best].argmax()])

    def unspent(self, budget: float) -> str:
        """What is not spent of a budget since more compute gives no better answers; or nothing."""
        most = float(self.budgets[-1])
        if budget - most < NOTED:
            return ""
        return (
            f"; it takes {most:.1%} of the full network's cost and not {budget:.0%}: on val, more "
            "makes answers worse"
        )

    def for_accuracy(self, max_drop: float) -> int:
        """The cheapest point that loses at most `max_drop` on val against the full network.

        Raises:
            BudgetError: No point is that accurate.
            LedgerError: The points were chosen without labels.
        """
        check.within("max_drop", max_drop, 0, 1, ends="[)", error=BudgetError)
        if math.isnan(self.full_accuracy):
            raise LedgerError(
                "`max_drop` needs accuracies, and val had no labels: choose by `budget`, or tune "
                "on samples with labels"
            )
        wanted = self.full_accuracy - max_drop
        within = positions(self.accuracies >= wanted - 1e-9)
        if not len(within):
            least = self.full_accuracy - float(self.accuracies.max())
            raise BudgetError(
                f"`max_drop` must be at least {bound_text(least)} for this policy, got {max_drop}"
                f": its best val accuracy is {float(self.accuracies.max()):.4f}, the full "
                f"network's {self.full_accuracy:.4f}"
            )
        return int(within[self.budgets[within].argmin()])


def bound_text(value: float) -> str:
    """Four digits, rounded up, so that the stated bound is itself possible."""
    return f"{-(-value * 10_000 // 1) / 10_000:.4f}"
