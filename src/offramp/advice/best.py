"""What is best where accuracy is to be kept: exits, a fixed exit, or the network without exits."""

import warnings
from dataclasses import dataclass, replace

import numpy as np

from offramp.errors import CostWarning
from offramp.evaluation.bootstrap import QUANTILE
from offramp.evaluation.references import fixed_exits, mix_at
from offramp.evaluation.words import words_for
from offramp.ledger import Ledger
from offramp.plan import WITHOUT_EXITS, Plan
from offramp.policy import Policy
from offramp.price import decision_seconds
from offramp.scorers.certainty import plainest
from offramp.thresholds.rule import OperatingPoints

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


def with_best(plan: Plan, val: Ledger) -> Plan:
    """The plan with a sentence on what is best: exits, an exit alone, or none."""
    if not val.has_labels:
        return plan
    return replace(plan, best=words_for(val).of(in_words(best_ways(plan, val), val.unit)))


def where_exits_pay(plan: Plan, full: Policy, val: Ledger) -> Plan:
    """The plan with the network without exits at budgets where exits take longer, or lose."""
    policies, methods, why = dict(plan.policies), dict(plan.methods), dict(plan.why)
    for budget, policy in plan.items():
        points, index = policy.points, policy.points.nearest(budget)
        least = float(points.budgets[0])
        if least > budget + 1e-9:
            found = f"the chosen policy, {methods[budget]}, takes at least {least:.0%} of it"
        elif budget >= 1 and points.accuracies[index] <= points.full_accuracy:
            found = "they are no more accurate, and there is time for the full network"
        else:
            why[budget] += _note_fixed_exits(val, budget, float(points.accuracies[index]))
            why[budget] += _note_dear_decisions(policy)
            continue
        policies[budget], methods[budget] = full, WITHOUT_EXITS
        why[budget] = (
            f"do not use exits on this machine at this batch size for {budget:.0%} of the full "
            f"network's time: {found}{_note_dear_decisions(policy)}"
        )
    return replace(plan, policies=policies, methods=methods, why=why)


def _note_fixed_exits(val: Ledger, budget: float, accuracy: float) -> str:
    """A warning where leaving at exits drawn at random is as accurate."""
    if not val.has_labels:
        return ""
    correct = val.heads_correct
    mix = mix_at(fixed_exits(val, correct), correct.mean(axis=0), budget)
    error = (2 * accuracy * (1 - accuracy) / len(val)) ** 0.5
    if accuracy > mix.accuracy + QUANTILE * error:
        return ""
    return (
        f"; no clear gain over fixed exits in the same time ({mix.accuracy:.2%} on val): `advise` "
        "says on test whether exits pay"
    )


def _note_dear_decisions(policy: Policy) -> str:
    """A warning where deciding takes longer than what is decided about."""
    costs = policy.cost_model
    assert costs is not None and policy.num_classes is not None
    shape = costs.num_exits, policy.num_classes, policy.history_type
    spent = decision_seconds(policy.answer, policy.scorer, *shape).sum()
    stages = costs.mean_reference  # up to the last exit
    if spent < stages:
        return ""
    text = (
        f"decisions about single items take {1e6 * spent:,.0f} microseconds here, and all stages "
        f"{1e6 * stages:,.0f}: decide about many items in step (policy.start(items)), or keep "
        "fewer exits"
    )
    warnings.warn(text, CostWarning, stacklevel=2)
    return f"; {text}"


def full_network(held_out: Ledger, val: Ledger) -> Policy:
    """The network without exits as a policy: every sample leaves at the last exit."""
    last = held_out.keep_exits([held_out.num_exits - 1])
    policy = Policy(plainest(last.history_type)).fit(last)
    replay = policy.replay(val, "val")
    always, accuracy = np.ones((1, 1)), replay.network_correct.mean()
    cost = replay.price.at(always, always)[0]
    points = OperatingPoints(-always, cost, np.array([accuracy]), always, float(accuracy))
    policy = policy.with_points(points).at_point(0)
    policy.record("tune", val)
    return policy
