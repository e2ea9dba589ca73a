"""`advise`: are early exits worth it for this network? One verdict in words, with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from offramp.advice.auto import auto
from offramp.arrays import Array
from offramp.evaluation.bootstrap import Interval, Resamples, difference, unseen_variance
from offramp.evaluation.columns import share_text, text_table
from offramp.evaluation.outcome import overrun
from offramp.evaluation.pairs import pair_envelope
from offramp.evaluation.references import FixedExit, FixedMix, fixed_exits, mix_at
from offramp.evaluation.words import NETWORK, Words, words_for
from offramp.evaluation.worse_exits import points, worse_exits_in_words
from offramp.files import plain
from offramp.ledger import Ledger
from offramp.ledger.oddities import warn_of_classes
from offramp.methods import Method
from offramp.plan import Plan
from offramp.registry import CANDIDATES
from offramp.replay import Replay

MARGIN = 0.01
"""A fixed exit suffices if it is shown to lose at most so much accuracy."""


@dataclass(frozen=True)
class BudgetAdvice:
    """What a plan reaches on test at one budget."""

    budget: float  # as asked for
    accuracy: float  # of the plan's policy
    cost: float  # its mean cost, as a share of the network without exits
    mix: FixedMix  # the best random mix of two fixed exits at that cost, chosen on val
    over_mix: Interval  # what the policy gains over it
    over_full: Interval  # what the policy gains over the full network; mostly a loss
    chosen: str  # the method
    why: str  # how the policy was chosen


@dataclass(frozen=True)
class Advice:
    """One verdict in words, and what it rests on.

    Attributes:
        verdict: `exits`, `fixed`, `full`, or `unclear` where test is too small to tell.
        text: The verdict as a sentence.
        budgets: The figures.
        plan: The policies; `plan.why` has the reasons for each.
        notes: Sentences on exits that are less accurate than exits before them.
        words: What all of this is called.
    """

    verdict: str
    text: str
    budgets: list[BudgetAdvice]
    plan: Plan
    notes: list[str]
    words: Words = NETWORK

    def __str__(self) -> str:
        columns = [self.words.of(column) for column in COLUMNS]
        best = [self.plan.best] if self.plan.best else []
        return "\n".join([*best, self.text, *self.notes, "", text_table([columns, *self.rows()])])

    def rows(self) -> list[list[str]]:
        """The figures as texts, a row per budget, under `COLUMNS`."""
        return [
            [
                share_text(row.budget),
                f"{100 * row.accuracy:.2f}",
                share_text(row.cost),
                points(row.over_mix).replace(" points", ""),
                points(row.over_full).replace(" points", ""),
                row.chosen,
            ]
            for row in self.budgets
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values: the verdict, and every figure as a number."""
        found: dict[str, Any] = plain(asdict(replace(self, plan=None)))  # type: ignore[arg-type]
        del found["words"]
        return {**found, "plan": {"exits": list(self.plan.exits)}}


