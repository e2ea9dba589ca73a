"""What cost-aware scorers share: small networks with several outputs, and a price.

Such a scorer knows what compute costs. For a sample at an exit there is a price of compute at
which stopping and going on are worth the same: its break-even price. Above it one should stop,
below it go on. So minus the break-even price is a stop score like any other, one fit serves
every price, and a threshold *is* a price: with -0.5 at all exits, whatever brings less than half
a point of accuracy per percent of the compute is not bought.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.scorers.scorer import History, Scorer
from offramp.scorers.small_networks import (
    PARAMETERS,
    Parameters,
    TopView,
    check_counts,
    run_networks,
)

__all__ = ["CostAware", "seeds_of"]


@dataclass
class CostAware(Scorer):
    """Parent of scorers with several small networks per exit.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        history: Also look at the probabilities of those classes at every exit so far.
        hidden: Hidden units per output.
        epochs: Passes over held_out, at least; a small one is gone through more often.
        seed: Of the initial weights; the order of the samples is always the same.
        price: Accuracy that the cost of the whole network has to bring. None scores by minus the
            break-even price; a number scores by what stopping gains at that price.

    Attributes:
        hidden_weights_: `[M-1, D, O x hidden]` for O outputs, zero-padded.
        hidden_biases_: `[M-1, O x hidden]`.
        output_weights_: `[M-1, O, hidden]`.
        output_biases_: `[M-1, O]`.
        log_odds_weights_: `[M-1, O]`, how much of the answer's log-odds is added.
        costs_: `[M]`, as shares of the last.
    """

    k: int | Literal["all"] | None = None
    history: bool = True
    hidden: int = 16
    epochs: int = 30
    seed: int = 0
    price: float | None = None
    learned = (*PARAMETERS, "costs_")

    def __post_init__(self) -> None:
        _ = self.view
        check_counts(hidden=self.hidden, epochs=self.epochs)
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ConfigError(f"`price` must not be negative, got {self.price}")

    @property
    def view(self) -> TopView:
        """What the networks see."""
        return TopView(self.k, self.history)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Train the networks of all exits but the last."""
        (fitted,) = self.fit_seeds(history, labels, costs, [self.seed])
        self.__dict__.update(fitted.__dict__)
        return self

    def fit_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed; all seeds are trained together."""
        shares = costs.double() / costs[-1]
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        correct = (predictions == labels[:, None]).float()
        parameters = self._train_seeds(history, correct, shares, seeds)
        return [
            self.clone(seed=seed)._keep(parameters, index, len(seeds), shares)
            for index, seed in enumerate(seeds)
        ]

    def at_price(self, price: float) -> Self:
        """The same fit, scoring by what stopping gains at this price: stop where it is >= 0."""
        other = self.clone(price=price)
        for name, value in self.state().items():
            setattr(other, name, value)
        return other

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products for all outputs."""
        width = self.view.width(exit_index, num_classes)
        return (width + 1) * self.hidden * self._num_outputs(exit_index)

    def outputs(self, history: History) -> Tensor:
        """What the networks of the current exit say, `[n, O]`."""
        return run_networks(self, history)

    def _num_outputs(self, exit_index: int) -> int:
        """How many networks are run at an exit."""
        raise NotImplementedError

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        """Parameters with the outputs of one seed after those of another."""
        raise NotImplementedError

    def _keep(self, parameters: Parameters, index: int, seeds: int, costs: Tensor) -> Self:
        """Take over the weights of the seed with this number."""
        outputs = parameters.output_biases.shape[2] // seeds
        mine = slice(index * outputs, (index + 1) * outputs)
        units = slice(index * outputs * self.hidden, (index + 1) * outputs * self.hidden)
        self.hidden_weights_ = parameters.hidden_weights[:, :, units].clone()
        self.hidden_biases_ = parameters.hidden_biases[:, 0, units].clone()
        self.output_weights_ = parameters.output_weights[:, 0, mine].clone()
        self.output_biases_ = parameters.output_biases[:, 0, mine].clone()
        self.log_odds_weights_ = parameters.log_odds_weights[:, 0, mine].clone()
        self.costs_ = costs.clone()
        return self


def seeds_of(seeds: Sequence[int], outputs: int) -> list[int]:
    """A seed for every output of every seed."""
    return [seed * 1000 + output for seed in seeds for output in range(outputs)]
