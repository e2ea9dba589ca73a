"""Small networks, one per exit, on what an exit and those before it say of the top classes.

Correctors, gates and utilities are made of them. Two layers each; the networks of all exits,
seeds and outputs are trained as one batched product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.ledger import AnswerHistory, History
from offramp.scorers.base import PreparedScorer

PARAMETERS = (
    *("hidden_weights_", "hidden_biases_", "output_weights_", "output_biases_"),
    "log_odds_weights_",
)
"""Names of what scorers that are made of small networks learn."""

Loss = Callable[[Tensor, Tensor], Tensor]

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
BATCH = 128

LOG_ODDS_WEIGHT = 1e-3  # to begin with; enough to hold samples apart that are equal otherwise
TABLE_BYTES = 1 << 30  # above this, features are made batch by batch instead of once


def check_k(k: object) -> None:
    """Raise unless `k` can be a number of classes to look at."""
    if not (k is None or k == "all" or (type(k) is int and k >= 1)):
        raise ConfigError(f"`k` must be a positive number, 'all' or None, got {k!r}")


@dataclass(frozen=True)
class TopView:
    """What a small network sees: probabilities of the current exit's most probable classes.

    Args:
        k: How many classes; None means min(5, K), `"all"` all.
        history: Also at every exit so far, in the current exit's order.

    Example:
        >>> TopView(k=2, history=True).width(exit_index=3, num_classes=10)
        8
    """

    k: int | Literal["all"] | None
    history: bool

    def top_k(self, num_classes: int) -> int:
        """How many classes of so many."""
        if self.k is None:
            return min(5, num_classes)
        if self.k == "all":
            return num_classes
        if self.k > num_classes:
            raise ConfigError(f"`k` must not exceed the {num_classes} classes, got {self.k}")
        return self.k

    def width(self, exit_index: int, num_classes: int) -> int:
        """How many probabilities are seen at an exit."""
        return self.top_k(num_classes) * (exit_index + 1 if self.history else 1)

    def inputs(self, history: History) -> Tensor:
        """The probabilities that are seen at the last of the exits so far, `[n, inputs]`."""
        if isinstance(history, AnswerHistory):
            return history.inputs(self.history)
        # Without history, the earlier exits may never have been run.
        seen = history.log_probs if self.history else history.log_prob.unsqueeze(1)
        index = seen.select(1, -1).topk(self.top_k(seen.shape[2]), dim=-1).indices
        return seen.gather(2, index.unsqueeze(1).expand(-1, seen.shape[1], -1)).exp().flatten(1)


class SmallNetworks(Protocol):
    """What a scorer keeps of its networks: E exits, O outputs with H hidden units each.

    Attributes:
        hidden_weights_: `[E, D, O x H]`, padded with zeros where an exit sees less.
        hidden_biases_: `[E, O x H]`.
        output_weights_: `[E, O, H]`, or `[E, H]` where there is one output.
        output_biases_: `[E, O]`, or `[E]`.
        log_odds_weights_: `[E, O]`, or `[E]`.
    """

    hidden_weights_: Tensor
    hidden_biases_: Tensor
    output_weights_: Tensor
    output_biases_: Tensor
    log_odds_weights_: Tensor

    @property
    def view(self) -> TopView:
        """What the networks see."""

    def check_fitted(self) -> None:
        """Raise unless the networks are there."""


def networks_at(
    scorer: SmallNetworks, exit_index: int, num_classes: int
) -> Callable[[History], Tensor]:
    """The networks of one exit: from the exits so far to what they say, `[n, O]` or `[n]`.

    Raises:
        NotFittedError: The scorer is not fitted.
        ConfigError: There are no networks at this exit.
    """
    scorer.check_fitted()
    if exit_index >= len(scorer.hidden_weights_):
        raise ConfigError(
            f"there is no {type(scorer).__name__} at exit {exit_index}: it was fitted for a "
            f"network of {len(scorer.hidden_weights_) + 1} exits, and the last one always stops"
        )
    networks, view = ExitNetworks.of(scorer, exit_index, num_classes), scorer.view

    def outputs(history: History) -> Tensor:
        inputs = view.inputs(history)
        return networks.to(inputs.dtype).respond(inputs, history.log_odds.to(inputs.dtype))

    return outputs


class ExitNetworks(NamedTuple):
    """The networks of one exit; a single one where the outputs have no dimension."""

    hidden_weights: Tensor  # [D, O x H]
    hidden_biases: Tensor  # [O x H]
    output_weights: Tensor  # [O, H] or [H]
    output_biases: Tensor  # [O] or []
    log_odds_weights: Tensor  # [O] or []

    @classmethod
    def of(cls, scorer: SmallNetworks, exit_index: int, num_classes: int) -> "ExitNetworks":
        """Look them up, without the padding."""
        weights, *rest = (getattr(scorer, name)[exit_index] for name in PARAMETERS)
        return cls(weights[: scorer.view.width(exit_index, num_classes)], *rest)

    def to(self, dtype: torch.dtype) -> "ExitNetworks":
        """The same in another float type."""
        if self.hidden_weights.dtype == dtype:
            return self
        return ExitNetworks(*(part.to(dtype) for part in self))

    def respond(self, inputs: Tensor, odds: Tensor) -> Tensor:
        """What they say to inputs `[n, D]` and log-odds `[n]`: `[n, O]`, or `[n]` if O is 1."""
        hidden = torch.addmm(self.hidden_biases, inputs, self.hidden_weights).relu()
        if self.output_weights.ndim == 1:
            added = torch.addcmul(self.output_biases, self.log_odds_weights, odds)
            return torch.addmv(added, hidden, self.output_weights)
        apart = hidden.view(-1, *self.output_weights.shape)  # [n, O, H]
        added = torch.addcmul(self.output_biases, self.log_odds_weights, odds.unsqueeze(1))
        return (apart * self.output_weights).sum(dim=2) + added


class Features:
    """What the networks of some exits are trained on: a table where it fits, else batches."""

    def __init__(self, view: TopView, history: History, exits: range, width: int) -> None:
        self.view, self.history, self.exits, self.width = view, history, exits, width
        self.log_odds = torch.empty(len(exits), len(history))
        small = 4 * len(exits) * len(history) * width <= TABLE_BYTES
        self.table = torch.empty(len(exits), len(history), width) if small else None
        for rows, part in history.chunks():
            for row, exit_index in enumerate(exits):
                self.log_odds[row, rows] = part.until(exit_index).log_odds
            if self.table is not None:
                self.table[:, rows] = self._padded(part)

    def batch(self, rows: Tensor) -> Tensor:
        """`[E, n, width]`."""
        if self.table is not None:
            return self.table[:, rows]
        return self._padded(self.history.take(rows))

    def _padded(self, history: History) -> Tensor:
        """Inputs of the exits' networks, padded with zeros to one width."""
        padded = torch.zeros(len(self.exits), len(history), self.width)
        _ = history.log_probs  # once for all exits: `until` hands it on
        for row, exit_index in enumerate(self.exits):
            inputs = self.view.inputs(history.until(exit_index))
            padded[row, :, : inputs.shape[1]] = inputs
        return padded


