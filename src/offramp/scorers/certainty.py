"""Scorers that read how sure the current answer is: max probability, entropy, margin.

Each keeps the order of its textbook value on a log scale. In float32 many samples share a max
probability of exactly 1, an entropy of 0 or a margin of 1; their log-odds stay apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.component import current_exit_only
from offramp.ledger import History
from offramp.ledger.history import split_top
from offramp.scorers.base import Scorer


def certainty(answer: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of the most probable class and minus the log-entropy, `[n, K]` -> `[n]` each.

    With d the distance of each other logit from the largest, and S = sum(exp(-d)), the entropy
    is log(1 + S) + sum(d exp(-d)) / (1 + S): no difference of near-equal numbers.

    Example:
        >>> certainty(torch.tensor([[2.0, 0.0], [200.0, 0.0]]))
        (tensor([  2., 200.]), tensor([  1.0069, 194.6967]))
    """
    top, _, rest = split_top(answer)
    distance = top - rest  # [n, K], infinite at the top class itself
    log_sum = (-distance).logsumexp(dim=-1)
    log_weighted = torch.where(distance.isinf(), -torch.inf, distance.log() - distance).logsumexp(
        dim=-1
    )
    log_total = torch.nn.functional.softplus(log_sum)  # log(1 + S)
    # Below e^-15, log(1 + S) equals S in float32, and its logarithm is known exactly.
    first = torch.where(log_sum < -15, log_sum, log_total.log())
    return -log_sum, -torch.logaddexp(first, log_weighted - log_total)


@dataclass
class MaxProbability(Scorer):
    """Stop when the most probable class is probable enough: the usual rule.

    Example:
        >>> scores = torch.tensor([0.0, 2.0])  # log-odds
        >>> MaxProbability().probability(scores)
        tensor([0.5000, 0.8808])
    """

    needs = "confidences"

    @current_exit_only
    def score_at(self, history: History) -> Tensor:
        """Log-odds of the most probable class, or of being right as stated, `[n]`."""
        return history.log_odds

    def probability(self, scores: Tensor) -> Tensor:
        """The max probability itself."""
        return scores.sigmoid()


@dataclass
class Entropy(Scorer):
    """Stop when the entropy of the answer is low; the score is minus its logarithm.

    Example:
        >>> history = History(*[torch.tensor([[[0.0, 0.0]], [[200.0, 0.0]]])] * 2)
        >>> Entropy().score_at(history)
        tensor([  0.3665, 194.6967])
    """

    @current_exit_only
    def score_at(self, history: History) -> Tensor:
        """Minus log-entropy, `[n]`."""
        return certainty(history.answer)[1]


@dataclass
class Margin(Scorer):
    """Stop when the two most probable classes are far apart; the score is the gap's log-odds.

    Example:
        >>> history = History(*[torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]], [[90.0, 0.0]]])] * 2)
        >>> Margin().score_at(history)
        tensor([-88.0297,   1.1614,  89.3069])
    """

    @current_exit_only
    def score_at(self, history: History) -> Tensor:
        """log(g / (1 - g)) for the gap g = p1 - p2, `[n]`."""
        top, _, rest = split_top(history.answer)
        # Two equal classes have a gap of zero, whose logarithm is no number to put thresholds by.
        lead = (top[:, 0] - rest.amax(dim=-1)).clamp_min(torch.finfo(torch.float32).tiny)
        log_sum = (rest - top).logsumexp(dim=-1)
        return (-torch.expm1(-lead)).log() - torch.logaddexp(log_sum, -lead)


@dataclass
class Patience(Scorer):
    """The number of exits in a row, up to this one, that predict the current class.

    Scores are small whole numbers, so thresholds can only follow a budget coarsely.

    Example:
        >>> import torch
        >>> answers = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]])
        >>> Patience().score_at(History(answers, answers))
        tensor([2.])
    """

    needs = "answers"

    def score_at(self, history: History) -> Tensor:
        """Length of the current run of equal predictions, `[n]`."""
        other = history.predictions != history.predictions[:, -1:]
        # Sums and not products, since ONNX knows no running product.
        return (other.flip(1).int().cumsum(dim=1) == 0).sum(dim=1).float()
