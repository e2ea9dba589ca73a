"""The samples of a batch that have not stopped yet: this is where a batch shrinks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.answers import Answer, CurrentExit
from offramp.networks.state import State, join, named_leaves, take
from offramp.runtime.operating_point import OperatingPoint
from offramp.runtime.output import ExitOutput
from offramp.scorers import History


@dataclass(eq=False, slots=True)
class HistoryBuffer:
    """Logits and answers of the exits so far, as far as anything reads them."""

    # `[n, M, K]`, filled up to the current exit; None if nothing looks back
    logits: Tensor | None = None
    # the same for the answers; None if nothing looks back, or if they are the logits
    answers: Tensor | None = None

    @classmethod
    def empty(cls, point: OperatingPoint, samples: int, num_classes: int) -> "HistoryBuffer":
        """Before the first exit."""
        if not point.keeps_logits:
            return cls()
        # a head that was skipped by mistake shows up as NaN, not as a plausible answer.
        logits = torch.full((samples, len(point.costs), num_classes), torch.nan)
        return cls(logits, torch.full_like(logits, torch.nan) if point.keeps_answers else None)

    def add(self, exit_index: int, logits: Tensor, answer: Answer) -> History:
        """The exits up to this one, with new logits `[n, K]` and what `answer` makes of them."""
        so_far = _appended(self.logits, exit_index, logits)
        if type(answer) is CurrentExit:
            return History(so_far, so_far, logits)
        answered = answer.answer_at(so_far)
        return History(so_far, _appended(self.answers, exit_index, answered), answered)

    def take(self, index: Tensor) -> "HistoryBuffer":
        """Keep some of the samples."""
        parts = self.logits, self.answers
        return HistoryBuffer(*(None if part is None else part[index] for part in parts))


def _appended(kept: Tensor | None, exit_index: int, values: Tensor) -> Tensor:
    """`[n, m+1, K]` with new values `[n, K]` last; if none are kept, they stand in for earlier."""
    if kept is None:
        return values.unsqueeze(1).expand(-1, exit_index + 1, -1)
    kept.select(1, exit_index).copy_(values)
    return kept.narrow(1, 0, exit_index + 1)


@dataclass(eq=False, slots=True)  # made once per exit: a frozen one takes three times as long
class InFlightBatch:
    """n samples between two stages; never changed."""

    rows: Tensor  # `[n]` int64, the rows of the output that their answers go to
    state: State  # what the next stage takes
    history: HistoryBuffer  # what the exits so far have returned
    said: ExitOutput | None = None  # by the exit behind the last stage, where it ran with it

    def __len__(self) -> int:
        return self.rows.shape[0]  # faster than len

    def take(self, index: Tensor) -> "InFlightBatch":
        """Keep some of the samples: the tensors really become smaller."""
        state = take(self.state, index.to(_device_of(self.state)))
        said = None if self.said is None else self.said.take(index)
        return InFlightBatch(self.rows[index], state, self.history.take(index), said)

    def with_state(self, state: State) -> "InFlightBatch":
        """The same samples with another state."""
        return InFlightBatch(self.rows, state, self.history)


def join_batches(batches: Sequence[InFlightBatch], states: Sequence[State]) -> InFlightBatch:
    """Merge batches that have reached the same stage, given their states in one layout."""
    if len(batches) == 1:
        return batches[0].with_state(states[0])
    history = HistoryBuffer(
        _concatenated([batch.history.logits for batch in batches]),
        _concatenated([batch.history.answers for batch in batches]),
    )
    return InFlightBatch(torch.cat([batch.rows for batch in batches]), join(states), history)


def _concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def finite_samples(state: State) -> Tensor | None:
    """Positions of the samples without NaN or infinite values; None if all are finite."""
    finite: Tensor | None = None
    for _, leaf in named_leaves(state):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            # a single sum shows whether anything is wrong, which is rare.
            if math.isfinite(leaf.sum().item()):
                continue
            fine = leaf.flatten(1).isfinite().all(dim=1)
            finite = fine if finite is None else finite & fine
    if finite is None or bool(finite.all()):
        return None
    return finite.nonzero().squeeze(1).cpu()


def _device_of(state: State) -> torch.device:
    return next(leaf.device for _, leaf in named_leaves(state) if isinstance(leaf, Tensor))
