"""Samples that travel through the network together: their state, and what was said so far."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.networks.state import State, join, named_leaves, take
from offramp.runtime.routes import Route


@dataclass(frozen=True, eq=False)
class Said:
    """Logits and answers of the exits so far, as far as anything reads them.

    Attributes:
        logits: `[n, M, K]`, filled up to the current exit; None where nothing looks back.
        answers: The same of the answers; None where nothing looks back, or where they are the
            logits.
    """

    logits: Tensor | None = None
    answers: Tensor | None = None

    @classmethod
    def nothing(cls, route: Route, samples: int, num_classes: int) -> "Said":
        """Before the first exit."""
        if not route.keeps_logits:
            return cls()
        # A head that was wrongly left out shows itself as NaN, and not as a plausible answer.
        logits = torch.full((samples, len(route.costs), num_classes), torch.nan)
        return cls(logits, torch.full_like(logits, torch.nan) if route.keeps_answers else None)

    def so_far(self, exit_index: int, logits: Tensor) -> Tensor:
        """Logits `[n, m+1, K]` with the new ones `[n, K]` last; written here if kept.

        Where nothing looks back, the new ones stand in for those before.
        """
        if self.logits is None:
            return logits.unsqueeze(1).expand(-1, exit_index + 1, -1)
        self.logits[:, exit_index] = logits
        return self.logits[:, : exit_index + 1]

    def take(self, rows: Tensor) -> "Said":
        """For some of the samples."""
        return Said(
            *(None if part is None else part[rows] for part in (self.logits, self.answers))
        )


@dataclass(frozen=True, eq=False)
class Flight:
    """n samples on their way.

    Attributes:
        rows: `[n]` int64, where their answers go.
        state: Between two stages.
        said: At the exits so far.
    """

    rows: Tensor
    state: State
    said: Said

    def __len__(self) -> int:
        return self.rows.shape[0]  # quicker than len

    def take(self, rows: Tensor) -> "Flight":
        """Some of the samples; really smaller."""
        device = _device(self.state)
        return Flight(self.rows[rows], take(self.state, rows.to(device)), self.said.take(rows))

    def landed(self) -> "Flight":
        """Nobody is left; the state is not touched."""
        return Flight(self.rows[:0], self.state, self.said)

    def at(self, state: State) -> "Flight":
        """The same samples, a stage further."""
        return Flight(self.rows, state, self.said)


def join_flights(flights: Sequence[Flight], states: Sequence[State]) -> Flight:
    """One flight of several at the same stage.

    Args:
        flights: At least one.
        states: Theirs, brought to one layout.
    """
    if len(flights) == 1:
        return flights[0].at(states[0])
    said = [each.said for each in flights]
    return Flight(
        torch.cat([each.rows for each in flights]),
        join(states),
        Said(_joined([s.logits for s in said]), _joined([s.answers for s in said])),
    )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def unbroken(state: State) -> Tensor | None:
    """Positions of the samples whose numbers are all finite; None if that is all of them."""
    finite: Tensor | None = None
    for _, leaf in named_leaves(state):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            # One sum tells whether anything is wrong, and hardly ever is there more to do.
            if leaf.sum().isfinite():
                continue
            fine = leaf.flatten(1).isfinite().all(dim=1)
            finite = fine if finite is None else finite & fine
    if finite is None or bool(finite.all()):
        return None
    return finite.nonzero().squeeze(1).cpu()


def _device(state: State) -> torch.device:
    return next(leaf.device for _, leaf in named_leaves(state) if isinstance(leaf, Tensor))
