"""Training of small networks, one per exit and seed, with torch: all of them as one product."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp.arrays import Array, as_tensor
from offramp.ledger import History
from offramp.ledger.chunks import folds
from offramp.scorers.score_networks import TopView

Loss = Callable[[Tensor, Tensor], Tensor]

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
BATCH = 128
EPOCHS = (10, 20, 40, 80)
"""Passes over the samples that are tried where their number is chosen."""
PARTS = 5  # one of which is left out to choose
LEFT_OUT = 300  # samples, at least, over all tries
MANY = 10_000  # samples, above which the fewest passes are steps enough

LOG_ODDS_WEIGHT = 1e-3  # to begin with; enough to hold samples apart that are equal otherwise
TABLE_BYTES = 1 << 30  # above this, features are made batch by batch instead of once


class Features:
    """What the networks of some exits are trained on: a table where it fits, else batches."""

    def __init__(self, view: TopView, history: History, exits: range, width: int) -> None:
        self.view, self.history, self.exits, self.width = view, history, exits, width
        log_odds = np.empty((len(exits), len(history)), np.float32)
        small = 4 * len(exits) * len(history) * width <= TABLE_BYTES
        table = np.empty((len(exits), len(history), width), np.float32) if small else None
        for rows, part in history.chunks():
            for row, exit_index in enumerate(exits):
                log_odds[row, rows] = part.until(exit_index).log_odds
            if table is not None:
                table[:, rows] = self._padded(part)
        self.log_odds: Tensor = as_tensor(log_odds)
        self.table: Tensor | None = None if table is None else as_tensor(table)

    def batch(self, rows: Tensor) -> Tensor:
        """`[E, n, width]`."""
        if self.table is not None:
            return self.table[:, rows]
        found: Tensor = as_tensor(self._padded(self.history.take(rows.numpy())))
        return found

    def _padded(self, history: History) -> Array:
        """Inputs of the exits' networks, padded with zeros to one width."""
        padded = np.zeros((len(self.exits), len(history), self.width), np.float32)
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

    def of_seed(self, index: int, outputs: int) -> tuple[Array, ...]:
        """The weights of one seed with so many networks per exit, in the order of `PARAMETERS`."""
        width = self.output_weights.shape[3]
        units = slice(index * outputs * width, (index + 1) * outputs * width)
        mine = index if outputs == 1 else slice(index * outputs, (index + 1) * outputs)
        parts = (
            self.hidden_weights[:, :, units],
            self.hidden_biases[:, 0, units],
            *(part[:, 0, mine] for part in self[2:]),
        )
        return tuple(part.detach().numpy().copy() for part in parts)

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


def choose_epochs(start: Callable[[], Parameters], features: Features, loss_of: Loss) -> int:
    """How many passes over the samples give the least loss on a fifth that is left out.

    Of few samples, further fifths are left out in turn, until 300 samples have been. Each number
    is tried with a schedule of its own, the smallest first, until more passes no longer help.
    Networks with many inputs learn few samples by heart after ten passes; networks with few
    inputs still improve after thirty. Many samples need ten.

    Args:
        start: Makes the networks before they are trained.
        features: Of all samples.
        loss_of: As for `train_networks`.
    """
    history = features.history
    if len(history) > MANY:
        return EPOCHS[0]
    count = -(-PARTS * LEFT_OUT // len(history))
    cuts = list(folds(len(history), PARTS, history.groups))[:count]
    if not all(len(rest) and len(part) for rest, part in cuts):
        return EPOCHS[0]

    def loss_after(epochs: int, rest: Tensor, part: Tensor) -> float:
        parameters = start()
        train_networks(parameters, features, loss_of, epochs, rest)
        with torch.no_grad():
            logits = parameters.logits(features.batch(part), features.log_odds[:, part])
            return float(loss_of(logits, part))

    losses: list[float] = []
    for epochs in EPOCHS:
        losses.append(sum(loss_after(epochs, *map(as_tensor, pair)) for pair in cuts))
        if losses[-1] > min(losses):
            break
    return EPOCHS[int(np.argmin(losses))]


def train_networks(
    parameters: Parameters,
    features: Features,
    loss_of: Loss,
    epochs: int,
    among: Tensor | None = None,
) -> None:
    """Minimise a loss of every exit and seed; the data order is fixed.

    Args:
        parameters: Leaves, changed in place.
        features: Of all samples.
        loss_of: Maps logits `[E, n, S]` and the numbers of their samples `[n]` to a sum over n.
        epochs: Passes over the samples.
        among: Numbers of the samples to train on; all by default.
    """
    among = torch.arange(len(features.history)) if among is None else among
    samples = len(among)
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
        for rows in among[torch.randperm(samples, generator=generator)].split(BATCH):
            logits = parameters.logits(features.batch(rows), features.log_odds[:, rows])
            loss = loss_of(logits, rows) / len(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def cross_entropy_with(targets: Array, weights: Array | None) -> Loss:
    """Binary cross-entropy with targets and weights `[E, N]`, the same for every seed."""
    wanted, weighed = as_tensor(targets), None if weights is None else as_tensor(weights)

    def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
        target = wanted[:, rows, None].expand_as(logits)
        weight = None if weighed is None else weighed[:, rows, None]
        return binary_cross_entropy_with_logits(logits, target, weight, reduction="sum")

    return loss_of
