"""Forecast: which later exit would be right, and is it worth its price?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp.scorers.cost_aware import CostAware, seeds_of
from offramp.scorers.scorer import History
from offramp.scorers.small_networks import Features, Parameters, initial_parameters, train

__all__ = ["Forecast"]


@dataclass
class Forecast(CostAware):
    """At each exit, predict for this and every later one the probability of being right.

    With those and the costs, stopping is worth the probability of being right now; going on is
    worth that of the best later exit, minus its price. The forecast looks at one later exit at a
    time: that one may stop on the way is left out (see `ValueOfContinuing`).

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(Forecast(epochs=1)).fit(splits["held_out"])
        >>> logits = splits["val"].logits[:, :2]
        >>> policy.scorer.probabilities(History(logits, logits)).shape  # of exits 1, 2 and 3
        torch.Size([300, 3])
    """

    def probabilities(self, history: History) -> Tensor:
        """Of being right at the current exit and at each later one, `[n, M - m]`."""
        return self.outputs(history)[:, history.exit_index :].double().sigmoid()

    def score_at(self, history: History) -> Tensor:
        """Minus the break-even price, or what stopping gains at the price, `[n]`."""
        chances = self.probabilities(history)
        gains = chances[:, 1:] - chances[:, :1]
        extra = self.costs_[history.exit_index + 1 :] - self.costs_[history.exit_index]
        if self.price is None:
            return -(gains / extra).amax(dim=1).float()
        return -(gains - self.price * extra).amax(dim=1).float()

    def _num_outputs(self, exit_index: int) -> int:
        return len(self.costs_) - exit_index

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        exits, outputs = range(history.exit_index), len(costs)
        inputs = [self.view.width(m, history.answers.shape[2]) for m in exits]
        parameters = initial_parameters(inputs, self.hidden, seeds_of(seeds, outputs))
        # Forecasts of exits already passed are never asked for, and must not be learned from.
        ahead = torch.ones(len(exits), outputs).triu()[:, None].repeat(1, 1, len(seeds))

        def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
            wanted = correct[rows].repeat(1, len(seeds)).expand_as(logits)
            loss = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            return (loss * ahead).sum()

        features = Features(self.view, history, exits, inputs[-1])
        train(parameters.block(exits, features.width), features, loss_of, self.epochs)
        return parameters
