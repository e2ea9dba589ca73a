"""Scorers with one output per price, from which the break-even price is read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.scorers.cost_aware import CostAware
from offramp.scorers.scorer import History

__all__ = ["PRICES", "Priced", "between"]

PRICES = tuple(torch.logspace(-1.7, 0.7, 12, dtype=torch.float64).tolist())
"""Accuracy for the cost of the whole network: from 0.02, nearly free, to 5, hardly affordable."""


@dataclass
class Priced(CostAware):
    """Parent of scorers whose outputs say, for each of twelve prices, whether to stop.

    The break-even price is read off softly, as the number of prices at which stopping is better,
    so that outputs that do not grow with the price are no problem.
    """

    def score_at(self, history: History) -> Tensor:
        """How many prices say stop, or how clearly the one price does, `[n]`."""
        odds = self._sharpness * self.outputs(history)
        if self.price is None:
            return odds.sigmoid().sum(dim=1)
        return between(odds, self.price)

    @property
    def _sharpness(self) -> float:
        """Turns outputs into log-odds of stopping."""
        return 1.0

    def _num_outputs(self, exit_index: int) -> int:
        return len(PRICES)


def between(values: Tensor, price: float) -> Tensor:
    """Values `[n, 12]` at the prices -> `[n]` at one, linear in its logarithm."""
    places = torch.tensor(PRICES).log()
    place = torch.tensor(max(price, PRICES[0])).log().clamp(places[0], places[-1])
    right = int(torch.searchsorted(places, place).clamp(1, len(places) - 1))
    share = float((place - places[right - 1]) / (places[right] - places[right - 1]))
    return torch.lerp(values[:, right - 1], values[:, right], share)
