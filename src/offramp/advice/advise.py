"""`advise`: are early exits worth it for this network? One verdict in words, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from offramp.advice.auto import CANDIDATES, auto
from offramp.evaluation.bootstrap import Interval, Resamples, difference, unseen_variance
from offramp.evaluation.references import FixedExit, heads_correct, references
from offramp.ledger import Ledger
from offramp.methods import Method, Plan


@dataclass(frozen=True)
class BudgetAdvice:
    """What a plan reaches on test at one budget."""

    budget: float  # as asked for
    accuracy: float  # of the plan's policy
    cost: float  # its mean cost, as a share of the network without exits
    fixed: FixedExit  # the best fixed exit within the budget, chosen on val
    over_fixed: Interval  # what the policy gains over it
    over_full: Interval  # what the policy gains over the full network; mostly a loss
    why: str  # how the policy was chosen


@dataclass(frozen=True)
class Advice:
    """One verdict in words, and what it rests on.

    Attributes:
        verdict: `exits`, `fixed` or `full`.
        text: The verdict as a sentence.
        budgets: The figures.
        plan: The policies.
    """

    verdict: str
    text: str
    budgets: list[BudgetAdvice]
    plan: Plan

    def __str__(self) -> str:
        return "\n".join([self.text, *(_line(row) for row in self.budgets)])


def advise(
    held_out: Ledger,
    val: Ledger,
    test: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
    resamples: int = 1000,
) -> Advice:
    """Choose policies with `auto`, measure them on test, and say whether they are worth it.

    Early exits are worth it if, at some budget, the policy is clearly more accurate than the best
    fixed exit within that budget. Otherwise a fixed exit suffices if one that costs less than the
    full network is not clearly worse than it. Otherwise, the full network it is. With costs in
    seconds that holds for one machine and batch size.

    Args:
        held_out: To fit answers and scorers.
        val: To choose by, and to tune.
        test: To measure, once.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from.
        resamples: Bootstrap resamples of the test samples.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, exits=4)
        >>> advice = advise(**splits, budgets=[0.5], methods=["baseline"])
        >>> advice.verdict
        'exits'
    """
    plan = auto(held_out, val, budgets, methods)
    draws = Resamples(len(test), resamples)
    right = heads_correct(test).double()
    rows = references(val, test, budgets)
    found = [
        _measure(plan, test, budget, fixed, right, draws)
        for budget, fixed in zip(budgets, rows.best_fixed, strict=True)
    ]
    cheaper = [
        (exit_row, _gap(right[:, exit_row.exit_index], right[:, -1], draws))
        for exit_row in rows.fixed[:-1]
    ]
    verdict, text = _verdict(found, cheaper)
    if test.unit == "seconds":
        text = text.replace("of the compute", "of the time")
        if all(len(policy.exits) == 1 for policy in plan.values()):
            text = f"Do not use exits on this machine at this batch size. {text}"
    return Advice(verdict, text, found, plan)


def _measure(
    plan: Plan, test: Ledger, budget: float, fixed: FixedExit, right: Tensor, draws: Resamples
) -> BudgetAdvice:
    replay = plan[budget].replay(test)
    answered = replay.right.double()
    return BudgetAdvice(
        budget,
        float(answered.mean()),
        float(replay.costs.mean()),
        fixed,
        _gap(answered, right[:, fixed.exit_index], draws),
        _gap(answered, right[:, -1], draws),
        plan.why[budget],
    )


def _gap(one: Tensor, other: Tensor, draws: Resamples) -> Interval:
    """The difference of two accuracies on the same samples, `[N]` each."""
    gaps = one - other
    resampled = draws.means(gaps[:, None]).squeeze(1)
    return difference(float(gaps.mean()), resampled, unseen=unseen_variance(len(gaps)))


def _verdict(
    found: Sequence[BudgetAdvice], cheaper: Sequence[tuple[FixedExit, Interval]]
) -> tuple[str, str]:
    wins = [row for row in found if row.over_fixed.low > 0 and row.over_fixed.is_clear]
    if wins:
        best = max(wins, key=lambda row: row.over_fixed.value)
        return "exits", (
            f"Early exits are worth it: {_points(best.over_fixed)} over the best fixed exit at "
            f"{best.budget:.0%} of the compute."
        )
    enough = [(row, gap) for row, gap in cheaper if not (gap.is_clear and gap.high < 0)]
    if enough:
        row, gap = enough[0]
        return "fixed", (
            f"A fixed exit suffices: exit {row.exit_index} alone costs {row.cost:.0%} of the "
            f"network and differs from it by {_points(gap)}; stopping per sample gains nothing "
            "clear over a fixed exit."
        )
    return "full", (
        "Neither: no policy is clearly better than a fixed exit within its budget, and every "
        "cheaper exit is clearly worse than the full network."
    )


def _line(row: BudgetAdvice) -> str:
    return (
        f"at {row.budget:.0%}: {row.accuracy:.2%} for {row.cost:.1%} of the cost, "
        f"{_points(row.over_fixed)} over exit {row.fixed.exit_index} alone, "
        f"{_points(row.over_full)} against the full network. Chosen: {row.why}."
    )


def _points(gap: Interval) -> str:
    value, low, high = (round(100 * x, 2) + 0.0 for x in (gap.value, gap.low, gap.high))
    return f"{value:+.2f} points [{low:+.2f}, {high:+.2f}]"
