"""Cuts: how many samples each exit takes, and what moving one of them would do.

A cut is a number of samples: at exit m, those with the `cut` highest scores stop if they get
there. Thresholds are cuts seen on the scale of the scores. Everything here is counting, for many
sets of cuts at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Board", "Cuts", "Floats"]

Cuts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Board:
    """The samples of val, sorted at every exit but the last.

    Attributes:
        order: `[M-1, N]`, sample numbers by falling score.
        rank: `[M-1, N]`, the place of each sample in that order.
        allowed: bool `[M-1, N+1]`, whether a cut of that size keeps tied scores together.
        correct: float `[M, N]`.
        costs: `[M]`, cumulative.

    Example:
        >>> scores = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
        >>> right = torch.tensor([[True, True], [False, True], [True, True]])
        >>> board = Board.of(scores, right, torch.tensor([0.5, 1.0]))
        >>> accuracy, cost = board.measure(np.array([[2]]))  # the two highest scores stop
        >>> float(accuracy[0]), round(float(cost[0]), 3)
        (1.0, 0.667)
    """

    order: Cuts
    rank: Cuts
    allowed: Bools
    correct: Floats
    costs: Floats

    @classmethod
    def of(cls, scores: Tensor, correct: Tensor, costs: Tensor) -> "Board":
        """Sort scores `[N, M]` exit by exit; correct is bool `[N, M]`, costs `[M]`."""
        columns = scores[:, :-1].T.double()
        values, order = columns.sort(dim=1, descending=True, stable=True)
        allowed = torch.ones(len(values), values.shape[1] + 1, dtype=torch.bool)
        allowed[:, 1:-1] = values[:, 1:] != values[:, :-1]
        return cls(
            order.numpy(),
            order.argsort(dim=1).numpy(),
            allowed.numpy(),
            correct.T.double().contiguous().numpy(),
            costs.double().numpy(),
        )

    @property
    def samples(self) -> int:
        """N."""
        return int(self.correct.shape[1])

    def cuts_of(self, exits: Tensor) -> Cuts:
        """The smallest cuts `[B, M-1]` with which samples leave at these exits, `[B, N]`."""
        taken, numbers = exits.numpy(), range(len(self.order))
        places = [np.where(taken == m, self.rank[m] + 1, 0).max(axis=1) for m in numbers]
        return np.stack(places, axis=1)

    def exits_of(self, cuts: Cuts) -> Cuts:
        """The exit of every sample, `[B, N]`, from cuts `[B, M-1]`."""
        exits = np.full((len(cuts), self.samples), len(self.order))
        for m in reversed(range(len(self.order))):
            exits[self.rank[m] < cuts[:, m, None]] = m
        return exits

    def measure(self, cuts: Cuts) -> tuple[Floats, Floats]:
        """Accuracy and mean cost `[B]` of cuts `[B, M-1]`."""
        exits = self.exits_of(cuts)
        right = self.correct[exits, np.arange(self.samples)]
        return right.mean(axis=1), self.costs[exits].mean(axis=1)

    def reach(self, cuts: Cuts) -> list[Bools]:
        """For each exit but the last, which samples get there, `[B, N]`."""
        there = np.ones((len(cuts), self.samples), dtype=bool)
        found = []
        for m in range(len(self.order)):
            found.append(there)
            there = there & (self.rank[m] >= cuts[:, m, None])
        return found

    def by_cut(self, m: int, reach: Bools, gain: Floats) -> Floats:
        """What every possible cut at exit m brings, `[B, N+1]`.

        Args:
            m: The exit.
            reach: `[B, N]`, who gets there.
            gain: `[B, N]`, what each brings more by stopping here than by going on.
        """
        totals = np.zeros((len(reach), self.samples + 1))
        np.cumsum(np.where(reach, gain, 0.0)[:, self.order[m]], axis=1, out=totals[:, 1:])
        return totals

    def moves(self, cuts: Cuts) -> Iterator[tuple[int, Floats, Floats]]:
        """For each exit: accuracy and mean cost `[B, N+1]` if only its cut were changed."""
        accuracy, cost = self.measure(cuts)
        rows, reach = np.arange(len(cuts)), self.reach(cuts)
        right = np.broadcast_to(self.correct[-1], (len(cuts), self.samples))
        spent = np.full((len(cuts), self.samples), self.costs[-1])
        for m in reversed(range(len(self.order))):
            found = []
            for now, here, later in (
                (accuracy, self.correct[m], right),
                (cost, self.costs[m], spent),
            ):
                totals = self.by_cut(m, reach[m], here - later) / self.samples
                found.append(now[:, None] + totals - totals[rows, cuts[:, m]][:, None])
            yield m, found[0], found[1]
            stop = self.rank[m] < cuts[:, m, None]
            right = np.where(stop, self.correct[m], right)
            spent = np.where(stop, self.costs[m], spent)
