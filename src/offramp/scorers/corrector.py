"""Confidence correction: a small network per exit predicts whether to stop (paper, Section 4).

The paper fixes the form (two layers, 128 hidden units, top-k probabilities, binary cross-entropy)
and is silent on the optimiser. Ours is AdamW with a one-cycle schedule; its step size and its
length were chosen by the loss on the val split of a nine-exit CIFAR-100 network.

One addition is ours. Probabilities near one are all alike in float32, so that a network that sees
nothing else scrambles the most confident samples. A learned multiple of the answer's log-odds is
added to its output, which keeps them in order: one parameter per exit. On that CIFAR-100 network
it changes nothing; on overconfident ones it repairs the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp.errors import ConfigError
from offramp.scorers.confidence import log_odds
from offramp.scorers.scorer import History, Scorer
from offramp.targets import correctness, stop_target

__all__ = ["Corrector"]

TARGETS = {"eefp": stop_target, "correctness": correctness}

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
BATCH = 128
MIN_STEPS = 600  # a small held_out is gone through until so many batches were seen

LOG_ODDS_WEIGHT = 1e-3  # to begin with; enough to hold samples apart that are equal otherwise
TABLE_BYTES = 1 << 30  # above this, features are made batch by batch instead of once
WIDE = 256  # above so many inputs, each exit is trained by itself


@dataclass
class Corrector(Scorer):
    """A two-layer network per exit on the top-k probabilities of the answer.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        history: Also look at the probabilities of those classes at every exit so far, in the
            current exit's order (g_h of the paper's Eq. 3; without, g of Eq. 2).
        target: `"eefp"` predicts the stop target; `"correctness"` only whether the exit is right
            (CCCT in the paper's Appendix E).
        hidden: Hidden units.
        epochs: Passes over held_out, at least; a small one is gone through more often.
        seed: Of the initial weights; the order of the samples is always the same.

    Attributes:
        hidden_weights_: `[M-1, D, hidden]`; D is k x (M-1) with history, zero-padded, else k.
        hidden_biases_: `[M-1, hidden]`.
        output_weights_: `[M-1, hidden]`.
        output_biases_: `[M-1]`.
        log_odds_weights_: `[M-1]`, how much of the answer's log-odds is added.

    Example:
        >>> Corrector(k=5).macs(exit_index=9, num_classes=200)  # 640 (m+1) + 128
        6528
    """

    k: int | Literal["all"] | None = None
    history: bool = True
    target: str = "eefp"
    hidden: int = 128
    epochs: int = 30
    seed: int = 0
    learned = (
        "hidden_weights_",
        "hidden_biases_",
        "output_weights_",
        "output_biases_",
        "log_odds_weights_",
    )

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(f"`target` must be one of {', '.join(TARGETS)}, got {self.target!r}")
        if not (self.k is None or self.k == "all" or (type(self.k) is int and self.k >= 1)):
            raise ConfigError(f"`k` must be a positive number, 'all' or None, got {self.k!r}")
        for name in ("hidden", "epochs"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"`{name}` must be a whole number of at least 1, got {value!r}")

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Train one small network per exit but the last, all at once."""
        return self._keep(self._train_seeds(history, labels, [self.seed]), 0)

    def fit_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted corrector per seed; exits and seeds are trained as one batched product."""
        parameters = self._train_seeds(history, labels, seeds)
        return [self.clone(seed=s)._keep(parameters, index) for index, s in enumerate(seeds)]

    @property
    def reads_history(self) -> bool:
        """Whether it was made to; an own `score_at` of a subclass may."""
        return self.history or type(self).score_at is not Corrector.score_at

    def score_at(self, history: History) -> Tensor:
        """Log-odds of "right here, or hopeless from here on", `[n]`."""
        self.check_fitted()
        exit_index = history.exit_index
        if exit_index >= len(self.hidden_weights_):
            raise ConfigError(
                f"there is no corrector at exit {exit_index}: it was fitted for a network of "
                f"{len(self.hidden_weights_) + 1} exits, and the last one always stops"
            )
        inputs = self._inputs_at(history)
        weights = self.hidden_weights_[exit_index, : inputs.shape[1]]
        hidden = torch.addmm(self.hidden_biases_[exit_index], inputs, weights).relu()
        scores = hidden @ self.output_weights_[exit_index] + self.output_biases_[exit_index]
        added: Tensor = self.log_odds_weights_[exit_index] * log_odds(history.answer)
        return scores + added

    def probability(self, scores: Tensor) -> Tensor:
        """The corrector's own output, in [0, 1]."""
        return scores.sigmoid()

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products; 640 (m+1) + 128 for k=5 with history."""
        inputs = self._top_k(num_classes) * (exit_index + 1 if self.history else 1)
        return inputs * self.hidden + self.hidden

    def _top_k(self, num_classes: int) -> int:
        if self.k is None:
            return min(5, num_classes)
        if self.k == "all":
            return num_classes
        if self.k > num_classes:
            raise ConfigError(f"`k` must not exceed the {num_classes} classes, got {self.k}")
        return self.k

    def _train_seeds(
        self, history: History, labels: Tensor, seeds: Sequence[int]
    ) -> "_Parameters":
        k = self._top_k(history.answers.shape[2])
        exits = range(history.exit_index)  # correctors are for exits 0..M-2
        inputs = [k * (m + 1) if self.history else k for m in exits]
        parameters = _initial_parameters(inputs, self.hidden, seeds)
        targets = self._targets(history, labels)
        # Narrow inputs of all exits are padded to one product; wide ones would waste half of it.
        blocks = [exits] if inputs[-1] <= WIDE else [range(m, m + 1) for m in exits]
        for block in blocks:
            features = _Features(self, history, block, inputs[block[-1]])
            _train(parameters.block(block, features.width), features, targets, self.epochs)
        return parameters

    def _inputs_at(self, history: History) -> Tensor:
        """Probabilities that the corrector of the current exit sees, `[n, inputs]`."""
        current = history.log_probs[:, -1] if self.history else history.log_prob
        top, index = current.topk(self._top_k(history.answers.shape[2]), dim=-1)
        if not self.history:
            return top.exp()
        index = index[:, None].expand(-1, history.exit_index + 1, -1)
        return history.log_probs.gather(2, index).exp().flatten(1)

    def _targets(self, history: History, labels: Tensor) -> Tensor:
        """`[M-1, N]` float: what the correctors should have said."""
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        return TARGETS[self.target](predictions, labels)[:, :-1].T.float()

    def _keep(self, parameters: "_Parameters", index: int) -> Self:
        """Take over the weights of the seed with this number."""
        mine = slice(index * self.hidden, (index + 1) * self.hidden)
        self.hidden_weights_ = parameters.hidden_weights[:, :, mine].clone()
        self.hidden_biases_ = parameters.hidden_biases[:, 0, mine].clone()
        self.output_weights_ = parameters.output_weights[:, 0, index].clone()
        self.output_biases_ = parameters.output_biases[:, 0, index].clone()
        self.log_odds_weights_ = parameters.log_odds_weights[:, 0, index].clone()
        return self


class _Features:
    """What the correctors of some exits are trained on: a table where it fits, else batches."""

    def __init__(self, corrector: Corrector, history: History, exits: range, width: int) -> None:
        self.corrector, self.history, self.exits, self.width = corrector, history, exits, width
        self.log_odds = torch.empty(len(exits), len(history))
        small = 4 * len(exits) * len(history) * width <= TABLE_BYTES
        self.table = torch.empty(len(exits), len(history), width) if small else None
        for rows, part in history.chunks():
            for row, exit_index in enumerate(exits):
                self.log_odds[row, rows] = log_odds(part.answers[:, exit_index])
            if self.table is not None:
                self.table[:, rows] = self._padded(part)

    def batch(self, rows: Tensor) -> Tensor:
        """`[E, n, width]`."""
        if self.table is not None:
            return self.table[:, rows]
        return self._padded(self.history.take(rows))

    def _padded(self, history: History) -> Tensor:
        """Inputs of the exits' correctors, padded with zeros to one width."""
        padded = torch.zeros(len(self.exits), len(history), self.width)
        _ = history.log_probs  # once for all exits: `until` hands it on
        for row, exit_index in enumerate(self.exits):
            inputs = self.corrector._inputs_at(history.until(exit_index))
            padded[row, :, : inputs.shape[1]] = inputs
        return padded


class _Parameters(NamedTuple):
    """Weights of all exits (E) and seeds (S); the seeds lie side by side in the hidden layer."""

    hidden_weights: Tensor  # [E, D, S * hidden]
    hidden_biases: Tensor  # [E, 1, S * hidden]
    output_weights: Tensor  # [E, 1, S, hidden]
    output_biases: Tensor  # [E, 1, S]
    log_odds_weights: Tensor  # [E, 1, S]

    def block(self, exits: range, width: int) -> "_Parameters":
        """The part for some exits, as leaves that share the memory of the whole."""
        chosen = slice(exits.start, exits.stop)
        parts = [part[chosen] for part in self]
        parts[0] = parts[0][:, :width]
        return _Parameters(*(part.detach().requires_grad_() for part in parts))

    def logits(self, inputs: Tensor, log_odds: Tensor) -> Tensor:
        """Inputs `[E, n, D]` and log-odds `[E, n]` -> `[E, n, S]`."""
        hidden = torch.baddbmm(self.hidden_biases, inputs, self.hidden_weights).relu()
        seeds, width = self.output_weights.shape[2:]
        apart = hidden.view(*hidden.shape[:2], seeds, width)
        outputs: Tensor = (apart * self.output_weights).sum(dim=-1) + self.output_biases
        return outputs + self.log_odds_weights * log_odds[..., None]


def _initial_parameters(inputs: Sequence[int], hidden: int, seeds: Sequence[int]) -> _Parameters:
    """Uniform in +-1/sqrt(fan-in), as in `torch.nn.Linear`; each seed draws for itself."""
    hidden_weights = torch.zeros(len(inputs), max(inputs), len(seeds), hidden)
    hidden_biases = torch.zeros(len(inputs), 1, len(seeds), hidden)
    output_weights = torch.zeros(len(inputs), 1, len(seeds), hidden)
    for index, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)

        for m, width in enumerate(inputs):
            for part, fan_in in (
                (hidden_weights[m, :width, index], width),
                (hidden_biases[m, 0, index], width),
                (output_weights[m, 0, index], hidden),
            ):
                part.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
    return _Parameters(
        hidden_weights.flatten(2),
        hidden_biases.flatten(2),
        output_weights,
        torch.zeros(len(inputs), 1, len(seeds)),
        torch.full((len(inputs), 1, len(seeds)), LOG_ODDS_WEIGHT),
    )


def _train(parameters: _Parameters, features: _Features, targets: Tensor, epochs: int) -> None:
    """Minimise the binary cross-entropy of every exit and seed; the data order is fixed."""
    exits, samples = slice(features.exits.start, features.exits.stop), targets.shape[1]
    per_epoch = -(-samples // BATCH)
    epochs = max(epochs, -(-MIN_STEPS // per_epoch))
    optimizer = torch.optim.AdamW(
        list(parameters), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=epochs * per_epoch, pct_start=0.1
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(samples, generator=generator).split(BATCH):
            logits = parameters.logits(features.batch(rows), features.log_odds[:, rows])
            wanted = targets[exits, rows, None].expand_as(logits)
            loss = binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
