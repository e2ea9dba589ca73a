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

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp.costs import mean_costs
from offramp.errors import LedgerError
from offramp.scorers import History, Scorer
from offramp.scorers.base import PreparedScorer, Scoring
from offramp.scorers.score_networks import (
    PARAMETERS,
    ExitNetworks,
    Features,
    Parameters,
    SmallNetworks,
    TopScorer,
    TopView,
    check_counts,
    check_k,
    initial_parameters,
    networks_at,
    train_networks,
)
from offramp.targets import correctness

PRICES = tuple(torch.logspace(-1.7, 0.7, 12, dtype=torch.float64).tolist())
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
        torch.Size([300])
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
        return lambda history: outputs(history).sigmoid().sum(dim=1)

    def _train_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        """Parameters with the gates of one seed after those of another."""
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        correct, means = correctness(predictions, labels).float(), mean_costs(costs)
        exits, prices = range(history.exit_index), torch.tensor(PRICES).float().repeat(len(seeds))
        inputs = [self.view.width(exit_index, history.answers.shape[2]) for exit_index in exits]
        each = [seed * 1000 + number for seed in seeds for number in range(len(PRICES))]
        parameters = initial_parameters(inputs, self.hidden, each)
        paid = ((means / means[-1]).float()[:, None] * prices)[:, None]  # [M, 1, S]

        def loss_of(odds: Tensor, rows: Tensor) -> Tensor:
            lost = 1 - correct[rows].T[..., None] + paid  # [M, n, S]
            return (leaving(odds) * lost).sum()

        features = Features(self.view, history, exits, inputs[-1])
        train_networks(parameters.block(exits, features.width), features, loss_of, self.epochs)
        return parameters

    def _keep(self, parameters: Parameters, index: int) -> Self:
        """Take over the weights of the seed with this number."""
        prices = len(PRICES)
        mine = slice(index * prices, (index + 1) * prices)
        units = slice(index * prices * self.hidden, (index + 1) * prices * self.hidden)
        self.hidden_weights_ = parameters.hidden_weights[:, :, units].clone()
        self.hidden_biases_ = parameters.hidden_biases[:, 0, units].clone()
        self.output_weights_ = parameters.output_weights[:, 0, mine].clone()
        self.output_biases_ = parameters.output_biases[:, 0, mine].clone()
        self.log_odds_weights_ = parameters.log_odds_weights[:, 0, mine].clone()
        return self


def leaving(odds: Tensor) -> Tensor:
    """Probabilities of leaving at each exit, `[M, n, S]`, from log-odds of gates `[M-1, n, S]`.

    Example:
        >>> leaving(torch.zeros(2, 1, 1)).flatten()
        tensor([0.5000, 0.2500, 0.2500])
    """
    opened = odds.sigmoid()
    there = torch.cat([torch.ones_like(opened[:1]), (1 - opened).cumprod(dim=0)])
    return there * torch.cat([opened, torch.ones_like(opened[:1])])


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
        >>> policy.tune(splits["val"], "shared").at(budget=0.5).thresholds.unique().shape
        torch.Size([2])
    """

    bins: int = 20
    needs = "confidences"
    learned = ("confidences_", "accuracies_")

    def __post_init__(self) -> None:
        check_counts(bins=self.bins)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Draw the reliability diagram of every exit but the last."""
        if len(labels) < self.bins:
            raise LedgerError(f"{self.bins} bins need as many samples, got {len(labels)}")
        odds = torch.cat(
            [
                torch.stack([part.until(m).log_odds for m in range(part.exit_index)], 1)
                for _, part in history.chunks()
            ]
        )
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        right = correctness(predictions, labels)[:, :-1].float()
        order = odds.argsort(dim=0).tensor_split(self.bins)
        means = [
            [values.gather(0, rows).mean(dim=0) for rows in order] for values in (odds, right)
        ]
        self.confidences_, self.accuracies_ = (torch.stack(part, dim=1) for part in means)
        return self

    def score_at(self, history: History) -> Tensor:
        """The accuracy to be expected, `[n]`, and next to nothing of the log-odds."""
        self.check_fitted()
        odds = history.log_odds
        return self._accuracy(odds, history.exit_index) + APART * odds

    def probability(self, scores: Tensor) -> Tensor:
        """The accuracy itself."""
        return scores.clamp(0, 1)

    def _accuracy(self, odds: Tensor, exit_index: int) -> Tensor:
        """Linear between the middles of the bins, constant beyond the outer ones."""
        middles, heights = self.confidences_[exit_index], self.accuracies_[exit_index]
        if len(middles) == 1:
            return heights.expand(len(odds))
        right = torch.searchsorted(middles, odds.contiguous()).clamp(1, len(middles) - 1)
        width = (middles[right] - middles[right - 1]).clamp_min(1e-12)
        share = ((odds - middles[right - 1]) / width).clamp(0, 1)
        return torch.lerp(heights[right - 1], heights[right], share)


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
        torch.Size([300])
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

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Train one small network per exit but the last, first to last."""
        exits = range(history.exit_index)
        inputs = [self.view.width(exit_index, history.answers.shape[2]) for exit_index in exits]
        parameters = initial_parameters(inputs, self.hidden, [self.seed])
        # Views, not copies: what is trained at one exit is what the next one reads.
        self.hidden_weights_ = parameters.hidden_weights
        self.hidden_biases_ = parameters.hidden_biases[:, 0]
        self.output_weights_ = parameters.output_weights[:, 0, 0]
        self.output_biases_ = parameters.output_biases[:, 0, 0]
        self.log_odds_weights_ = parameters.log_odds_weights[:, 0, 0]
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        right = correctness(predictions, labels).float()
        for exit_index in exits:
            only = range(exit_index, exit_index + 1)
            features = Features(self.view, history, only, inputs[exit_index])
            block = parameters.block(only, features.width)

            def loss_of(
                logits: Tensor, rows: Tensor, wanted: Tensor = right[:, exit_index]
            ) -> Tensor:
                return binary_cross_entropy_with_logits(
                    logits[0, :, 0], wanted[rows], reduction="sum"
                )

            train_networks(block, features, loss_of, self.epochs)
        for name in self.learned:
            setattr(self, name, getattr(self, name).clone())
        return self

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        """Log-odds of being right."""
        return networks_at(self, exit_index, num_classes)

    def probability(self, scores: Tensor) -> Tensor:
        """The probability of being right."""
        return scores.sigmoid()

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

    def inputs(self, history: History) -> Tensor:
        """What is seen at the last of the exits so far, `[n, inputs]`."""
        _ = history.log_probs, history.predictions  # once for all exits: `until` hands them on
        scores: list[Tensor] = []
        for exit_index in range(history.exit_index):
            so_far = history.until(exit_index)
            seen = torch.cat([self._measures(so_far), *scores], dim=1)
            network = ExitNetworks.of(self.networks, exit_index, history.num_classes)
            logits = network.respond(seen, so_far.log_odds)
            scores.append(logits.sigmoid().unsqueeze(1))
        return torch.cat([self._measures(history), *scores], dim=1)

    def _measures(self, history: History) -> Tensor:
        """Top probabilities, entropy and votes, `[n, k + 2]`; the last two lie in [0, 1]."""
        log_prob, classes = history.log_prob, history.answers.shape[2]
        top = log_prob.topk(self.top_k(classes), dim=1).values.exp()
        entropy = -(log_prob.exp() * log_prob).sum(dim=1, keepdim=True) / log(classes)
        votes = (history.predictions == history.predictions[:, -1:]).float()
        return torch.cat([top, entropy, votes.mean(dim=1, keepdim=True)], dim=1)
