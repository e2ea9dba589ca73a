"""What an advice says of cascades besides: how they stand to pairs of models, and to budgets."""

from collections.abc import Iterator, Sequence

from offramp.evaluation.bootstrap import QUANTILE, Resamples, difference, unseen_variance
from offramp.evaluation.references import pair_envelope
from offramp.ledger import Ledger
from offramp.plan import Plan


def beside_pairs(plan: Plan, known: Sequence[Ledger], test: Ledger, draws: Resamples) -> str:
    """What the policies of a plan gain over the best mix of pairs of models that costs as much.

    Args:
        plan: With a policy for every budget.
        known: held_out and val, which choose the pairs.
        test: To measure on.
        draws: Resamples of test.

    Example:
        >>> from offramp import auto, synthetic
        >>> splits = synthetic.cascade(seed=0)
        >>> known = splits["held_out"], splits["val"]
        >>> draws = Resamples(300, 100)
        >>> text = beside_pairs(auto(*known, budgets=[0.5]), known, splits["test"], draws)
        >>> text.split(":")[0]
        'Against the best mix of pairs of models at the same cost'
    """
    envelope, gaps = pair_envelope(known, test), []
    for budget, policy in plan.items():
        replay = policy.replay(test)
        cost, right = float(replay.costs.mean()), replay.right.astype(float)
        moved = draws.curves(envelope.costs, envelope.right, [cost])[:, 0]
        gap = difference(
            float(right.mean()) - envelope.at(cost).accuracy,
            draws.means(right[:, None])[:, 0] - moved,
            unseen=unseen_variance(test.num_units),
        )
        low, value, high = (100 * end + 0.0 for end in (gap.low, gap.value, gap.high))
        gaps.append(f"{value:+.2f} points [{low:+.2f}, {high:+.2f}] at {budget:.0%}")
    return f"Against the best mix of pairs of models at the same cost: {', '.join(gaps)}."


def overruns(plan: Plan, test: Ledger) -> Iterator[str]:
    """A sentence for every budget that test overruns by more than two standard errors.

    Example:
        >>> from offramp import auto, synthetic
        >>> splits = synthetic.cascade(seed=0)
        >>> plan = auto(splits["held_out"], splits["val"], [0.5])
        >>> list(overruns(plan, splits["test"]))
        []
    """
    for budget, policy in plan.items():
        replay = policy.replay(test)
        costs = replay.by_group(replay.costs[:, None])[:, 0]
        spent = float(costs.mean())
        if spent > budget + QUANTILE * float(costs.std()) / len(costs) ** 0.5:
            yield f"Test overruns the budget of {budget:.0%} clearly: {spent:.1%} was spent."
