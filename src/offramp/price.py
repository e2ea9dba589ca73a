"""`Price`: what the exits cost at any operating point, and the seconds of a decision."""

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.random import default_rng

from offramp.answers import Answer
from offramp.arrays import Array
from offramp.batch_times import BatchTimes
from offramp.costs import Costs, costs_taken, mean_costs
from offramp.decide import Decider, needed_heads
from offramp.ledger import History
from offramp.scorers import Scorer
from offramp.thresholds.rule import exit_shares

TURNS = 10  # the fastest counts
_SECONDS: dict[str, Array] = {}  # of decisions, by answer and scorer: a process measures them once


@dataclass(frozen=True)
class Price:
    """What the exits cost with an answer and a scorer, as shares of the network without exits.

    MACs are the same wherever samples leave, and every head on the way counts, that of a closed
    exit too. Seconds are what a runner takes: a closed exit costs nothing unless a later one reads
    its logits, and a stage on what is left of a batch costs what `BatchTimes` holds. Profiles hold
    the seconds of decisions, too; to costs in seconds from elsewhere, `decisions` are added.
    Where costs differ from sample to sample, they are what each sample was charged, in any unit.

    Attributes:
        answer: Fitted.
        scorer: Fitted.
        costs: `[M]` or `[N, M]`.
        num_classes: K.
        batch_times: Seconds of batches that shrink, where they were measured.
        of_all: The cost of the network without exits that shares are shares of, where it is not
            the mean of `costs`.
        decisions: `[M]`, seconds that a decision takes at each exit, where `costs` and
            `batch_times` are in seconds and do not hold them.
    """

    answer: Answer
    scorer: Scorer
    costs: Costs
    num_classes: int
    batch_times: BatchTimes | None = None
    of_all: float | None = None
    decisions: Array | None = None

    def take(self, index: Array | slice) -> "Price":
        """The same for some of the samples; shares stay shares of the mean of all."""
        return replace(self, costs=self.costs.take(index), of_all=self.reference)

    @property
    def reference(self) -> float:
        """Cost of the network without exits."""
        return self.costs.mean_reference if self.of_all is None else self.of_all

    @cached_property
    def _charged(self) -> tuple[Costs, BatchTimes | None]:
        """Costs and times with the seconds of decisions."""
        costs, times, spent = self.costs, self.batch_times, self.decisions
        if spent is None:
            return costs, times
        costs = replace(costs, heads=costs.heads + spent)
        if times is not None:
            times = replace(times, heads=times.heads + spent[:, None])
        return costs, times

    @property
    def _reads_back(self) -> bool:
        return self.scorer.reads_history or self.answer.reads_history

    @cached_property
    def shares(self) -> Array:
        """`[M]` float64, cumulative: what each exit costs where all are open and batches full.

        Answers and scorers are counted in MACs and therefore added to MACs only; no scorer is
        run, or charged, at the last exit. `[N, M]` where costs differ from sample to sample.
        """
        costs, times = self._charged
        costs = costs if times is None else times.costs_of(self._reads_back)
        total = costs.cumulative
        if costs.unit == "macs":
            exits, classes = range(costs.num_exits), self.num_classes
            extra = np.array([float(self.answer.macs(m, classes)) for m in exits])
            extra[:-1] += [self.scorer.macs(m, classes) for m in exits[:-1]]
            total = total + extra.cumsum()
        return total / self.reference

    def at(self, thresholds: Array, shares: Array) -> Array:
        """`[P, M]` float64, cumulative: what each exit costs at operating points.

        Args:
            thresholds: `[P, M]`.
            shares: `[P, M]`, of the samples that leave at each exit.
        """
        if self.costs.unit != "seconds" or self.costs.by_sample:
            return np.broadcast_to(mean_costs(self.shares), shares.shape)
        left = _from_here_on(shares)
        heads = needed_heads(thresholds, self.scorer.reads_history, self.answer.reads_history)
        costs, times = self._charged
        times = times or BatchTimes.proportional(costs)
        return times.cumulative_at(left, heads, self._reads_back) / self.reference

    def paid(self, thresholds: Array, exits: Array) -> Array:
        """`[P, N]` float64: what samples pay at operating points `[P, M]` for exits `[P, N]`."""
        if self.costs.by_sample:
            return costs_taken(self.shares, exits)
        costs = self.at(thresholds, exit_shares(exits, thresholds.shape[1]))
        return np.take_along_axis(costs, exits, axis=1)


def price_of(
    answer: Answer,
    scorer: Scorer,
    costs: Costs,
    num_classes: int,
    batch_times: BatchTimes | None = None,
    history_type: type[History] = History,
) -> Price:
    """What exits cost, with the decisions where costs in seconds do not hold them already.

    Seconds that a profile has measured hold them. Seconds of other stages (of models in a cascade,
    of trees, of what a session observes) do not.
    """
    decisions = None
    if costs.unit == "seconds" and (batch_times is None or not batch_times.origin):
        decisions = decision_seconds(answer, scorer, costs.num_exits, num_classes, history_type)
    return Price(answer, scorer, costs, num_classes, batch_times, decisions=decisions)


def decision_seconds(
    answer: Answer,
    scorer: Scorer,
    exits: int,
    width: int,
    history_type: type[History] = History,
) -> Array:
    """Seconds that a decision about one item takes on this machine, `[M]`; zero at the last exit.

    Measured once for each answer and scorer, in some milliseconds.

    Args:
        answer: Fitted.
        scorer: Fitted.
        exits: M.
        width: How many numbers an exit puts out.
        history_type: How they are read.
    """
    key = repr((answer, scorer, exits, width, history_type.name))
    if key not in _SECONDS:
        decider, rng = Decider(answer, scorer, np.zeros(exits), history_type), default_rng(0)
        rows = rng.standard_normal((exits, 1, width), np.float32)
        if not history_type.has_logits:
            rows[:, 0, 1] = np.arange(exits)  # no stage repeats the answer of another
        best = np.full(exits, math.inf)
        for _ in range(TURNS):
            buffer = decider.begin(1, width)
            for exit_index, row in enumerate(rows[:-1]):
                start = time.perf_counter()
                found = decider.at_exit(exit_index, buffer, row)
                decider.stops(exit_index, found.scores)
                best[exit_index] = min(best[exit_index], time.perf_counter() - start)
        best[-1] = 0.0
        _SECONDS[key] = best
    return _SECONDS[key]


def _from_here_on(values: Array) -> Array:
    """`[P, M]`: the sum of this exit's and all later exits' values."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