COLUMNS = ["budget", "accuracy", "cost", "over the mix", "over the full network", "chosen"]
"""Of the table of an advice. The mix is that of the two best fixed exits at the same cost."""


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
    Otherwise a fixed exit suffices if one that costs less than the full network is shown to lose
    at most one point. Otherwise, the full network it is if every cheaper exit is clearly worse,
    and test is too small to tell if not. With costs in seconds that holds for one machine and
    batch size.

    Args:
        held_out: To fit answers and scorers.
        val: To choose by, and to tune.
        test: To measure, once.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from.
        resamples: Bootstrap resamples of the test samples.

    Warns:
        LedgerWarning: A split lacks classes that the others have.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, exits=4)
        >>> advice = advise(**splits, budgets=[0.5], methods=["baseline"])
        >>> advice.verdict
        'exits'
    """
    warn_of_classes(held_out, val, test)
    plan = auto(held_out, val, budgets, methods)
    draws = Resamples(len(test), resamples, groups=test.group_numbers)
    right, val_accuracy = test.heads_correct.astype(np.float64), val.heads_correct.mean(axis=0)
    fixed = fixed_exits(test, test.heads_correct)
    replays = {policy.points: policy.replay(test) for policy in plan.distinct}
    measured = {
        b: replace(replays[policy.points], selected=policy.selected) for b, policy in plan.items()
    }
    found = []
    for budget, replay in measured.items():
        answered, cost = replay.right.astype(np.float64), float(replay.costs.mean())
        mix = mix_at(fixed, val_accuracy, cost)
        units = test.num_units
        over_mix = _gap(answered - _chance_of_mix(mix, fixed, right, replay.costs), draws, units)
        over_full = _gap(answered - test.full_correct, draws, units)
        reason = plan.methods[budget], plan.why[budget]
        accuracy = float(answered.mean())
        found.append(BudgetAdvice(budget, accuracy, cost, mix, over_mix, over_full, *reason))
    gaps = (right[:, row.exit_index] - right[:, -1] for row in fixed[:-1])
    cheaper = [
        (row, _gap(gap, draws, test.num_units)) for row, gap in zip(fixed, gaps, strict=False)
    ]
    verdict, text = _verdict_of(found, cheaper, len(test))
    if test.unit == "seconds":
        text = text.replace("of the compute", "of the time")
        if all(len(policy.exits) == 1 for policy in plan.values()):
            text = f"Do not use exits on this machine at this batch size. {text}"
    text = words_for(test).of(text)
    if test.cost_model.is_cascade and not test.has_logits:
        text += f" {_beside_pairs(measured, [held_out, val], test, draws)}"
    text = " ".join([text, *_overruns(measured)])
    notes = [words_for(test).of(note) for note in worse_exits_in_words(val)]
    return Advice(verdict, text, found, plan, notes, words_for(test))


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
    found: Sequence[BudgetAdvice], cheaper: Sequence[tuple[FixedExit, Interval]], samples: int
) -> tuple[str, str]:
    wins = [row for row in found if row.over_mix.is_gain]
    if wins:
        best = max(wins, key=lambda row: row.over_mix.value)
        return "exits", (
            f"Early exits are worth it: {points(best.over_mix)} over the best mix of two fixed "
            f"exits at the same cost, for {best.cost:.0%} of the compute."
        )
    enough = [(row, gap) for row, gap in cheaper if gap.low >= -MARGIN]
    if enough:
        row, gap = enough[0]
        return "fixed", (
            f"A fixed exit suffices: exit {row.exit_index} alone costs {row.cost:.0%} of the "
            f"network and differs from it by {points(gap)}; stopping per sample gains nothing "
            "clear over fixed exits."
        )
    open_to = [(row, gap) for row, gap in cheaper if not gap.is_loss]
    if open_to:
        row, gap = open_to[0]
        return "unclear", (
            f"{samples:,} test samples cannot tell: stopping per sample gains nothing clear over "
            f"fixed exits, and no cheaper exit is shown to lose at most {100 * MARGIN:g} point; "
            f"exit {row.exit_index} alone costs {row.cost:.0%} of the network and differs from it "
            f"by {points(gap)}."
        )
    return "full", (
        "Neither: no policy is clearly better than fixed exits at the same cost, and every "
        "cheaper exit is clearly worse than the full network."
    )


def _beside_pairs(
    measured: Mapping[float, Replay], known: Sequence[Ledger], test: Ledger, draws: Resamples
) -> str:
    """What the policies of a plan gain over the best mix of pairs of models that costs as much."""
    envelope, gaps = pair_envelope(known, test), []
    for budget, replay in measured.items():
        cost, right = float(replay.costs.mean()), replay.right.astype(float)
        moved = draws.curves(envelope.costs, envelope.right, [cost])[:, 0]
        gap = difference(
            float(right.mean()) - envelope.at(cost).accuracy,
            draws.means(right[:, None])[:, 0] - moved,
            unseen=unseen_variance(test.num_units),
        )
        gaps.append(f"{points(gap)} at {budget:.0%}")
    return f"Against the best mix of pairs of models at the same cost: {', '.join(gaps)}."


def _overruns(measured: Mapping[float, Replay]) -> Iterator[str]:
    """A sentence for every budget that test overruns clearly."""
    for budget, replay in measured.items():
        if over := overrun(replay, budget):
            spent = f"{budget + over:.1%} was spent"
            yield f"Test overruns the budget of {budget:.0%} clearly: {spent}."
