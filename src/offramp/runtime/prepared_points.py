"""The operating points that a runner can work at, each prepared when it is first needed."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from offramp.errors import BudgetError
from offramp.thresholds.points import ROUNDING, OperatingPoints


@dataclass(frozen=True, eq=False)
class PreparedPoint:
    """One operating point, ready to run: what has to run, and which samples stop.

    It never changes, so threads can share it. Plain numbers: taking one from an array costs time
    at every exit.
    """

    index: int  # its number among the policy's points
    # `[M]`, thresholds rounded up to float32; `+inf` where an exit is closed
    limits: tuple[float, ...]
    # `[M]`, whether the head has to run: its exit is open, or something later reads its logits
    needs_head: tuple[bool, ...]
    keeps_logits: bool  # whether anything reads the logits of earlier exits
    # whether anything reads the answers at earlier exits, where these are not the logits
    # themselves
    keeps_answers: bool
    costs: tuple[float, ...]  # `[M]`, cumulative, as shares of the network without exits
    expected_cost: float  # mean cost on val
    expected_shares: tuple[float, ...]  # `[M]`, of val samples that left at each exit
    val_samples: int  # number of those samples; 1 if unknown

    @cached_property
    def is_open(self) -> tuple[bool, ...]:
        """`[M]`, whether a sample can stop there; always true at the last exit."""
        return open_exits(self.limits)


class PreparedPoints:
    """The operating points that a runner can work at, each prepared when it is first needed.

    Args:
        table: The points of the policy.
        prepare: Makes the point with a number.
        missing: Names the exits that a point needs and the runner does not have; the point then
            stays out of reach.
    """

    def __init__(
        self,
        table: OperatingPoints,
        prepare: Callable[[int], PreparedPoint],
        missing: Callable[[int], Sequence[str]] = lambda index: (),
    ) -> None:
        self.table, self._missing, self._prepare = table, missing, prepare
        self._prepared: dict[int, PreparedPoint] = {}
        costs, accuracies = table.budgets.tolist(), table.accuracies.tolist()
        reachable = (index for index in range(len(table)) if not missing(index))
        self._order = sorted(reachable, key=lambda i: (costs[i], accuracies[i]))
        self._costs = [costs[index] for index in self._order]

    def __getitem__(self, index: int) -> PreparedPoint:
        if index not in self._prepared:
            self._prepared[index] = self._prepare(index)
        return self._prepared[index]

    def for_budget(self, budget: float) -> int:
        """The number of the point for a budget.

        Raises:
            BudgetError: No point is that cheap, or the point for it cannot be reached.
        """
        index = self.table.for_budget(budget)
        if missing := self._missing(index):
            raise BudgetError(
                f"the budget {budget} needs exits that are not in this export "
                f"({', '.join(missing)}): export again at that budget, or with points='all'"
            )
        return index

    def within(self, cost: float) -> int:
        """The most expensive reachable point that costs no more on val; else the cheapest."""
        return self._order[max(bisect_right(self._costs, cost + ROUNDING) - 1, 0)]

    @property
    def ends(self) -> tuple[float, float]:
        """What the cheapest and the most expensive reachable point cost on val."""
        return self._costs[0], self._costs[-1]


def open_exits(limits: Sequence[float]) -> tuple[bool, ...]:
    """Whether a sample can stop at each exit, `[M]`: the last one always stops.

    Example:
        >>> open_exits([0.5, math.inf, math.inf])
        (True, False, True)
    """
    return (*(limit < math.inf for limit in limits[:-1]), True)
