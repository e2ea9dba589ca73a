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
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from offramp.component import EVERY_KIND
from offramp.costs import mean_costs
from offramp.errors import ConfigError
from offramp.scorers.base import History, PreparedScorer, Scoring
from offramp.scorers.exit_networks import (
    PARAMETERS,
    Features,
    Loss,
    Parameters,
    TopView,
    check_counts,
    check_k,
    initial_parameters,
    networks_at,
    train_networks,
)
from offramp.targets import correctness


@dataclass
class CostAware(PreparedScorer):
    """Parent of scorers with several small networks per exit.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        history: Also look at the probabilities of those classes at every exit so far.
        hidden: Hidden units per output.
        epochs: Passes over held_out.
        seed: Of the initial weights; the order of the samples is always the same.

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
    reads = EVERY_KIND
    learned = (*PARAMETERS, "costs_")

    def __post_init__(self) -> None:
        check_k(self.k)
        check_counts(hidden=self.hidden, epochs=self.epochs)

    def on(self, kind: str) -> Self:
        """A copy for ledgers of a kind; of answers without logits, everything is looked at."""
        ready = super().on(kind)
        return ready if kind == "logits" else ready.clone(k="all")

    @property
    def view(self) -> TopView:
        """What the networks see."""
        return TopView(self.k, self.history)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Train the networks of all exits but the last."""
        shares, correct = _shares_and_correct(history, labels, costs)
        return self._keep(self._train_seeds(history, correct, shares, [self.seed]), 0, 1, shares)

    def fit_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed; all seeds are trained together."""
        shares, correct = _shares_and_correct(history, labels, costs)
        parameters = self._train_seeds(history, correct, shares, seeds)
        return [
            self.clone(seed=seed)._keep(parameters, index, len(seeds), shares)
            for index, seed in enumerate(seeds)
        ]

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products for all outputs."""
        width = self.view.width(exit_index, num_classes)
        return (width + 1) * self.hidden * self._num_outputs(exit_index)

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


def _shares_and_correct(history: History, labels: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """Costs `[M]` as shares of the last, and which answers are right, float `[N, M]`.

    Costs that differ from sample to sample count by their means.
    """
    predictions = torch.cat([part.predictions for _, part in history.chunks()])
    means = mean_costs(costs)
    return means / means[-1], correctness(predictions, labels).float()


def seeds_of(seeds: Sequence[int], outputs: int) -> list[int]:
    """A seed for every output of every seed."""
    return [seed * 1000 + output for seed in seeds for output in range(outputs)]


PRICES = tuple(torch.logspace(-1.7, 0.7, 12, dtype=torch.float64).tolist())
"""Accuracy for the cost of the whole network: from 0.02, nearly free, to 5, hardly affordable."""


@dataclass
class Priced(CostAware):
    """Parent of scorers whose outputs say, for each of twelve prices, whether to stop.

    The break-even price is read off softly, as the number of prices at which stopping is better,
    so that outputs that do not grow with the price are no problem.
    """

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """At how many of the prices to stop, counted softly."""
        outputs, sharpness = networks_at(self, exit_index, num_classes), self._sharpness
        return lambda history: (sharpness * outputs(history)).sigmoid().sum(dim=1)

    @property
    def _sharpness(self) -> float:
        """Turns outputs into log-odds of stopping."""
        return 1.0

    def _num_outputs(self, exit_index: int) -> int:
        return len(PRICES)


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
        return self._chances_at(history.exit_index, history.num_classes)(history)

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """Minus the break-even price."""
        chances_of = self._chances_at(exit_index, num_classes)
        extra = self.costs_[exit_index + 1 :] - self.costs_[exit_index]

        def score(history: History) -> Tensor:
            chances = chances_of(history)
            return -((chances[:, 1:] - chances[:, :1]) / extra).amax(dim=1).float()

        return score

    def _chances_at(self, exit_index: int, num_classes: int) -> Scoring:
        outputs = networks_at(self, exit_index, num_classes)
        return lambda history: outputs(history)[:, exit_index:].double().sigmoid()

    def _num_outputs(self, exit_index: int) -> int:
        return len(self.costs_) - exit_index

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        exits, outputs = range(history.exit_index), len(costs)
        inputs = [self.view.width(exit_index, history.answers.shape[2]) for exit_index in exits]
        parameters = initial_parameters(inputs, self.hidden, seeds_of(seeds, outputs))
        # Forecasts of exits already passed are never asked for, and must not be learned from.
        ahead = torch.ones(len(exits), outputs).triu()[:, None].repeat(1, 1, len(seeds))

        def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
            wanted = correct[rows].repeat(1, len(seeds)).expand_as(logits)
            loss = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            return (loss * ahead).sum()

        features = Features(self.view, history, exits, inputs[-1])
        train_networks(parameters.block(exits, features.width), features, loss_of, self.epochs)
        return parameters


LOSSES = ("classification", "regression")
SHARPNESS = {"classification": 1.0, "regression": 20.0}


@dataclass
class ValueOfContinuing(Priced):
    """Learn at each exit what stopping gains over going on with what was learned downstream.

    From the last exit backwards, and for twelve prices at once: where would a sample that goes
    on stop, by the networks of the later exits, and what would that be worth? Stopping now
    gains `correct - price x cost` minus that. So the score depends on *when* the right answer
    would come and what is paid until then, which the paper leaves open.

    Args:
        loss: `classification` learns the sign of the gain, weighed by its size; `regression` the
            gain itself.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(ValueOfContinuing(epochs=1)).fit(splits["held_out"])
        >>> policy.tune(splits["val"]).at(budget=0.5).decide(splits["test"]).shape
        torch.Size([300])
    """

    loss: Literal["classification", "regression"] = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ConfigError(f"`loss` must be one of {', '.join(LOSSES)}, got {self.loss!r}")

    @property
    def _sharpness(self) -> float:
        return SHARPNESS[self.loss]

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        exits, prices = range(history.exit_index), torch.tensor(PRICES).float().repeat(len(seeds))
        inputs = [self.view.width(exit_index, history.answers.shape[2]) for exit_index in exits]
        parameters = initial_parameters(inputs, self.hidden, seeds_of(seeds, len(PRICES)))
        paid = costs.float()[:, None] * prices  # [M, S]
        later = correct[:, -1:] - paid[-1]  # [N, S], worth of going on
        for exit_index in reversed(exits):
            here = correct[:, exit_index : exit_index + 1] - paid[exit_index]
            only = range(exit_index, exit_index + 1)
            features = Features(self.view, history, only, inputs[exit_index])
            part = parameters.block(only, features.width)
            train_networks(part, features, self._loss_of(here - later), self.epochs)
            with torch.no_grad():
                rows = torch.arange(len(correct))
                stop = part.logits(features.batch(rows), features.log_odds)[0] >= 0
            later = torch.where(stop, here, later)
        return parameters

    def _loss_of(self, gains: Tensor) -> Loss:
        """The loss of one exit for gains `[N, S]`."""
        if self.loss == "regression":
            return lambda outputs, rows: mse_loss(outputs[0], gains[rows], reduction="sum")
        weights = gains.abs() / gains.abs().mean(dim=0)

        def loss_of(outputs: Tensor, rows: Tensor) -> Tensor:
            return binary_cross_entropy_with_logits(
                outputs[0], (gains[rows] > 0).float(), weights[rows], reduction="sum"
            )

        return loss_of
