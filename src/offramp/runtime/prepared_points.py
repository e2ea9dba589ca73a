"""The operating points that a runner can work at, each prepared when it is first needed."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offramp.arrays import AnyArray
from offramp.decide import Decider
from offramp.errors import BudgetError
from offramp.policy import Policy
from offramp.thresholds.rule import ROUNDING, OperatingPoints


@dataclass(frozen=True, eq=False)
class PreparedPoint:
    """One operating point, ready to run: what decides, and what is expected there.

    It never changes, so threads can share it. Plain numbers: taking one from an array costs time
    for every sample.
    """

    index: int  # its number among the policy's points
    decider: Decider
    costs: tuple[float, ...]  # `[M]`, cumulative, as shares of the network without exits
    expected_cost: float  # mean cost on val
    expected_shares: tuple[float, ...]  # `[M]`, of val samples that left at each exit
    val_samples: int  # number of those samples; 1 if unknown


class PreparedPoints:
    """The operating points that a runner can work at, each prepared when it is first needed.

    Args:
        policy: At an operating point.
        reads_outputs: Which heads `[M]` read the outputs of the exits before them.
        like: An array of the kind that outputs will be, for those that lie on a GPU.
        missing: Names the exits that a point needs and the runner does not have; the point then
            stays out of reach.

    Raises:
        NotFittedError: The policy has no operating point.
    """

    def __init__(
        self,
        policy: Policy,
        reads_outputs: Sequence[bool] = (),
        like: AnyArray | None = None,
        missing: Callable[[int], Sequence[str]] = lambda index: (),
    ) -> None:
        # Without its guarantee, about which other points would warn.
        self._policy, self._missing = policy.with_points(policy.points), missing
        parts = policy.answer, policy.scorer, policy.thresholds, policy.history_type
        self._decider = Decider(*parts, reads_outputs, like)
        self._prepared: dict[int, PreparedPoint] = {}
        costs, accuracies = self.table.budgets.tolist(), self.table.accuracies.tolist()
        reachable = (index for index in range(len(self.table)) if not missing(index))
        self._order = sorted(reachable, key=lambda i: (costs[i], accuracies[i]))
        self._costs = [costs[index] for index in self._order]

    @property
    def table(self) -> OperatingPoints:
        """The points of the policy."""
        return self._policy.points

    def __getitem__(self, index: int) -> PreparedPoint:
        if index not in self._prepared:
            self._prepared[index] = self._prepare(self._policy.at_point(index))
        return self._prepared[index]

    def _prepare(self, policy: Policy) -> PreparedPoint:
        index = policy.selected
        assert index is not None
        return PreparedPoint(
            index=index,
            decider=self._decider.at(policy.thresholds),
            costs=tuple(policy.cost_shares.tolist()),
            expected_cost=float(policy.points.budgets[index]),
            expected_shares=tuple(policy.points.shares[index].tolist()),
            val_samples=next((u.samples for u in reversed(policy.uses) if u.step == "tune"), 1),
        )

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
