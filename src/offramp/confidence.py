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

import torch
from torch import Tensor

from offramp.answers import Answer, crossfit_chunks
from offramp.component import Component
from offramp.ledger import Ledger
from offramp.ledger.chunks import folds
from offramp.replay import exit_scores
from offramp.scorers import History, Scorer
from offramp.scorers.certainty import certainty
from offramp.scorers.ridge import fit_logistic

Part: TypeAlias = tuple[Tensor | slice, Tensor, Tensor]

RIDGE = 1e-2  # on weights of standardised features: holds them where few answers are wrong
FOLDS = 2  # for scorers, whose fits take longer than the fits of answers


@dataclass
class Confidence(Component):
    """The calibrated probability that an answer is right.

    `weights_` `[M, 4]` float64 belong to the log-odds, to minus the log-entropy, to the stop
    score and to a constant; `plain_weights_` `[M, 3]` go without the score, where there is none.
    """

    learned = ("weights_", "plain_weights_")

    def fit(self, parts: Iterable[Part], labels: Tensor) -> Self:
        """Learn two logistic regressions per exit.

        Each part holds positions of samples, their answers `[n, M, K]` and scores `[n, M-1]`, made
        by an answer and a scorer that have not seen their labels; all parts cover `labels [N]`.
        """
        tables: list[tuple[Tensor | slice, Tensor, Tensor]] = []
        for rows, answers, scores in parts:
            features = _certainty_of(answers.flatten(0, 1)).view(*answers.shape[:2], 2)
            ended = torch.cat([scores.double(), torch.zeros(len(scores), 1)], dim=1)
            right = answers.argmax(2) == labels[rows, None]
            tables.append((rows, torch.cat([features, ended[..., None]], dim=2), right))
        order = torch.cat([torch.arange(len(labels))[rows] for rows, _, _ in tables])
        inputs = torch.cat([table for _, table, _ in tables])[order.argsort()]
        targets = torch.cat([right for *_, right in tables])[order.argsort()]
        by_exit = list(zip(inputs.unbind(1), targets.unbind(1), strict=True))
        full = [_logistic(features, right) for features, right in by_exit]
        plain = [_logistic(features[:, :2], right) for features, right in by_exit]
        self.weights_, self.plain_weights_ = torch.stack(full), torch.stack(plain)
        return self

    def probability(self, answers: Tensor, exits: Tensor, scores: Tensor | None = None) -> Tensor:
        """The probability that each answer `[n, K]` at its exit `[n]` is right: `[n]` float32.

        Stop scores `[n]` are not finite where there are none, as at the last exit.
        """
        self.check_fitted()
        features, exits = _certainty_of(answers), exits.long()
        plain = self.plain_weights_[exits]
        logits = (features * plain[:, :2]).sum(1) + plain[:, 2]
        if scores is not None:
            weights, known = self.weights_[exits], scores.isfinite()
            scored = (features * weights[:, :2]).sum(1) + weights[:, 3]
            scored = scored + weights[:, 2] * scores.double().nan_to_num(0, 0, 0)
            logits = torch.where(known, scored, logits)
        return logits.sigmoid().float()


def fit_confidence(
    answer: Answer, scorer: Scorer, ledger: Ledger, history: History | None = None
) -> Confidence:
    """Fit on answers and scores that have not seen the labels of the samples they are for.

    Answer and scorer are refitted fold by fold if they learn. `history` holds all exits of the
    held_out ledger with cross-fitted answers; it is needed where the scorer learns.
    """
    parts: Iterator[Part]
    if history is None:
        crossed = crossfit_chunks(answer, ledger)
        parts = (
            (rows, answers, _exit_scores(scorer, History(ledger.logits[rows].float(), answers)))
            for rows, answers in crossed
        )
    else:
        scores = crossfit_scores(scorer, history, ledger)
        parts = ((rows, part.answers, scores[rows]) for rows, part in history.chunks())
    return Confidence().fit(parts, ledger.labels)


def crossfit_scores(scorer: Scorer, history: History, ledger: Ledger) -> Tensor:
    """Scores `[N, M-1]` of every sample by a copy of `scorer` that was fitted without it.

    A copy that was fitted on fewer samples may score lower or higher throughout. So its scores are
    brought to the mean and the spread of the scores of `scorer` itself.
    """
    labels, costs = ledger.labels, ledger.cumulative_costs
    own = _chunked_scores(scorer, history)
    scores = torch.empty_like(own)
    for rest, fold in folds(len(history), FOLDS, ledger.group_numbers):
        paid = costs if costs.ndim == 1 else costs[rest]
        fitted = scorer.clone().fit(history.take(rest), labels[rest], paid)
        found = _chunked_scores(fitted, history.take(fold))
        spread = found.std(dim=0, correction=0).clamp_min(1e-12)
        scores[fold] = (found - found.mean(0)) / spread * own.std(0, correction=0) + own.mean(0)
    return scores


def _chunked_scores(scorer: Scorer, history: History) -> Tensor:
    return torch.cat([_exit_scores(scorer, part) for _, part in history.chunks()])


@torch.no_grad()
def _exit_scores(scorer: Scorer, history: History) -> Tensor:
    """`[n, M-1]`: at every exit but the last."""
    return exit_scores(scorer, history)[:, :-1]


def _certainty_of(answers: Tensor) -> Tensor:
    """Log-odds of the answered class and minus the log-entropy, `[n, K]` -> `[n, 2]`."""
    return torch.stack(certainty(answers), dim=1).double()


def _logistic(features: Tensor, right: Tensor) -> Tensor:
    """Weights of `[N, F]` features and a constant, `[F+1]`, of the largest likelihood.

    The targets are Platt's: not quite one and zero, so that an exit that is always right on
    held_out is not taken to be certain.
    """
    centre, scale = features.mean(dim=0), features.std(dim=0, correction=0) + 1e-12
    inputs = torch.cat([(features - centre) / scale, torch.ones(len(features), 1)], dim=1)
    hits = right.sum()
    targets = torch.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2)).double()
    ridge = torch.tensor([RIDGE] * features.shape[1] + [0.0], dtype=torch.float64)
    found = fit_logistic(inputs, targets, ridge)
    slopes = found[:-1] / scale
    return torch.cat([slopes, found[-1:] - slopes @ centre])
