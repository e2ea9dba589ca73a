"""The calibrated chance of being right, from a few hundred samples.

What a model states about itself is no probability: log-probabilities of one model end at one half,
and those of another pile up at one. So a confidence is read by its rank among the confidences of
the same stage, as a normal score. A logistic regression of right or wrong on the ranks of all
stages so far, and on which of them agree, is then nearly free of outliers and of units.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from offramp.arrays import AnyArray, Array, clipped, float32, float64, namespace, sigmoid
from offramp.component import Component
from offramp.ledger import AnswerHistory, History
from offramp.ledger.history import log_odds
from offramp.scorers.base import Scorer
from offramp.scorers.ridge import asked_after, fit_logistic
from offramp.targets import correctness

PENALTY = 3.0  # in samples, on every weight but the constant: ranks are of the order of one
KNOTS = 65  # between which ranks are interpolated
FREE = 1e-3  # keeps the constant finite where all are right


@dataclass
class Chance(Component):
    """The chance that the answer of one stage is right, given all stages that are read.

    Args:
        of: The stage; the last one that is read by default.

    Attributes:
        knots_: `[M, 65]` float64, log-odds of each stage by growing rank.
        ranks_: `[M, 65]` float64, their normal scores.
        weights_: `[D]` float64, the constant last.

    Example:
        >>> from offramp import synthetic
        >>> held_out = synthetic.ledgers(seed=0, exits=3)["held_out"]
        >>> chance = Chance(of=1).fit(held_out.history(), held_out.heads_correct[:, 1])
        >>> found = sigmoid(chance.odds(held_out.history()))
        >>> bool(abs(found.mean() - held_out.heads_correct[:, 1].mean()) < 0.01)
        True
    """

    of: int = -1
    learned = ("knots_", "ranks_", "weights_")

    def fit(self, history: History, right: Array) -> Self:
        """Learn from whether the stage's answer is right, bool `[n]`."""
        pairs = [_knots(column) for column in np.asarray(stage_odds(history), np.float64).T]
        self.knots_, self.ranks_ = (np.stack(each) for each in zip(*pairs, strict=True))
        design = np.concatenate([self._evidence(history), np.ones((len(history), 1))], axis=1)
        penalties = np.append(np.full(design.shape[1] - 1, PENALTY), FREE)
        self.weights_ = fit_logistic(design, float64(np.asarray(right)), penalties)
        return self

    def odds(self, history: History) -> AnyArray:
        """Log-odds of being right, float64 `[n]`."""
        # Row by row, so that what a sample gets does not depend on the samples beside it.
        xp, evidence = namespace(history.answers), self._evidence(history)
        return xp.sum(evidence * self.weights_[:-1], axis=1) + self.weights_[-1]

    def _evidence(self, history: History) -> AnyArray:
        """`[n, D]`: ranks of all stages, which others agree with this one, and its features."""
        xp, said = namespace(history.answers), history.predictions
        odds, of = float64(stage_odds(history)), range(said.shape[1])[self.of]
        columns = [_interpolated(odds[:, m], *pair) for m, pair in enumerate(self._curves)]
        columns += [float64(said[:, m] == said[:, of]) for m in range(said.shape[1]) if m != of]
        found = xp.stack(columns, axis=1)
        if isinstance(history, AnswerHistory):
            found = xp.concat([found, history.features[:, of]], axis=1)
        return found

    @property
    def _curves(self) -> list[tuple[Array, Array]]:
        return list(zip(self.knots_, self.ranks_, strict=True))


@dataclass
class CalibratedConfidence(Scorer):
    """Stop when the calibrated chance that the current answer is right is high enough.

    The chance is learned from a few hundred samples: at each stage from how sure the stages so far
    are, by rank, from which of them agree with it, and from its features.

    Attributes:
        knots_: `[M-1, M-1, 65]`, see `Chance`; row m for stage m.
        ranks_: `[M-1, M-1, 65]`.
        weights_: `[M-1, D]` float64, zero beyond what a stage reads, the constant last.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> policy = Policy(CalibratedConfidence()).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        (300,)
    """

    needs = "confidences"
    learned = ("knots_", "ranks_", "weights_")

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """One regression per stage but the last."""
        right = correctness(history.predictions, labels)
        found = [_fitted(history, right, m) for m in range(history.exit_index)]
        self.knots_, self.ranks_, self.weights_ = (
            _stacked([getattr(each, name) for each in found]) for name in self.learned
        )
        return self

    def score_at(self, history: History) -> AnyArray:
        """Log-odds of being right, `[n]`."""
        self.check_fitted()
        chance, stages = Chance(), history.exit_index + 1
        for name in ("knots_", "ranks_"):
            setattr(chance, name, getattr(self, name)[stages - 1, :stages])
        weights, width = self.weights_[stages - 1], 2 * stages - 1
        if isinstance(history, AnswerHistory):
            width += history.num_classes - 2
        chance.weights_ = namespace(weights).concat([weights[:width], weights[-1:]])
        return float32(chance.odds(history))

    def probability(self, scores: AnyArray) -> AnyArray:
        """The chance itself."""
        return sigmoid(scores)


def stage_odds(history: History) -> AnyArray:
    """`[n, m+1]`: log-odds of what would be answered at each stage so far, as stated."""
    if isinstance(history, AnswerHistory):
        return history.odds
    stages = range(history.exit_index + 1)
    return history.xp.stack([log_odds(history.answers[:, m]) for m in stages], axis=1)


def _fitted(history: History, right: Array, exit_index: int) -> Chance:
    """The chance at one stage, from the samples that go on after it."""
    rows = asked_after(history, exit_index)
    return Chance().fit(history.until(exit_index).take(rows), right[rows, exit_index])


def _knots(values: Array) -> tuple[Array, Array]:
    """Values by growing rank, and the normal scores of their ranks: `[65]` each."""
    from scipy.special import ndtri  # loading does not need it

    distinct, counts = np.unique(values, return_counts=True)
    normal = ndtri((counts.cumsum() - counts / 2) / len(values))
    kept = np.unique(np.linspace(0, len(distinct) - 1, KNOTS).round().astype(int))
    # One array for all stages: what is missing is beyond the last knot, at its height.
    beyond = np.arange(KNOTS - len(kept)) + 1.0
    knots = np.append(distinct[kept], distinct[-1] + beyond)
    return knots, np.append(normal[kept], np.full(len(beyond), normal[-1]))


def _interpolated(values: AnyArray, knots: AnyArray, heights: AnyArray) -> AnyArray:
    """Heights at values `[n]` between increasing knots; at the ends, the heights of the ends."""
    xp = namespace(values)
    place = clipped(xp.searchsorted(knots, values) - 1, 0, KNOTS - 2)
    low, high = knots[place], knots[place + 1]
    share = clipped((values - low) / (high - low), 0.0, 1.0)
    return heights[place] + share * (heights[place + 1] - heights[place])


def _stacked(parts: list[Array]) -> Array:
    """Arrays of growing shapes in one, zeros beyond each; the last number of a row stays last."""
    if not parts:
        return np.zeros((0, 1))
    found = np.zeros((len(parts), *parts[-1].shape))
    for row, part in zip(found, parts, strict=True):
        if part.ndim == 1:
            row[: len(part) - 1], row[-1] = part[:-1], part[-1]
        else:
            row[: len(part)] = part
    return found
