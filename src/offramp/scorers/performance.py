"""Performance control: stop when samples as confident as this one were right often enough.

After PCEE (Mofakhami et al. 2024): a reliability diagram per exit turns a confidence into the
accuracy of similarly confident samples, and one target accuracy is set for all exits. So it goes
with thresholds `shared`. Where the paper leaves a choice or ours differs: confidence is the max
probability; bins hold equally many held_out samples, between their middles accuracy is linear; and
a millionth of the log-odds keeps samples of equal accuracy apart.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from offramp.errors import LedgerError
from offramp.scorers.confidence import log_odds
from offramp.scorers.scorer import History, Scorer
from offramp.scorers.small_networks import check_counts
from offramp.targets import correctness

__all__ = ["PerformanceControl"]

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
    learned = ("confidences_", "accuracies_")

    def __post_init__(self) -> None:
        check_counts(bins=self.bins)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Draw the reliability diagram of every exit but the last."""
        if len(labels) < self.bins:
            raise LedgerError(f"{self.bins} bins need as many samples, got {len(labels)}")
        odds = torch.cat(
            [
                torch.stack([log_odds(answer) for answer in part.answers[:, :-1].unbind(1)], 1)
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
        odds = log_odds(history.answer)
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
