"""What comes out of a run, one row per sample and in the order of the input."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from offramp.arrays import (
    AnyArray,
    Array,
    all_finite,
    as_numpy,
    as_tensor,
    is_tensor,
    namespace,
)
from offramp.decide import ExitOutput
from offramp.runtime.prepared_points import PreparedPoint
from offramp.thresholds.rule import SURE

# Answers `[n, K]`, exits `[n]` and scores `[n]` -> `[n]`, the probability that each is right.
ConfidenceFunction: TypeAlias = Callable[[AnyArray, AnyArray, AnyArray], AnyArray]

DIGITS = 6  # of confidence and cost in a record

OUTPUT_COLUMNS = {
    "prediction": "predictions",
    "confidence": "confidence",
    "likely_wrong": "likely_wrong",
    "exit": "exits",
    "cost": "costs",
    "failed": "failed",
}
"""Names of the columns of a `RunOutput`, and the attributes that they hold."""
RECORD_FIELDS = ("class", "name", "confidence", "likely_wrong", "exit", "cost")
"""Fields of `RunOutput.records`, in order."""


SHOWN = 10  # predictions in the text of an output


class Taken(NamedTuple):
    """Where each of N samples left, `[N]` each; `RunOutput` says what they mean."""

    exits: AnyArray
    scores: AnyArray
    costs: AnyArray
    stopped: AnyArray


@dataclass(frozen=True, eq=False)
class RunOutput:
    """The answers to a batch of N samples.

    All but the logits is worked out when it is first read: for a single sample in a small
    network that takes as long as a stage. Of tensors where the runner was given tensors, else of
    NumPy's arrays.

    Attributes:
        logits: `[N, K]` float32, what was answered with; NaN for a sample that failed.
        taken_source: What `taken` returns, or the function that computes it.
        confidence_source: What `confidence` returns, or the function that computes it.

    Example:
        >>> from offramp.runtime.output import RunOutput, Taken
        >>> taken = Taken(exits=np.array([0]), scores=np.array([2.0]),
        ...               costs=np.array([0.25]), stopped=np.array([True]))
        >>> one = RunOutput(np.array([[0.0, 2.0]]), taken, np.array([0.25]))
        >>> len(one), one.failed.tolist(), one.likely_wrong.tolist()
        (1, [False], [True])
        >>> one.records(class_names=["cat", "dog"])[0]
        {'class': 1, 'name': 'dog', 'confidence': 0.25, 'likely_wrong': True, 'exit': 0,
         'cost': 0.25}
    """

    logits: AnyArray
    taken_source: Taken | Callable[[], Taken] = field(repr=False)
    confidence_source: AnyArray | ConfidenceFunction = field(repr=False)

    def __repr__(self) -> str:
        if not len(self):
            return "RunOutput(no samples)"
        exits, counts = np.unique(as_numpy(self.exits), return_counts=True)
        left = ", ".join(
            f"{c} at {e}" for e, c in zip(exits.tolist(), counts.tolist(), strict=True)
        )
        shown = self.predictions[:SHOWN].tolist()
        more = ", ..." if len(self) > SHOWN else ""
        return (
            f"RunOutput({len(self)} samples, {int(self.failed.sum())} failed\n"
            f"  predictions: {', '.join(map(str, shown))}{more}\n"
            f"  exits: {left}\n"
            f"  mean cost: {float(self.taken.costs.mean()):.1%} of the network without exits)"
        )

    @cached_property
    def predictions(self) -> AnyArray:
        """`[N]` int64, the answered class; -1 for a sample that failed."""
        best, library = self.logits.argmax(1), namespace(self.logits)
        if all_finite(self.logits):
            return best
        return library.where(library.isfinite(self.logits).all(1), best, -1)

    @cached_property
    def taken(self) -> Taken:
        """`exits`, `scores`, `costs` and `stopped`."""
        source = self.taken_source
        return source if isinstance(source, Taken) else source()

    @property
    def exits(self) -> AnyArray:
        """`[N]` int64, the exit at which each sample left; -1 if it never reached one."""
        return self.taken.exits

    @property
    def scores(self) -> AnyArray:
        """`[N]` float32, the stop score there.

        `+inf` at the last exit, where none is needed, and NaN where a deadline cut the sample off
        at a closed exit.
        """
        return self.taken.scores

    @property
    def costs(self) -> AnyArray:
        """`[N]` float64, as shares of the network without exits.

        Their mean compares with a budget. As on val, every head up to the exit is charged.
        """
        return self.taken.costs

    @property
    def stopped(self) -> AnyArray:
        """A bool `[N]`: the policy itself stopped the sample, before the last exit."""
        return self.taken.stopped

    @cached_property
    def confidence(self) -> AnyArray:
        """`[N]` float32, the calibrated probability that the answer is right.

        It is fitted on held_out and is not the stop score. NaN where the policy has none (see
        `Policy.confidence`) or the sample failed.
        """
        if not callable(self.confidence_source):
            return self.confidence_source
        stated = self.confidence_source(self.logits, self.exits.clip(0), self.scores)
        return namespace(stated).where(self.failed, math.nan, stated)

    @property
    def likely_wrong(self) -> AnyArray:
        """A bool `[N]`: the policy itself stopped the sample, with a `confidence` below 0.5.

        Such samples were stopped as hopeless; hand them to a person or to a larger model.
        """
        return self.stopped & (self.confidence < SURE)

    @property
    def failed(self) -> AnyArray:
        """A bool `[N]`: there is no answer, because inputs or logits were not finite."""
        return self.predictions < 0

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice | AnyArray) -> "RunOutput":
        source = self.confidence_source
        stated = source if callable(source) else source[rows]
        return RunOutput(self.logits[rows], Taken(*(each[rows] for each in self.taken)), stated)

    def as_tensors(self) -> "RunOutput":
        """The same in tensors of torch, from numpy arrays, in the memory that they have."""
        source = self.confidence_source

        def confidence(*parts: AnyArray) -> AnyArray:
            return as_tensor(source(*(part.numpy() for part in parts)))

        return RunOutput(
            as_tensor(self.logits),
            lambda: Taken(*map(as_tensor, self.taken)),
            confidence if callable(source) else as_tensor(source),
        )

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickled with its confidence: another process needs no policy to read it."""
        return RunOutput, (self.logits, self.taken, self.confidence)

    def columns(self) -> dict[str, AnyArray]:
        """The answers as columns `[N]` for a table; see `OUTPUT_COLUMNS`."""
        return {name: getattr(self, attribute) for name, attribute in OUTPUT_COLUMNS.items()}

    def records(self, class_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The answers as one record per sample, ready for JSON or CSV; see `RECORD_FIELDS`.

        A sample that failed has no class, name, confidence, likely_wrong or exit: all are None.

        Args:
            class_names: `[K]`; without them every name is None.
        """
        columns = (column.tolist() for column in self.columns().values())
        return [_record(row, class_names) for row in zip(*columns, strict=True)]


def _record(row: tuple[Any, ...], class_names: Sequence[str] | None) -> dict[str, Any]:
    prediction, confidence, likely_wrong, exit_index, cost, failed = row
    name = None if failed or class_names is None else class_names[prediction]
    stated = None if math.isnan(confidence) else round(confidence, DIGITS)
    values = prediction, name, stated, likely_wrong, exit_index
    shown = [None] * len(values) if failed else values
    return dict(zip(RECORD_FIELDS, (*shown, round(cost, DIGITS)), strict=True))


class OutputBuffer:
    """Collects the answers to a batch of `samples` as they leave, each of them once.

    `forced` counts those that a deadline cut short, and `failed`, once it is finished, those
    without an answer.
    """

    def __init__(self, samples: int, num_classes: int) -> None:
        self.samples = samples
        self.forced = self.failed = 0
        self._num_classes = num_classes
        self._parts: list[_Part] = []

    def write(
        self, rows: Array, exit_index: int, output: ExitOutput, forced: bool = False
    ) -> None:
        """Add the answers of the samples in `rows [n]`, which leave at one exit."""
        answer, scores = in_numpy(output)
        self._parts.append(_Part(rows, exit_index, answer, scores, forced))
        self.forced += forced * len(rows)

    def finish(
        self, point: PreparedPoint, confidence: ConfidenceFunction | None = None
    ) -> RunOutput:
        """Put the answers in order; `confidence` computes confidences when they are read."""
        parts = self._all_parts()
        # A batch that leaves together is in order already.
        rows = [part.rows for part in parts]
        order = np.concatenate(rows).argsort() if len(parts) > 1 else None
        logits = _ordered([part.answer for part in parts], order)
        stated = confidence or unknown_confidence
        if all_finite(logits):
            return RunOutput(logits, lambda: _taken(parts, order, point), stated)
        failed = np.asarray(~np.isfinite(logits).all(axis=1))
        self.failed = int(np.count_nonzero(failed))
        logits = np.where(failed[:, None], np.float32(math.nan), logits)
        taken = _taken(parts, order, point)
        costs = np.where(taken.exits < 0, 0.0, taken.costs)
        taken = taken._replace(costs=costs, stopped=taken.stopped & ~failed)
        return RunOutput(logits, taken, stated)

    def exits_of_answered(self, output: RunOutput) -> list[int]:
        """The exits of the samples that were answered, in any order."""
        # Plain numbers: for a single sample, every operation on arrays takes longer than all this.
        if not self.failed:
            return [part.exit_index for part in self._parts for _ in range(part.rows.shape[0])]
        exits: list[int] = output.exits[~output.failed].tolist()
        return exits

    def _all_parts(self) -> list["_Part"]:
        """What was written and, where samples never reached an exit, a part without answers."""
        if self._parts and sum(len(part.rows) for part in self._parts) == self.samples:
            return self._parts
        missing = np.ones(self.samples, dtype=bool)
        for part in self._parts:
            missing[part.rows] = False
        rows = np.flatnonzero(missing)
        nothing = np.full((len(rows), self._num_classes), math.nan, np.float32)
        return [*self._parts, _Part(rows, -1, nothing, None, forced=False)]


class _Part(NamedTuple):
    """The answers of n samples that left at one exit; -1 if they never reached one."""

    rows: Array  # `[n]`
    exit_index: int
    answer: Array  # `[n, K]`
    scores: Array | None  # `[n]`
    forced: bool

    def filled(self, value: float, dtype: type) -> Array:
        """The same value for each of them, `[n]`."""
        return np.full(len(self.rows), value, dtype)

    def scores_at(self, last: int) -> Array:
        if self.exit_index == last:
            return self.filled(math.inf, np.float32)
        return self.filled(math.nan, np.float32) if self.scores is None else self.scores

    def stopped(self, last: int) -> bool:
        return self.exit_index < last and not self.forced


def _ordered(parts: list[Array], order: Array | None) -> Array:
    """The parts in the order of the input."""
    if order is None:
        (part,) = parts
        return part
    found: Array = np.concatenate(parts)[order]
    return found


def in_numpy(output: ExitOutput) -> tuple[Array, Array | None]:
    """What an exit came to, in arrays of NumPy where it was decided on a GPU."""
    answer, scores = output
    if not is_tensor(answer):
        return answer, scores
    return as_numpy(answer), None if scores is None else as_numpy(scores)


def taken_by_one(exit_index: int, scores: Array | None, point: PreparedPoint) -> Taken:
    """Where a single sample left."""
    return _taken([_Part(FIRST, exit_index, FIRST, scores, forced=False)], None, point)


FIRST = np.zeros(1, np.int64)


def unknown_confidence(answers: Array, exits: Array, scores: Array) -> Array:
    """The confidence of a policy that states none."""
    return np.full_like(scores, math.nan)


def _taken(parts: Sequence[_Part], order: Array | None, point: PreparedPoint) -> Taken:
    costs, last = point.costs, len(point.costs) - 1
    return Taken(
        exits=_ordered([part.filled(part.exit_index, np.int64) for part in parts], order),
        scores=_ordered([part.scores_at(last) for part in parts], order),
        costs=_ordered([part.filled(costs[part.exit_index], np.float64) for part in parts], order),
        stopped=_ordered([part.filled(part.stopped(last), bool) for part in parts], order),
    )
