"""The columns of a comparison, each declared once, and what they are measured on.

What measures, resamples, prints or writes a comparison reads these declarations. A column that is
added to `COLUMNS` appears in every table and every file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.arrays import Array, Floats
from offramp.evaluation.bootstrap import Interval, Resamples, difference, unseen_variance
from offramp.evaluation.outcome import exit_metrics
from offramp.ledger import Ledger
from offramp.plan import Plan
from offramp.replay import AccuracyAt

# A calibration error has a kink wherever a bin's gap changes its sign: resamples of samples far
# from the kinks vary less than samples do, by up to a fifth (`benchmarks/coverage.py`).
ECE_SPREAD = 1.25


class MeasuredPlan:
    """A plan on test: accuracies at every budget, everything else at the middle one.

    Attributes:
        policy: For the middle budget.
        replay: Of that policy on test.
        exits: What that policy reaches at every exit that it keeps.
        kept: Numbers of these exits among the exits of `test`.
        draws: The resamples of test.
    """

    def __init__(self, plan: Plan, test: Ledger, draws: Resamples) -> None:
        self.plan, self.draws, ledger = plan, draws, plan.view(test)
        self._replays = {policy.points: policy.replay(ledger) for policy in plan.distinct}
        self._resampled = {
            points: draws.accuracies(replay, list(plan))
            for points, replay in self._replays.items()
        }
        self.policy = list(plan.values())[len(plan) // 2]
        self.replay = self._replays[self.policy.points]
        self.exits = exit_metrics(self.replay, self.policy.scorer)
        self.kept = [test.exits.index(number) for number in self.policy.exits]

    def at(self, budget: float) -> AccuracyAt:
        """The accuracy at one of the plan's budgets, or at the nearest cost."""
        return self._replays[self.plan[budget].points].curve.at(budget)

    def resampled_at(self, budget: float) -> Array:
        """The same in every resample, `[R]`."""
        found = self._resampled[self.plan[budget].points]
        return found[:, list(self.plan).index(budget)]


@dataclass(frozen=True)
class Column:
    """One figure of every method, such as its calibration error.

    Attributes:
        key: Its name in `MethodResult.figures`, and in JSON, CSV and pandas.
        head: Its name in tables.
        measure: Its value for a plan; nan where there is none.
        resample: Its value in every resample of test, `[R]`, or None where the value is nan.
            A column without has no intervals, and no method is the best in it.
        sign: 1 where higher is better, -1 where lower is.
        scale: What tables multiply values by: 100 for shares of the samples.
        spread: What the standard error over resamples is multiplied by, where it is too small.
        varies: Whether it differs between the seeds of a fit.

    Example:
        >>> column = accuracy_column(0.125)
        >>> column.key, column.head, column.text(0.5)
        ('accuracy@0.125', '12.5%', '50.00')
    """

    key: str
    head: str
    measure: Callable[[MeasuredPlan], float]
    resample: Callable[[MeasuredPlan], Array | None] | None = None
    sign: int = 1
    scale: int = 1
    spread: float = 1.0
    varies: bool = True

    @property
    def digits(self) -> int:
        """How many decimals tables show."""
        return 2 if self.scale == 100 else 3

    def text(self, value: float) -> str:
        """A value as tables show it, and a dash for nan."""
        return "-" if np.isnan(value) else f"{self.scale * value:.{self.digits}f}"

    def interval(self, value: float, resampled: Array, units: int) -> Interval:
        """The interval of a difference between two methods.

        The interval of a calibration error is for the difference on test sets of this size: fewer
        samples have a larger calibration error, and a smaller difference of two of them.

        Args:
            value: As measured.
            resampled: The difference in every resample, `[R]`.
            units: How many test samples there are, or groups of them.
        """
        negligible = 0.5 * 10.0**-self.digits / self.scale  # half of the last digit shown
        unseen = unseen_variance(units) if self.scale == 100 else 0.0
        return difference(value, self.spread * resampled, negligible, unseen)


def accuracy_key(budget: float) -> str:
    """The key of the column for the accuracy at a budget."""
    return f"accuracy@{budget:g}"


def accuracy_column(budget: float) -> Column:
    """The accuracy at a budget."""
    return Column(
        accuracy_key(budget),
        share_text(budget),
        lambda plan: plan.at(budget).accuracy,
        lambda plan: plan.resampled_at(budget),
        scale=100,
    )


def share_text(value: float) -> str:
    """Percent, with a decimal only where it is not zero."""
    return f"{round(100 * value, 1):g}%"


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of texts in columns, the first of them flush left.

    Example:
        >>> print(text_table([["a", "x"], ["bcd", "10"]]))
        a     x
        bcd  10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [*map(str.ljust, row[:left], widths[:left]), *map(str.rjust, row[left:], widths[left:])]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _mean(values: Floats) -> float:
    """The mean of what is known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


COLUMNS = [
    Column(
        "ece",
        "ECE",
        lambda plan: _mean(plan.exits.ece[:-1]),
        lambda plan: plan.draws.ece(plan.replay, plan.policy.scorer),
        sign=-1,
        spread=ECE_SPREAD,
    ),
    Column(
        "eefp",
        "EEFP",
        lambda plan: _mean(plan.exits.eefp[:-1]),
        lambda plan: plan.draws.eefp(plan.replay),
    ),
    # No scorer runs at the last exit, and no seed plays a part in it.
    Column("ece_last", "ECE last", lambda plan: float(plan.exits.ece[-1]), sign=-1, varies=False),
]
"""The columns after the accuracies."""


def columns_for(budgets: Sequence[float]) -> list[Column]:
    """All columns of a comparison at these budgets."""
    return [*map(accuracy_column, budgets), *COLUMNS]
