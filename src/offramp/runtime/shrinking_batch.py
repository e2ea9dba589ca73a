"""The samples of a batch that have not stopped yet: this is where a batch shrinks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offramp.arrays import Array, all_finite, is_floating, namespace, positions
from offramp.networks.state import State, join, take, tensors
from offramp.runtime.output import ExitOutput
from offramp.runtime.prepared_points import PreparedPoint


@dataclass(eq=False, slots=True)
class HistoryBuffer:
    """Logits and answers of the exits so far, as far as anything reads them."""

    # `[n, M, K]`, filled up to the current exit; None if nothing reads earlier exits
    logits: Array | None = None
    # the same for the answers; None if nothing reads them, or if they are the logits
    answers: Array | None = None

    @classmethod
    def empty(
        cls,
        point: PreparedPoint,
        samples: int,
        num_classes: int,
        library: Any,  # noqa: ANN401 - numpy or torch
    ) -> "HistoryBuffer":
        """Before the first exit, in arrays of a library."""
        if not point.keeps_logits:
            return cls()
        # a head that was skipped by mistake shows up as NaN, not as a plausible answer.
        shape = (samples, len(point.costs), num_classes)
        logits = library.full(shape, math.nan, dtype=library.float32)
        return cls(logits, library.full_like(logits, math.nan) if point.keeps_answers else None)

    def take(self, index: Array) -> "HistoryBuffer":
        """Keep some of the samples."""
        parts = self.logits, self.answers
        return HistoryBuffer(*(None if part is None else part[index] for part in parts))


@dataclass(eq=False, slots=True)  # made once per exit: a frozen one takes three times as long
class ShrinkingBatch:
    """n samples between two stages; never changed."""

    rows: Array  # `[n]` int64, the rows of the output that their answers go to
    state: State  # what the next stage takes
    history: HistoryBuffer  # what the exits so far have returned
    output: ExitOutput | None = None  # by the exit behind the last stage, where it ran with it

    def __len__(self) -> int:
        return int(self.rows.shape[0])  # faster than len

    def take(self, index: Array) -> "ShrinkingBatch":
        """Keep some of the samples: the tensors really become smaller."""
        output = None if self.output is None else self.output.take(index)
        state = take(self.state, index)
        return ShrinkingBatch(self.rows[index], state, self.history.take(index), output)

    def with_state(self, state: State) -> "ShrinkingBatch":
        """The same samples with another state."""
        return ShrinkingBatch(self.rows, state, self.history, self.output)


def join_batches(batches: Sequence[ShrinkingBatch], states: Sequence[State]) -> ShrinkingBatch:
    """Merge batches that have reached the same stage, given their states in one layout."""
    if len(batches) == 1:
        return batches[0].with_state(states[0])
    history = HistoryBuffer(
        _concatenated([batch.history.logits for batch in batches]),
        _concatenated([batch.history.answers for batch in batches]),
    )
    rows = _concatenated([batch.rows for batch in batches])
    return ShrinkingBatch(rows, join(states), history)


def _concatenated(parts: Sequence[Array | None]) -> Array | None:
    present = [part for part in parts if part is not None]
    return namespace(present[0]).concatenate(present) if present else None


def finite_samples(state: State) -> Array | None:
    """Positions of the samples without NaN or infinite values; None if all are finite."""
    finite: Array | None = None
    for leaf in tensors(state):
        if not is_floating(leaf) or all_finite(leaf):
            continue
        fine = namespace(leaf).isfinite(leaf.reshape(len(leaf), -1)).all(1)
        finite = fine if finite is None else finite & fine
    if finite is None or bool(finite.all()):
        return None
    found = positions(finite)
    return found.cpu() if hasattr(found, "cpu") else found
