"""`advise`: are early exits worth it for this network? One verdict in words, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offramp.advice.auto import auto
from offramp.arrays import Array
from offramp.evaluation.bootstrap import Interval, Resamples, difference, unseen_variance
from offramp.evaluation.references import FixedExit, FixedMix, fixed_exits, mix_at
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.plan import Plan
from offramp.registry import CANDIDATES


@dataclass(frozen=True)
class BudgetAdvice:
    """What a plan reaches on test at one budget."""

    budget: float  # as asked for
    accuracy: float  # of the plan's policy
    cost: float  # its mean cost, as a share of the network without exits
    mix: FixedMix  # the best random mix of two fixed exits at that cost, chosen on val
    over_mix: Interval  # what the policy gains over it
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
        return "\n".join([self.text, *(_budget_in_words(row) for row in self.budgets)])


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
    random mix of two fixed exits that costs as much: what can be had without looking at a sample.
    Otherwise a fixed exit suffices if one that costs less than the full network is not clearly
    worse than it. Otherwise, the full network it is. With costs in seconds that holds for one
    machine and batch size.

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
    draws = Resamples(len(test), resamples, groups=test.group_numbers)
    right, val_accuracy = test.heads_correct.astype(np.float64), val.heads_correct.mean(axis=0)
    fixed = fixed_exits(test, test.heads_correct)
    found = []
    for budget in budgets:
        replay = plan[budget].replay(test)
        answered, cost = replay.right.astype(np.float64), float(replay.costs.mean())
        mix = mix_at(fixed, val_accuracy, cost)
        units = test.num_units
        over_mix = _gap(answered - _chance_of_mix(mix, fixed, right, replay.costs), draws, units)
        over_full = _gap(answered - right[:, -1], draws, units)
        accuracy, why = float(answered.mean()), plan.why[budget]
        found.append(BudgetAdvice(budget, accuracy, cost, mix, over_mix, over_full, why))
    gaps = (right[:, row.exit_index] - right[:, -1] for row in fixed[:-1])
    cheaper = [
        (row, _gap(gap, draws, test.num_units)) for row, gap in zip(fixed, gaps, strict=False)
    ]
    verdict, text = _verdict_of(found, cheaper)
    if test.unit == "seconds":
        text = text.replace("of the compute", "of the time")
        if all(len(policy.exits) == 1 for policy in plan.values()):
            text = f"Do not use exits on this machine at this batch size. {text}"
    return Advice(verdict, text, found, plan)


def _chance_of_mix(mix: FixedMix, fixed: Sequence[FixedExit], right: Array, costs: Array) -> Array:
    """The chance `[N]` that a mix is right, from heads `[N, M]`, at the costs of a policy `[N]`.

    The mix costs what the policy does: in another sample of the data that cost is another one,
    and with it the accuracy of the mix.
    """
    low, high = (fixed[index] for index in mix.exits)
    step = high.cost - low.cost
    slope = (high.accuracy - low.accuracy) / step if step > 0 else 0.0
    first, second = (right[:, row.exit_index] for row in (low, high))
    chance: Array = first + mix.share * (second - first) + slope * (costs - costs.mean())
    return chance


def _gap(gaps: Array, draws: Resamples, units: int) -> Interval:
    """A mean difference over the same samples, `[N]`, of so many groups."""
    resampled = draws.means(gaps[:, None])[:, 0]
    return difference(float(gaps.mean()), resampled, unseen=unseen_variance(units))


def _verdict_of(
    found: Sequence[BudgetAdvice], cheaper: Sequence[tuple[FixedExit, Interval]]
) -> tuple[str, str]:
    wins = [row for row in found if row.over_mix.low > 0 and row.over_mix.is_clear]
    if wins:
        best = max(wins, key=lambda row: row.over_mix.value)
        return "exits", (
            f"Early exits are worth it: {_points(best.over_mix)} over the best mix of two fixed "
            f"exits at the same cost, for {best.budget:.0%} of the compute."
        )
    enough = [(row, gap) for row, gap in cheaper if not (gap.is_clear and gap.high < 0)]
    if enough:
        row, gap = enough[0]
        return "fixed", (
            f"A fixed exit suffices: exit {row.exit_index} alone costs {row.cost:.0%} of the "
            f"network and differs from it by {_points(gap)}; stopping per sample gains nothing "
            "clear over fixed exits."
        )
    return "full", (
        "Neither: no policy is clearly better than fixed exits at the same cost, and every "
        "cheaper exit is clearly worse than the full network."
    )


def _budget_in_words(row: BudgetAdvice) -> str:
    return (
        f"at {row.budget:.0%}: {row.accuracy:.2%} for {row.cost:.1%} of the cost, "
        f"{_points(row.over_mix)} over {_mix_in_words(row.mix)}, "
        f"{_points(row.over_full)} against the full network. Chosen: {row.why}."
    )


def _mix_in_words(mix: FixedMix) -> str:
    first, second = mix.exits
    if mix.share == 0:
        return f"exit {first} alone"
    return f"exit {second} for {mix.share:.0%} of the samples and exit {first} for the others"


def _points(gap: Interval) -> str:
    value, low, high = (round(100 * x, 2) + 0.0 for x in (gap.value, gap.low, gap.high))
    return f"{value:+.2f} points [{low:+.2f}, {high:+.2f}]"