class Parameters(NamedTuple):
    """Weights of all exits (E) and seeds (S); the seeds lie side by side in the hidden layer."""

    hidden_weights: Tensor  # [E, D, S * hidden]
    hidden_biases: Tensor  # [E, 1, S * hidden]
    output_weights: Tensor  # [E, 1, S, hidden]
    output_biases: Tensor  # [E, 1, S]
    log_odds_weights: Tensor  # [E, 1, S]

    def block(self, exits: range, width: int) -> "Parameters":
        """The part for some exits, as leaves that share the memory of the whole."""
        chosen = slice(exits.start, exits.stop)
        parts = [part[chosen] for part in self]
        parts[0] = parts[0][:, :width]
        return Parameters(*(part.detach().requires_grad_() for part in parts))

    def logits(self, inputs: Tensor, log_odds: Tensor) -> Tensor:
        """Inputs `[E, n, D]` and log-odds `[E, n]` -> `[E, n, S]`."""
        hidden = torch.baddbmm(self.hidden_biases, inputs, self.hidden_weights).relu()
        seeds, width = self.output_weights.shape[2:]
        apart = hidden.view(*hidden.shape[:2], seeds, width)
        outputs: Tensor = (apart * self.output_weights).sum(dim=-1) + self.output_biases
        return outputs + self.log_odds_weights * log_odds[..., None]


