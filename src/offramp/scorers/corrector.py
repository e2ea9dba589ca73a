"""Confidence correction: a small network per exit predicts whether to stop (paper, Section 4).

The paper fixes the form (two layers, 128 hidden units, top-k probabilities, binary cross-entropy)
and is silent on the optimiser. Ours is AdamW with a one-cycle schedule; its step size was chosen
by the loss on the val split of a nine-exit CIFAR-100 network. Its length is chosen at every fit,
by the loss on a fifth of held_out: with history, few samples are soon learned by heart.
`epochs=30, log_odds=False` is the paper's network with the same training everywhere.

One addition is ours. Probabilities near one are all alike in float32, so that a network that sees
nothing else scrambles the most confident samples. A learned multiple of the answer's log-odds is
added to its output, which keeps them in order: one parameter per exit. On that CIFAR-100 network
it changes nothing; on overconfident ones it repairs the scores. `log_odds=False` leaves it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, sigmoid
from offramp.ledger import History
from offramp.scorers.base import Scoring
from offramp.scorers.score_networks import TopScorer, check_counts, check_k, networks_at
from offramp.targets import correctness, stop_target

TARGETS = {"eefp": stop_target, "correctness": correctness}

SAMPLES_PER_INPUT = 25
"""With fewer, a corrector is likely to overfit: on val of two nine-exit networks of CIFAR-100, its
EEFP score was not above that of max probability with 600 samples and 40 inputs."""

WIDE = 256  # above so many inputs, each exit is trained by itself


@dataclass
class Corrector(TopScorer):
    """A two-layer network per exit on the top-k probabilities of the answer.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        history: Also look at the probabilities of those classes at every exit so far, in the
            current exit's order (g_h of the paper's Eq. 3; without, g of Eq. 2).
        target: `"eefp"` predicts the stop target; `"correctness"` only whether the exit is right
            (CCCT, confidence corrector with confidence target, in the paper's Appendix E).
        hidden: Hidden units.
        epochs: Passes over held_out; None chooses their number on a fifth of it, and then trains
            on all.
        seed: Of the initial weights; the order of the samples is always the same.
        log_odds: Whether a learned multiple of the answer's log-odds is added; without it, the
            network is the paper's to the letter.

    Attributes:
        hidden_weights_: `[M-1, D, hidden]`; D is k x (M-1) with history, zero-padded, else k.
        hidden_biases_: `[M-1, hidden]`.
        output_weights_: `[M-1, hidden]`.
        output_biases_: `[M-1]`.
        log_odds_weights_: `[M-1]`, how much of the answer's log-odds is added; zeros if none.

    Example:
        >>> Corrector(k=5).macs(exit_index=9, num_classes=200)  # 640 (m+1) + 128
        6528
    """

    k: int | Literal["all"] | None = None
    history: bool = True
    target: str = "eefp"
    hidden: int = 128
    epochs: int | None = None
    seed: int = 0
    log_odds: bool = True

    def __post_init__(self) -> None:
        check.one_of("target", self.target, tuple(TARGETS))
        check_k(self.k)
        check_counts(hidden=self.hidden, **{} if self.epochs is None else {"epochs": self.epochs})
        check.instance("log_odds", self.log_odds, bool, "True or False")

    @property
    def reads_history(self) -> bool:
        """Whether it was made to; an own `score_at` of a subclass may."""
        return self.history or type(self).score_at is not Corrector.score_at

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """Log-odds of "right here, or hopeless from here on"."""
        return networks_at(self, exit_index, num_classes)

    def probability(self, scores: AnyArray) -> AnyArray:
        """The corrector's own output, in [0, 1]."""
        return sigmoid(scores)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products; 640 (m+1) + 128 for k=5 with history."""
        return (self.view.width(exit_index, num_classes) + 1) * self.hidden

    def samples_wanted(self, num_exits: int, num_classes: int) -> int:
        """25 for each input of the widest network: 1,000 for k=5, history and nine exits."""
        return SAMPLES_PER_INPUT * self.view.width(max(num_exits - 2, 0), num_classes)

    def _train_seeds(
        self, history: History, labels: Array, costs: Array, seeds: Sequence[int]
    ) -> Any:  # noqa: ANN401 - of torch
        self.check_can_fit()
        from offramp.scorers.network_training import (
            Features,
            choose_epochs,
            cross_entropy_with,
            initial_parameters,
            train_networks,
        )

        exits = range(history.exit_index)  # correctors are for exits 0..M-2
        inputs = [self.view.width(exit_index, history.num_classes) for exit_index in exits]

        def start(seeds: Sequence[int]) -> Any:  # noqa: ANN401 - of torch
            made = initial_parameters(inputs, self.hidden, seeds)
            if not self.log_odds:
                made.log_odds_weights.zero_()
            return made

        parameters = start(seeds)
        targets, weights = self._targets(history, labels), _weights(history)
        # Narrow inputs of all exits are padded to one product; wide ones would waste half of it.
        apart = [range(exit_index, exit_index + 1) for exit_index in exits]
        for block in [exits] if inputs[-1] <= WIDE else apart:
            features = Features(self.view, history, block, inputs[block[-1]])
            if not self.log_odds:
                features.log_odds.zero_()  # without a gradient, the weights stay zero
            own = slice(block.start, block.stop)
            loss = cross_entropy_with(targets[own], None if weights is None else weights[own])
            width = features.width
            # Not with the seeds that are asked for: a seed gives the same, alone or with others.
            tries = partial(lambda *part: start([0]).block(*part), block, width)
            epochs = self.epochs or choose_epochs(tries, features, loss)
            train_networks(parameters.block(block, width), features, loss, epochs)
        return parameters

    def _targets(self, history: History, labels: Array) -> Array:
        """`[M-1, N]` float32: what the correctors should have returned."""
        predictions = np.concatenate([part.predictions for _, part in history.chunks()])
        target = TARGETS[self.target](predictions, labels)[:, :-1]
        return np.ascontiguousarray(target.T, np.float32)


def _weights(history: History) -> Array | None:
    """`[M-1, N]`: zero for samples that have ended, and so are not asked any more."""
    if history.lengths is None:
        return None
    exits = range(history.exit_index)
    return np.stack([(history.lengths > m + 1).astype(np.float32) for m in exits])
