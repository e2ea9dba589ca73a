"""`Price`: what the exits cost with an answer and a scorer, at any operating point."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from offramp.answers import Answer
from offramp.arrays import AnyArray, Array, as_numpy
from offramp.batch_times import BatchTimes
from offramp.costs import Costs, costs_taken, mean_costs
from offramp.scorers import Scorer
from offramp.thresholds.rule import exit_shares


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


def needed_heads(thresholds: AnyArray, scorer_reads_back: bool, answer_reads_back: bool) -> Array:
    """Whether each head has to run, bool `[P, M]`: its exit is open, or a later one reads it.

    Example:
        >>> thresholds = np.array([[np.inf, 0.5, np.inf, 0.0]])
        >>> needed_heads(thresholds, False, False), needed_heads(thresholds, True, False)
        (array([[False,  True, False,  True]]), array([[ True,  True, False,  True]]))
    """
    is_open = as_numpy(thresholds) < np.inf
    is_open[:, -1] = True  # the last exit always stops
    if answer_reads_back:
        return np.ones_like(is_open)
    if scorer_reads_back:  # up to the last open exit at which a scorer runs
        is_open[:, :-1] = _from_here_on(is_open[:, :-1]) > 0
    return is_open


def _from_here_on(values: Array) -> Array:
    """`[P, M]`: the sum of this exit's and all later exits' values."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
