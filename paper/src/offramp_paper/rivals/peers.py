"""Learned exit scores after EENet (Ilhan et al. 2024), post hoc.

EENet scores an exit by a small network that sees the probabilities of the exit, three measures of
its confidence (max probability, entropy, and how many exits so far vote for the same class) and
the scores of the exits before it. How many samples are to leave at each exit is learned beside
it, for a budget; that part is `thresholds/assigned.py`, and the two go together.

Where the paper leaves a choice or ours differs: the networks see the top probabilities instead of
all, as correctors do; entropy and votes are scaled to [0, 1], and the max probability is the first
of the top ones; the target is being right, for every sample alike, so that one fit serves every
budget (the original is trained together with the assignment of one budget, and weighs samples by
it); form and training are those of the correctors, with their multiple of the log-odds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from offramp.arrays import (
    AnyArray,
    Array,
    as_tensor,
    clipped,
    float32,
    float64,
    namespace,
    sigmoid,
    top_indices,
    values_at,
)
from offramp.costs import mean_costs
from offramp.errors import LedgerError
from offramp.scorers import History, Scorer
from offramp.scorers.base import PreparedScorer, Scoring
from offramp.scorers.score_networks import (
    PARAMETERS,
    ExitNetworks,
    SmallNetworks,
    TopScorer,
    TopView,
    check_counts,
    check_k,
    networks_at,
)
from offramp.targets import correctness

PRICES = tuple(np.logspace(-1.7, 0.7, 12).tolist())
"""Accuracy for the cost of the whole network: from 0.02, nearly free, to 5, hardly affordable."""


@dataclass
class Gates(TopScorer):
    """A gate per exit and price; all of a price minimise the expected error and cost together.

    A sample leaves at exit m with the probability that gate m opens and none before it did. So
    every gate is trained for what the later ones make of the samples that it lets through. Those
    learn nothing from samples that do not get there: at a high price the first gates may open for
    all before the later ones are any good. `BreakEven`, learned backwards, avoids that. The score
    is the number of prices, counted softly, at which the gates of an exit open.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        history: Also look at the probabilities of those classes at every exit so far.
        hidden: Hidden units per price.
        epochs: Passes over held_out.
        seed: Of the initial weights; the order of the samples is always the same.

    Attributes:
        hidden_weights_: `[M-1, D, 12 x hidden]`, zero-padded.
        hidden_biases_: `[M-1, 12 x hidden]`.
        output_weights_: `[M-1, 12, hidden]`.
        output_biases_: `[M-1, 12]`.
        log_odds_weights_: `[M-1, 12]`, how much of the answer's log-odds is added.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(Gates(epochs=1)).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        (300,)
    """

    k: int | Literal["all"] | None = None
    history: bool = False
    hidden: int = 16
    epochs: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        check_k(self.k)
        check_counts(hidden=self.hidden, epochs=self.epochs)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products for all prices."""
        width = self.view.width(exit_index, num_classes)
        return (width + 1) * self.hidden * len(PRICES)

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """At how many of the prices to stop, counted softly."""
        outputs = networks_at(self, exit_index, num_classes)
        return lambda history: sigmoid(outputs(history)).sum(axis=1)

    @property
    def _outputs(self) -> int:
        """A gate per price."""
        return len(PRICES)

    def _train_seeds(
        self, history: History, labels: Array, costs: Array, seeds: Sequence[int]
    ) -> Any:  # noqa: ANN401 - of torch
        """Parameters with the gates of one seed after those of another."""
        from offramp.scorers.network_training import Features, initial_parameters, train_networks

        wrong = (~_correct(history, labels)).T[..., None].astype(np.float32)  # [M, N, 1]
        means, prices = mean_costs(costs), np.tile(PRICES, len(seeds))
        paid = ((means / means[-1])[:, None, None] * prices).astype(np.float32)  # [M, 1, S]
        exits = range(history.exit_index)
        inputs = [self.view.width(exit_index, history.num_classes) for exit_index in exits]
        each = [seed * 1000 + number for seed in seeds for number in range(len(PRICES))]
        parameters = initial_parameters(inputs, self.hidden, each)
        error, price = as_tensor(wrong), as_tensor(paid)

        def loss_of(odds: AnyArray, rows: AnyArray) -> AnyArray:
            return (leaving(odds.sigmoid()) * (error[:, rows] + price)).sum()

        features = Features(self.view, history, exits, inputs[-1])
        train_networks(parameters.block(exits, features.width), features, loss_of, self.epochs)
        return parameters


