"""Scorers that read how sure the current answer is: max probability, entropy, margin.

Each keeps the order of its textbook value on a log scale. In float32 many samples share a max
probability of exactly 1, an entropy of 0 or a margin of 1; their log-odds stay apart.
"""

import math
from dataclasses import dataclass

import numpy as np

from offramp.arrays import AnyArray, float32, logsumexp, namespace, sigmoid, softplus
from offramp.component import current_exit_only
from offramp.ledger import History
from offramp.ledger.history import split_top
from offramp.scorers.base import Scorer

TINY = float(np.finfo(np.float32).tiny)


def certainty(answer: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Log-odds of the most probable class and minus the log-entropy, `[n, K]` -> `[n]` each.

    With d the distance of each other logit from the largest, and S = sum(exp(-d)), the entropy
    is log(1 + S) + sum(d exp(-d)) / (1 + S): no difference of near-equal numbers.

    Example:
        >>> odds, entropy = certainty(np.array([[2.0, 0.0], [200.0, 0.0]]))
        >>> odds, entropy.round(2)
        (array([  2., 200.], dtype=float32), array([  1.01, 194.7 ], dtype=float32))
    """
    top, _, rest = split_top(answer)
    xp, distance = namespace(rest), top - rest  # [n, K], infinite at the top class itself
    log_sum = logsumexp(-distance)
    with np.errstate(divide="ignore", invalid="ignore"):
        weighted = xp.where(xp.isinf(distance), -math.inf, xp.log(distance) - distance)
        log_total = softplus(log_sum)  # log(1 + S)
        # Below e^-15, log(1 + S) equals S in float32, and its logarithm is known exactly.
        first = xp.where(log_sum < -15, log_sum, xp.log(log_total))
        entropy = xp.logaddexp(first, logsumexp(weighted) - log_total)
    return -log_sum, -entropy


@dataclass
class MaxProbability(Scorer):
    """Stop when the most probable class is probable enough: the usual rule.

    Example:
        >>> scores = np.array([0.0, 2.0])  # log-odds
        >>> MaxProbability().probability(scores)
        array([0.5       , 0.88079708])
    """

    needs = "confidences"

    @current_exit_only
    def score_at(self, history: History) -> AnyArray:
        """Log-odds of the most probable class, or of being right as stated, `[n]`."""
        return history.log_odds

    def probability(self, scores: AnyArray) -> AnyArray:
        """The max probability itself."""
        return sigmoid(scores)


@dataclass
class Entropy(Scorer):
    """Stop when the entropy of the answer is low; the score is minus its logarithm.

    Example:
        >>> history = History(*[np.array([[[0.0, 0.0]], [[200.0, 0.0]]])] * 2)
        >>> Entropy().score_at(history).round(2)
        array([  0.37, 194.7 ], dtype=float32)
    """

    @current_exit_only
    def score_at(self, history: History) -> AnyArray:
        """Minus log-entropy, `[n]`."""
        return certainty(history.answer)[1]


@dataclass
class Margin(Scorer):
    """Stop when the two most probable classes are far apart; the score is the gap's log-odds.

    Example:
        >>> history = History(*[np.array([[[0.0, 0.0]], [[2.0, 0.0]], [[90.0, 0.0]]])] * 2)
        >>> Margin().score_at(history).round(3)
        array([-88.03 ,   1.161,  89.307], dtype=float32)
    """

    @current_exit_only
    def score_at(self, history: History) -> AnyArray:
        """log(g / (1 - g)) for the gap g = p1 - p2, `[n]`."""
        top, _, rest = split_top(history.answer)
        xp, lead = namespace(rest), (top - namespace(rest).max(rest, axis=-1, keepdims=True))[:, 0]
        # Two equal classes have a gap of zero, whose logarithm is no number to put thresholds by.
        lead = xp.where(lead < TINY, TINY, lead)
        return xp.log(-xp.expm1(-lead)) - xp.logaddexp(logsumexp(rest - top), -lead)


@dataclass
class Patience(Scorer):
    """The number of exits in a row, up to this one, that predict the current class.

    Scores are small whole numbers, so thresholds can only follow a budget coarsely.

    Example:
        >>> answers = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]])
        >>> Patience().score_at(History(answers, answers))
        array([2.], dtype=float32)
    """

    needs = "answers"

    def score_at(self, history: History) -> AnyArray:
        """Length of the current run of equal predictions, `[n]`."""
        xp, predictions = namespace(history.predictions), history.predictions
        other = xp.flip(predictions != predictions[:, -1:], axis=1)  # the latest first
        return float32((other.cumsum(1) == 0).sum(1))


def plainest(history_type: type[History]) -> Scorer:
    """`MaxProbability`, or `Patience` where no stage states a confidence."""
    plain = MaxProbability()
    return plain if plain.can_read(history_type) else Patience()
