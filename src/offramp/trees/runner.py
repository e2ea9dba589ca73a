"""`TreeRunner`: a policy at work on a model of trees, which adds trees until it may stop."""

import re
import time
import warnings
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from offramp import check
from offramp.arrays import Array
from offramp.errors import CostWarning, OriginError
from offramp.policy import Policy
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.trees.models import LightGBM
from offramp.trees.record import WORTH, Clock, batches, continued, picked

SIZES = (1, 10, 100, 1000)  # rows in a batch, to time


class TreeOutput(NamedTuple):
    """The answers to n rows."""

    predictions: Array  # `[n]`, as the model calls its classes
    logits: Array  # `[n, K]` float32, what was answered with
    rounds: Array  # `[n]`, how many rounds of trees were computed


class TreeRunner:
    """A policy at work on a model of trees: rows that may stop leave, the others get more trees.

    Raw scores are continued, so that no tree is computed twice, and the decision is that of every
    runtime. With `rows`, it takes the time of both ways at several batch sizes. Where stopping
    early takes longer than all trees, it computes all trees.

    Args:
        model: The one whose ledger the policy was fitted on.
        policy: At its operating point.
        rows: To take the time on; `measure` does it later.
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.

    Attributes:
        shares: By batch size, the time that it takes as a share of that of all trees.

    Warns:
        CostWarning: Where all trees take less; with what to use instead.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> from offramp import MaxProbability, trees
        >>> rows, labels = load_digits(return_X_y=True)
        >>> forest = RandomForestClassifier(64, random_state=0).fit(rows[:600], labels[:600])
        >>> ledger = trees.record(forest, (rows[600:], labels[600:]), "all")
        >>> held_out, val, test = ledger.partition()
        >>> policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
        >>> found = TreeRunner(forest, policy)(rows[600:])
        >>> bool((found.rounds < 64).any()), len(found.predictions)
        (True, 1197)
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401
        policy: Policy,
        rows: Any = None,  # noqa: ANN401
        clock: Clock = time.perf_counter,
    ) -> None:
        self._trees = trees = continued(model)
        self._decider, self._classes = policy.decider, trees.classes
        stops = [_places(policy.network, trees.identity)[number] for number in policy.exits]
        needed = [m for m, needs in enumerate(self._decider.needs_head) if needs]
        starts = [0, *(stops[exit_index] for exit_index in needed)]
        self._steps = [(m, start, stops[m]) for m, start in zip(needed, starts, strict=False)]
        # Up to so many rows: whether stopping early is quicker; never where nothing can stop.
        self._known = [(np.inf, len(needed) > 1)]
        self._whole = np.array([trees.rounds])
        self.shares: dict[int, float] = {}
        if rows is not None:
            self.measure(rows, clock=clock)

    def __call__(self, rows: Any) -> TreeOutput:  # noqa: ANN401
        """Answer rows, one or many, as an array or a table with a row for each."""
        samples = len(rows)
        if not next(is_quicker for most, is_quicker in self._known if samples <= most):
            return self.with_all_trees(rows)
        return self._one(rows) if samples == 1 else self._many(rows)

    def with_all_trees(self, rows: Any) -> TreeOutput:  # noqa: ANN401
        """Answer rows without stopping."""
        logits = self._trees.logits(self._trees.all(rows))
        return self._output(
            logits, self._whole if len(rows) == 1 else self._whole.repeat(len(rows))
        )

    def measure(
        self,
        rows: Any,  # noqa: ANN401
        turns: int = 5,
        clock: Clock = time.perf_counter,
    ) -> dict[int, float]:
        """Take the time of both ways at several batch sizes, and use the shorter from now on.

        Args:
            rows: As they will come; the more of them, the larger the batches that are timed.
            turns: The fastest of so many counts.
            clock: As for the class.

        Returns:
            `shares`; none where the policy stops nowhere before the last trees.
        """
        check.at_least("rows", len(rows), 1)
        if len(self._steps) == 1:
            return self.shares  # there is one way only
        watch = Stopwatch(clock)
        for size in sorted({min(size, len(rows)) for size in SIZES}):
            early = self._one if size == 1 else self._many
            pair = [Timed(run, batches(rows, size)) for run in (early, self._trees.all)]
            take_turns([pair], watch, least=turns)
            self.shares[size] = float(pair[0].best.sum() / pair[1].best.sum())
        sizes = sorted(self.shares)  # the nearest one counts, by the ratio of the sizes
        middles = [*(sqrt(a * b) for a, b in pairwise(sizes)), np.inf]
        self._known = [(m, self.shares[s] <= WORTH) for m, s in zip(middles, sizes, strict=True)]
        slow = [size for size, share in self.shares.items() if share > WORTH]
        if slow:
            warnings.warn(self._advice(slow), CostWarning, stacklevel=2)
        return self.shares

    def _advice(self, slow: list[int]) -> str:
        times = ", ".join(f"{self.shares[size]:.2f} times at {size}" for size in slow)
        instead = "take fewer exits (record(at=...)), or call the model itself"
        if isinstance(self._trees, LightGBM):
            instead += ", or offramp.trees.early_stop, which stops inside of LightGBM"
        return (
            "all trees are computed at some batch sizes, since stopping early takes as long or "
            f"longer, as a share of their time: {times}; to gain there, {instead}"
        )

    def _one(self, rows: Any) -> TreeOutput:  # noqa: ANN401
        """A single row, without positions and parts."""
        decider, trees, scores = self._decider, self._trees, None
        buffer = decider.begin(1, len(self._classes))
        for exit_index, start, stop in self._steps:
            scores = trees.add(rows, start, stop, scores)
            found = decider.at_exit(exit_index, buffer, trees.logits(scores))
            if found.scores is not None and found.scores[0] >= decider.limits[exit_index]:
                break
        return self._output(found.answer, np.array([stop]))

    def _many(self, rows: Any) -> TreeOutput:  # noqa: ANN401
        """Rows that leave the batch when they stop."""
        decider, trees, scores = self._decider, self._trees, None
        left = np.arange(len(rows))
        logits = np.empty((len(rows), len(self._classes)), np.float32)
        rounds = np.full(len(rows), trees.rounds)
        buffer = decider.begin(len(rows), len(self._classes))
        for exit_index, start, stop in self._steps:
            scores = trees.add(rows, start, stop, scores)
            found = decider.at_exit(exit_index, buffer, trees.logits(scores))
            if found.scores is None:  # closed, or the last one
                last = found.answer
                continue
            stops = decider.stops(exit_index, found.scores)
            if not stops.any():
                continue
            leaving, staying = np.flatnonzero(stops), np.flatnonzero(~stops)
            logits[left[leaving]], rounds[left[leaving]] = found.answer[leaving], stop
            left = left[staying]
            if not len(left):
                break
            rows, scores, buffer = picked(rows, staying), scores[staying], buffer.take(staying)
        else:
            logits[left] = last
        return self._output(logits, rounds)

    def _output(self, logits: Array, rounds: Array) -> TreeOutput:
        return TreeOutput(self._classes[logits.argmax(axis=1)], logits, rounds)


def _places(network: str | None, identity: str) -> list[int]:
    """After how many rounds the exits of a ledger lie, as its fingerprint says."""
    found = re.fullmatch(r"(.*) after ([\d,]+) rounds", network or "")
    if found is None:
        raise OriginError(
            "the policy must have been fitted on a ledger of trees, which says after how many "
            f"rounds its exits lie: record it with offramp.trees.record; got {network!r}"
        )
    if found[1] != identity:
        raise OriginError(
            f"the policy was fitted on a ledger of other trees ({found[1]}) than these "
            f"({identity}): record a ledger of this model, and fit a policy on it"
        )
    return [int(stop) for stop in found[2].split(",")]