def leaving(opened: AnyArray) -> AnyArray:
    """Probabilities of leaving at each exit, `[M, n, S]`, where gates open with `[M-1, n, S]`.

    Example:
        >>> leaving(np.full((2, 1, 1), 0.5)).flatten()
        array([0.5 , 0.25, 0.25])
    """
    xp = namespace(opened)
    everyone = xp.ones_like(opened[:1])
    there = xp.concat([everyone, (1 - opened).cumprod(axis=0)])
    return there * xp.concat([opened, everyone])


def _correct(history: History, labels: Array) -> Array:
    """Whether each exit is right, bool `[N, M]`."""
    predictions = np.concatenate([part.predictions for _, part in history.chunks()])
    return correctness(predictions, labels)


APART = 1e-6


@dataclass
class PerformanceControl(Scorer):
    """The accuracy of held_out samples that were as confident at this exit.

    Args:
        bins: Of equally many samples.

    Attributes:
        confidences_: `[M-1, bins]`, mean log-odds in each bin, growing.
        accuracies_: `[M-1, bins]`.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(PerformanceControl()).fit(splits["held_out"])
        >>> np.unique(policy.tune(splits["val"], "shared").at(budget=0.5).thresholds).shape
        (2,)
    """

    bins: int = 20
    needs = "confidences"
    learned = ("confidences_", "accuracies_")

    def __post_init__(self) -> None:
        check_counts(bins=self.bins)

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Draw the reliability diagram of every exit but the last."""
        if len(labels) < self.bins:
            raise LedgerError(f"{self.bins} bins need as many samples, got {len(labels)}")
        odds = np.concatenate(
            [
                np.stack([part.until(m).log_odds for m in range(part.exit_index)], axis=1)
                for _, part in history.chunks()
            ]
        )
        right = _correct(history, labels)[:, :-1].astype(np.float32)
        order = np.array_split(odds.argsort(axis=0, kind="stable"), self.bins)
        means = [
            [np.take_along_axis(values, rows, axis=0).mean(axis=0) for rows in order]
            for values in (odds, right)
        ]
        self.confidences_, self.accuracies_ = (np.stack(part, axis=1) for part in means)
        return self

    def score_at(self, history: History) -> AnyArray:
        """The accuracy to be expected, `[n]`, and next to nothing of the log-odds."""
        self.check_fitted()
        odds = history.log_odds
        return self._accuracy(odds, history.exit_index) + APART * odds

    def probability(self, scores: AnyArray) -> AnyArray:
        """The accuracy itself."""
        return clipped(scores, 0, 1)

    def _accuracy(self, odds: AnyArray, exit_index: int) -> AnyArray:
        """Linear between the middles of the bins, constant beyond the outer ones."""
        middles, heights = self.confidences_[exit_index], self.accuracies_[exit_index]
        if len(middles) == 1:
            return heights
        right = clipped(namespace(odds).searchsorted(middles, odds), 1, len(middles) - 1)
        low, below = middles[right - 1], heights[right - 1]
        share = clipped((odds - low) / clipped(middles[right] - low, 1e-12, math.inf), 0, 1)
        return below + share * (heights[right] - below)


MEASURES = 2  # entropy and votes


@dataclass
class ExitUtility(PreparedScorer):
    """Probability of being right, from confidence, agreement and the scores of earlier exits.

    Args:
        k: How many of the most probable classes to look at; None means min(5, K), `"all"` all.
        hidden: Hidden units.
        epochs: Passes over held_out.
        seed: Of the initial weights; the order of the samples is always the same.

    Attributes:
        hidden_weights_: `[M-1, D, hidden]`, zero-padded; D is k + 2 + (M-2).
        hidden_biases_: `[M-1, hidden]`.
        output_weights_: `[M-1, hidden]`.
        output_biases_: `[M-1]`.
        log_odds_weights_: `[M-1]`, how much of the answer's log-odds is added.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(ExitUtility(epochs=1)).fit(splits["held_out"])
        >>> policy.tune(splits["val"], "assigned").at(budget=0.5).decide(splits["test"]).shape
        (300,)
    """

    k: int | Literal["all"] | None = None
    hidden: int = 128
    epochs: int = 30
    seed: int = 0
    learned = PARAMETERS

    def __post_init__(self) -> None:
        check_k(self.k)
        check_counts(hidden=self.hidden, epochs=self.epochs)

    @property
    def view(self) -> "_UtilityView":
        """What the networks see."""
        return _UtilityView(self.k, history=True, networks=self)

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Train one small network per exit but the last, first to last."""
        from offramp.scorers.network_training import (
            Features,
            cross_entropy_with,
            initial_parameters,
            train_networks,
        )

        exits = range(history.exit_index)
        inputs = [self.view.width(exit_index, history.num_classes) for exit_index in exits]
        parameters = initial_parameters(inputs, self.hidden, [self.seed])
        right = _correct(history, labels).T.astype(np.float32)
        for exit_index in exits:
            only = range(exit_index, exit_index + 1)
            features = Features(self.view, history, only, inputs[exit_index])
            block = parameters.block(only, features.width)
            loss = cross_entropy_with(right[only.start : only.stop], None)
            train_networks(block, features, loss, self.epochs)
            # What is trained at one exit is what the next one reads.
            self.hidden_weights_, self.hidden_biases_, *output = parameters.of_seed(0, outputs=1)
            self.output_weights_, self.output_biases_, self.log_odds_weights_ = output
        return self

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """Log-odds of being right."""
        return networks_at(self, exit_index, num_classes)

    def probability(self, scores: AnyArray) -> AnyArray:
        """The probability of being right."""
        return sigmoid(scores)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Two matrix products for this exit and, since their scores are read, all before it."""
        widths = [self.view.width(exit_index, num_classes) for exit_index in range(exit_index + 1)]
        return (sum(widths) + len(widths)) * self.hidden


@dataclass(frozen=True)
class _UtilityView(TopView):
    """Top probabilities, entropy, votes, and the probabilities that earlier exits came to."""

    networks: SmallNetworks

    def width(self, exit_index: int, num_classes: int) -> int:
        """How many numbers are seen at an exit."""
        return self.top_k(num_classes) + MEASURES + exit_index

    def inputs(self, history: History) -> AnyArray:
        """What is seen at the last of the exits so far, `[n, inputs]`."""
        _ = history.log_probs, history.predictions  # once for all exits: `until` hands them on
        xp = namespace(history.answers)
        scores: list[AnyArray] = []
        for exit_index in range(history.exit_index):
            so_far = history.until(exit_index)
            seen = xp.concat([self._measures(so_far), *scores], axis=1)
            network = ExitNetworks.of(self.networks, exit_index, history.num_classes)
            found = network.respond(float64(seen), float64(so_far.log_odds))
            scores.append(sigmoid(found)[:, None])
        return xp.concat([self._measures(history), *scores], axis=1)

    def _measures(self, history: History) -> AnyArray:
        """Top probabilities, entropy and votes, `[n, k + 2]`; the last two lie in [0, 1]."""
        log_prob, classes = history.log_prob, history.num_classes
        xp, probs = namespace(log_prob), namespace(log_prob).exp(log_prob)
        top = values_at(probs, top_indices(log_prob, self.top_k(classes)))
        entropy = -(probs * log_prob).sum(axis=1, keepdims=True) / math.log(classes)
        votes = float32(history.predictions == history.predictions[:, -1:])
        return xp.concat([top, entropy, votes.mean(axis=1, keepdims=True)], axis=1)
