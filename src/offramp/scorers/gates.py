"""Gates: all exits' stopping decisions trained together, after JEI-DNN, post hoc.

JEI-DNN (Regol et al. 2024) trains gates together with the heads of a frozen backbone, for one
trade-off between loss and cost at a time. Here the heads are those of the ledger and stay as they
are; only the gates are trained, which makes this a post-hoc variant and not the original. Our
choices: the gates see the top probabilities of the current exit instead of hand-made
uncertainties; the loss is that of being wrong; and twelve prices are trained at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.scorers.cost_aware import seeds_of
from offramp.scorers.priced import PRICES, Priced
from offramp.scorers.scorer import History
from offramp.scorers.small_networks import Features, Parameters, initial_parameters, train

__all__ = ["Gates"]


@dataclass
class Gates(Priced):
    """A gate per exit and price; all of a price minimise the expected error and cost together.

    A sample leaves at exit m with the probability that gate m opens and none before it did. So
    every gate is trained for what the later ones make of the samples that it lets through. Those
    learn nothing from samples that do not get there: at a high price the first gates may open for
    all before the later ones are any good. `ValueOfContinuing`, learned backwards, avoids that.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(Gates(epochs=1)).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        torch.Size([300])
    """

    history: bool = False

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        exits, prices = range(history.exit_index), torch.tensor(PRICES).float().repeat(len(seeds))
        inputs = [self.view.width(m, history.answers.shape[2]) for m in exits]
        parameters = initial_parameters(inputs, self.hidden, seeds_of(seeds, len(PRICES)))
        paid = (costs.float()[:, None] * prices)[:, None]  # [M, 1, S]

        def loss_of(odds: Tensor, rows: Tensor) -> Tensor:
            lost = 1 - correct[rows].T[..., None] + paid  # [M, n, S]
            return (leaving(odds) * lost).sum()

        features = Features(self.view, history, exits, inputs[-1])
        train(parameters.block(exits, features.width), features, loss_of, self.epochs)
        return parameters


def leaving(odds: Tensor) -> Tensor:
    """Probabilities of leaving at each exit, `[M, n, S]`, from log-odds of gates `[M-1, n, S]`.

    Example:
        >>> leaving(torch.zeros(2, 1, 1)).flatten()
        tensor([0.5000, 0.2500, 0.2500])
    """
    opened = odds.sigmoid()
    there = torch.cat([torch.ones_like(opened[:1]), (1 - opened).cumprod(dim=0)])
    return there * torch.cat([opened, torch.ones_like(opened[:1])])
