"""How probable it is that an answer is right: fitted apart from the decision when to stop.

A stop score is no such probability: the corrector's is high for a sample that no exit will get
right. But it decides which samples stop, so that for these samples the answer alone would
misjudge. Here a logistic regression per exit maps how sure the answer is (its log-odds and its
entropy) and the stop score to the probability of being right. All of them are there when a sample
leaves, so that nothing runs that would not run anyway.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from offramp.answers import Answer, CurrentExit, crossfit_chunks
from offramp.arrays import AnyArray, Array, float32, float64, namespace, sigmoid
from offramp.component import Component
from offramp.decide import Decider
from offramp.ledger import Ledger
from offramp.ledger.chunks import folds
from offramp.scorers import History, Scorer
from offramp.scorers.certainty import certainty
from offramp.scorers.ridge import fit_logistic

Part: TypeAlias = tuple[Array | slice, Array, Array]

RIDGE = 1e-2  # on weights of standardised features: holds them where few answers are wrong
FOLDS = 2  # for scorers, whose fits take longer than the fits of answers


@dataclass
class Confidence(Component):
    """The calibrated probability that an answer is right.

    `weights_` `[M, 4]` float64 belong to the log-odds, to minus the log-entropy, to the stop
    score and to a constant; `plain_weights_` `[M, 3]` go without the score, where there is none.
    """

    learned = ("weights_", "plain_weights_")

    def fit(self, parts: Iterable[Part], labels: Array) -> Self:
        """Learn two logistic regressions per exit.

        Each part holds positions of samples, their answers `[n, M, K]` and scores `[n, M-1]`, made
        by an answer and a scorer that have not seen their labels; all parts cover `labels [N]`.
        """
        inputs, targets = None, None
        for rows, answers, scores in parts:
            samples, exits, classes = answers.shape
            if inputs is None or targets is None:
                inputs = np.zeros((len(labels), exits, 3))
                targets = np.empty((len(labels), exits), bool)
            features = _certainty_of(answers.reshape(-1, classes))
            inputs[rows, :, :2] = features.reshape(samples, exits, 2)
            inputs[rows, :-1, 2] = scores  # none at the last exit
            targets[rows] = answers.argmax(2) == labels[rows, None]
        assert inputs is not None and targets is not None
        by_exit = [(inputs[:, m], targets[:, m]) for m in range(inputs.shape[1])]
        full = [_logistic(features, right) for features, right in by_exit]
        plain = [_logistic(features[:, :2], right) for features, right in by_exit]
        self.weights_, self.plain_weights_ = np.stack(full), np.stack(plain)
        return self

    def probability(
        self, answers: AnyArray, exits: AnyArray, scores: AnyArray | None = None
    ) -> AnyArray:
        """The probability that each answer `[n, K]` at its exit `[n]` is right: `[n]` float32.

        Stop scores `[n]` are not finite where there are none, as at the last exit.
        """
        self.check_fitted()
        xp, features = namespace(answers), _certainty_of(answers)
        plain = self.plain_weights_[exits]
        odds = xp.sum(features * plain[:, :2], axis=1) + plain[:, 2]
        if scores is not None:
            weights, known = self.weights_[exits], xp.isfinite(scores)
            scored = xp.sum(features * weights[:, :2], axis=1) + weights[:, 3]
            scored = scored + weights[:, 2] * xp.where(known, float64(scores), 0.0)
            odds = xp.where(known, scored, odds)
        return float32(sigmoid(odds))


def fit_confidence(
    answer: Answer, scorer: Scorer, ledger: Ledger, history: History | None = None
) -> Confidence:
    """Fit on answers and scores that have not seen the labels of the samples they are for.

    Answer and scorer are refitted fold by fold if they learn. `history` holds all exits of the
    held_out ledger with cross-fitted answers; it is needed where the scorer learns.
    """
    parts: Iterator[Part]
    if history is None:
        decider = Decider(answer, scorer)
        parts = (
            (rows, answers, _scores(decider, History(float32(ledger.logits[rows]), answers)))
            for rows, answers in crossfit_chunks(answer, ledger)
        )
    else:
        scores = crossfit_scores(scorer, history, ledger)
        parts = ((rows, part.answers, scores[rows]) for rows, part in history.chunks())
    return Confidence().fit(parts, ledger.labels)


def crossfit_scores(scorer: Scorer, history: History, ledger: Ledger) -> Array:
    """Scores `[N, M-1]` of every sample by a copy of `scorer` that was fitted without it.

    A copy that was fitted on fewer samples may score lower or higher throughout. So its scores are
    brought to the mean and the spread of the scores of `scorer` itself.
    """
    labels, costs = ledger.labels, ledger.cumulative_costs
    own = _chunked_scores(scorer, history)
    scores = np.empty_like(own)
    for rest, fold in folds(len(history), FOLDS, ledger.group_numbers):
        paid = costs if costs.ndim == 1 else costs[rest]
        fitted = scorer.clone().fit(history.among(rest), labels[rest], paid)
        found = _chunked_scores(fitted, history.among(fold))
        spread = np.maximum(found.std(axis=0), 1e-12)
        scores[fold] = (found - found.mean(axis=0)) / spread * own.std(axis=0) + own.mean(axis=0)
    return scores


def _chunked_scores(scorer: Scorer, history: History) -> Array:
    decider = Decider(CurrentExit(), scorer)
    return np.concatenate([_scores(decider, part) for _, part in history.chunks()])


def _scores(decider: Decider, history: History) -> Array:
    """`[n, M-1]`: at every exit but the last."""
    found: Array = decider.scores(history)[:, :-1]
    return found


def _certainty_of(answers: AnyArray) -> AnyArray:
    """Log-odds of the answered class and minus the log-entropy, `[n, K]` -> `[n, 2]`."""
    return float64(namespace(answers).stack(certainty(answers), axis=1))


def _logistic(features: Array, right: Array) -> Array:
    """Weights of `[N, F]` features and a constant, `[F+1]`, of the largest likelihood.

    The targets are Platt's: not quite one and zero, so that an exit that is always right on
    held_out is not taken to be certain.
    """
    centre, scale = features.mean(axis=0), features.std(axis=0) + 1e-12
    inputs = np.concatenate([(features - centre) / scale, np.ones((len(features), 1))], axis=1)
    hits = right.sum()
    targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))
    ridge = np.array([RIDGE] * features.shape[1] + [0.0])
    found = fit_logistic(inputs, targets, ridge)
    slopes = found[:-1] / scale
    return np.append(slopes, found[-1] - slopes @ centre)
