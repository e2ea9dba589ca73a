"""The samples of a batch that have not stopped yet: this is where a batch shrinks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offramp.arrays import AnyArray, Array, all_finite, as_numpy, is_floating, namespace
from offramp.decide import HistoryBuffer
from offramp.networks.state import State, join, take, tensors


@dataclass(eq=False, slots=True)  # a frozen one takes three times as long to make
class ShrinkingBatch:
    """n samples between two stages."""

    rows: Array  # `[n]` int64, the rows of the output that their answers go to
    state: State  # what the next stage takes
    history: HistoryBuffer  # what the exits so far have put out
    # `[n, e, K]`, outputs of the exits of the graph that has run, where a graph has several stages
    pending: AnyArray | None = None

    def __len__(self) -> int:
        return int(self.rows.shape[0])  # faster than len

    def take(self, index: Array) -> "ShrinkingBatch":
        """Keep some of the samples: the tensors really become smaller."""
        pending = None if self.pending is None else self.pending[index]
        state = take(self.state, index)
        return ShrinkingBatch(self.rows[index], state, self.history.take(index), pending)


def join_batches(batches: Sequence[ShrinkingBatch], states: Sequence[State]) -> ShrinkingBatch:
    """Merge batches that have reached the same stage, given their states in one layout."""
    pending = [batch.pending for batch in batches if batch.pending is not None]
    return ShrinkingBatch(
        np.concatenate([batch.rows for batch in batches]),
        join(states),
        HistoryBuffer.joined([batch.history for batch in batches]),
        namespace(pending[0]).concat(pending) if pending else None,
    )


def finite_samples(state: State) -> Array | None:
    """Positions of the samples without NaN or infinite values; None if all are finite."""
    finite: Array | None = None
    for leaf in tensors(state):
        if not is_floating(leaf) or all_finite(leaf):
            continue
        fine = as_numpy(namespace(leaf).isfinite(leaf.reshape(len(leaf), -1)).all(1))
        finite = fine if finite is None else finite & fine
    return None if finite is None or finite.all() else np.flatnonzero(finite)
