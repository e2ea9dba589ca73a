"""Is the majority of repeated samples settled? The rules of adaptive consistency.

Aggarwal et al. (2023, arXiv 2305.11860) draw samples of one model until more of them would hardly
change the majority. With v votes for each answer, the shares of the answers have a Beta or
Dirichlet distribution with v + 1 of each; the score is how probable it is that the leading answer
is the most frequent one.
"""

from dataclasses import dataclass

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, as_numpy, float32, namespace, sigmoid
from offramp.ledger import AnswerHistory, History
from offramp.scorers.base import Scorer

NODES = 64  # of the quadrature over the share of the leading answer
SMALLEST = 1e-15  # a chance; beyond it, one more vote for the leader says nothing


@dataclass
class Settled(Scorer):
    """Stop when the majority of the samples so far is probably the majority of all.

    It reads which answers are the same, and no confidences. `MajorityVote` is the answer for it.

    Args:
        rule: `beta` compares the two leading answers, `dirichlet` all of them.

    Example:
        >>> said = np.array([[[0.0, 0], [0.0, 0], [0.0, 2]]])  # a, a, b
        >>> history = AnswerHistory(said, said)
        >>> scorer = Settled()
        >>> scorer.probability(scorer.score_at(history)).round(4)
        array([0.6875], dtype=float32)
    """

    rule: str = "beta"
    needs = "answers"
    counts_votes = True

    def __post_init__(self) -> None:
        check.one_of("rule", self.rule, ("beta", "dirichlet"))

    def score_at(self, history: History) -> AnyArray:
        """Log-odds of the leading answer being the most frequent one, `[n]`."""
        votes, rows = np.unique(_votes(history), axis=0, return_inverse=True)
        chance = _beta if self.rule == "beta" else _dirichlet
        chances = np.array([chance(each) for each in votes])
        odds = np.log(chances.clip(SMALLEST)) - np.log((1 - chances).clip(SMALLEST))
        xp, like = namespace(history.answers), history.answers
        return xp.asarray(float32(odds[rows.reshape(-1)]), **_place(like))

    def probability(self, scores: AnyArray) -> AnyArray:
        """The chance itself."""
        return sigmoid(scores)


def _place(like: AnyArray) -> dict[str, object]:
    return {} if isinstance(like, np.ndarray) else {"device": like.device}


def _votes(history: History) -> Array:
    """`[n, m+1]`: votes of each different answer, falling; zeros after the last."""
    heads = as_numpy(history.logits)
    said = heads[..., 1] if isinstance(history, AnswerHistory) else heads.argmax(-1)
    same = said[:, :, None] == said[:, None, :]
    is_first = same.argmax(axis=2) == np.arange(said.shape[1])
    votes: Array = np.where(is_first, same.sum(axis=2), 0)
    return -np.sort(-votes, axis=1)


def _beta(votes: Array) -> float:
    """The chance that the first of two answers is the more frequent one."""
    from scipy.special import betainc  # loading does not need it

    first, second = votes[0], votes[1] if len(votes) > 1 else 0
    return float(betainc(second + 1, first + 1, 0.5))


def _dirichlet(votes: Array) -> float:
    """The chance that the first of all answers is the most frequent one.

    Shares of a Dirichlet distribution are Gamma variables by their sum: the first one exceeds all
    others. The integral over it is exact up to a polynomial of degree 127.
    """
    from scipy.special import gammainc, roots_genlaguerre

    others = votes[1:][votes[1:] > 0]
    if not len(others):  # one answer: another one, never seen, may be the more frequent
        others = np.zeros(1)
    nodes, weights = roots_genlaguerre(NODES, votes[0])
    below = gammainc(others[:, None] + 1, nodes).prod(axis=0)
    return float((weights * below).sum() / weights.sum())
