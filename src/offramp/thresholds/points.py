"""Operating points: thresholds over the whole range of costs, with what they gave on val."""

import math
from dataclasses import dataclass, fields

from offramp import check
from offramp.arrays import Array, positions
from offramp.errors import BudgetError, LedgerError

# Costs are sums of many floats; a point must not miss its own budget by rounding.
ROUNDING = 1e-9


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

    def priced(self, budgets: Array) -> "OperatingPoints":
        """The same points with other mean costs `[P]`, cheapest first again."""
        order = budgets.argsort(kind="stable")
        parts = self.tensors() | {"budgets": budgets}
        sorted_parts = {name: part[order] for name, part in parts.items()}
        return OperatingPoints(**sorted_parts, full_accuracy=self.full_accuracy)

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