def initial_parameters(inputs: Sequence[int], hidden: int, seeds: Sequence[int]) -> Parameters:
    """Uniform in +-1/sqrt(fan-in), as in `torch.nn.Linear`; each seed draws for itself."""
    hidden_weights = torch.zeros(len(inputs), max(inputs), len(seeds), hidden)
    hidden_biases = torch.zeros(len(inputs), 1, len(seeds), hidden)
    output_weights = torch.zeros(len(inputs), 1, len(seeds), hidden)
    for index, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)

        for exit_index, width in enumerate(inputs):
            for part, fan_in in (
                (hidden_weights[exit_index, :width, index], width),
                (hidden_biases[exit_index, 0, index], width),
                (output_weights[exit_index, 0, index], hidden),
            ):
                part.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
    return Parameters(
        hidden_weights.flatten(2),
        hidden_biases.flatten(2),
        output_weights,
        torch.zeros(len(inputs), 1, len(seeds)),
        torch.full((len(inputs), 1, len(seeds)), LOG_ODDS_WEIGHT),
    )


def train_networks(parameters: Parameters, features: Features, loss_of: Loss, epochs: int) -> None:
    """Minimise a loss of every exit and seed; the data order is fixed.

    Args:
        parameters: Leaves, changed in place.
        features: Of all samples.
        loss_of: Maps logits `[E, n, S]` and the numbers of their samples `[n]` to a sum over n.
        epochs: Passes over the samples.
    """
    samples = len(features.history)
    steps = max(epochs * -(-samples // BATCH), 3)  # what the schedule takes at least
    optimizer = torch.optim.AdamW(
        list(parameters), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    # The rate rises for a tenth of the steps, and for two at least.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=max(0.1, 2 / steps)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(samples, generator=generator).split(BATCH):
            logits = parameters.logits(features.batch(rows), features.log_odds[:, rows])
            loss = loss_of(logits, rows) / len(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def check_counts(**counts: object) -> None:
    """Raise unless these settings are whole numbers of at least 1."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"`{name}` must be a whole number of at least 1, got {value!r}")


class TopScorer(PreparedScorer):
    """Parent of scorers whose networks look at the top classes, and are trained seed by seed."""

    k: int | Literal["all"] | None
    history: bool
    seed: int
    needs = "confidences"
    learned = PARAMETERS

    def on(self, history_type: type[History]) -> Self:
        """A copy for such ledgers; of answers without logits, everything is looked at."""
        ready = super().on(history_type)
        return ready if history_type.has_logits else ready.clone(k="all")

    @property
    def view(self) -> TopView:
        """What the networks see."""
        return TopView(self.k, self.history)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Train the networks of all exits but the last, all at once."""
        return self._keep(self._train_seeds(history, labels, costs, [self.seed]), 0)

    def fit_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed; exits and seeds are trained as one batched product."""
        parameters = self._train_seeds(history, labels, costs, seeds)
        return [self.clone(seed=s)._keep(parameters, index) for index, s in enumerate(seeds)]

    def _train_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        raise NotImplementedError

    def _keep(self, parameters: Parameters, index: int) -> Self:
        """Take over the weights of the seed with this number."""
        raise NotImplementedError
