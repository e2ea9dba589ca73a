"""What is best where accuracy is to be kept: exits, a fixed exit, or the network without exits."""

from dataclasses import dataclass

from offramp.evaluation.references import fixed_exits
from offramp.ledger import Ledger
from offramp.plan import Plan

MAX_DROP = 0.005  # of accuracy on val that counts as kept


@dataclass(frozen=True)
class Way:
    """One way to answer.

    Attributes:
        name: In words.
        share: Mean cost, as a share of the network without exits.
        accuracy: On val.
    """

    name: str
    share: float
    accuracy: float


def best_ways(plan: Plan, val: Ledger, max_drop: float = MAX_DROP) -> list[Way]:
    """Whatever keeps the accuracy of the network without exits on val, the cheapest first.

    Exits at the budgets of the plan, every exit alone (a network that is cut there, or the earlier
    network of a chain), and the network without exits, which is always among them.

    Args:
        plan: Policies for several budgets.
        val: All exits, with labels.
        max_drop: Accuracy that may be lost.
    """
    full = float(val.heads_correct[:, -1].mean())
    ways = [Way("the network without exits", 1.0, full)]
    for row in fixed_exits(val, val.heads_correct)[:-1]:
        ways.append(Way(f"exit {row.exit_index} alone", row.cost, row.accuracy))
    for policy in plan.distinct_points:
        points, index = policy.points, policy.selected
        if len(policy.exits) > 1 and index is not None:
            share = float(points.budgets[index])
            ways.append(Way(f"exits at {share:.0%}", share, float(points.accuracies[index])))
    kept = [way for way in ways if way.accuracy >= full - max_drop and way.share <= 1]
    return sorted(kept, key=lambda way: (way.share, -way.accuracy))


def in_words(ways: list[Way], unit: str) -> str:
    """What is best, what that saves, and the best of another kind.

    Example:
        >>> ways = [Way("exit 2 alone", 0.4, 0.9), Way("the network without exits", 1.0, 0.9)]
        >>> in_words(ways, "seconds")
        'Best on val: exit 2 alone, which saves 60% of the time at 90.00%.'
    """
    spent = "time" if unit == "seconds" else "compute"

    def told(way: Way) -> str:
        if way.share >= 1:
            return f"{way.name} ({way.accuracy:.2%})"
        return f"{way.name}, which saves {1 - way.share:.0%} of the {spent} at {way.accuracy:.2%}"

    first, *others = ways
    kind = first.name.split()[0]
    other = next((way for way in others if way.name.split()[0] != kind and way.share < 1), None)
    return f"Best on val: {told(first)}{f'; next: {told(other)}' if other else ''}."
