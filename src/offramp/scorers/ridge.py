"""Scorers for a few hundred samples: ridge regressions on what the exits say, in closed form.

Two ideas make few samples suffice. **Soft targets**: whether an answer is right is one noisy bit;
the probability that a fitted ensemble of all exits gives to it has the same mean and a fraction
of the noise. **Unequal penalties**: the answer's log-odds are nearly free, other features of the
current exit cost a little, those of earlier exits more, and those of single classes most. So the
history can help where there are enough samples, and does no harm where there are not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from offramp.answers.ensembles import best_weights
from offramp.arrays import (
    AnyArray,
    Array,
    clipped,
    float32,
    float64,
    namespace,
    sigmoid,
    softmax,
    softplus,
    summed,
    values_at,
)
from offramp.errors import ConfigError
from offramp.ledger import History
from offramp.ledger.history import leading_pair
from offramp.scorers.base import PreparedScorer, Scoring
from offramp.targets import correctness, soft_stop_target, stop_target

CURRENT, HISTORY, CLASSES = 15.0, 450.0, 4500.0
"""Penalties on weights of standardised features, in samples."""

LOG_ODDS = CURRENT / 100  # as good as free
CONSTANT = 1e-5  # keeps the equations solvable where a feature never varies
NOW, PAST = 7, 5  # features of the current exit, and of the earlier ones
SAID = 3  # features of a stage that answers without logits, besides those that it is given
MOST_CLASSES = 500  # with more, the probabilities of single classes are left out
LIMIT = 5.0  # standard deviations, or one if that is more; farther out, a feature says no more
APART = 1e-5  # of the log-odds, so that samples beyond the limit do not share a score
TEACHER_SHRINKAGE = 0.02
TEACHER_RIDGE = 2.0  # in samples, where answers come without logits


@dataclass
class RidgeScorer(PreparedScorer):
    """Parent of scorers that are linear in standardised features of the exits so far.

    Args:
        history: Also look at the earlier exits: how probable the two likeliest classes were, and
            whether the predictions agree.
        classes: Also look at the probability of every class, if there are at most 500.

    Attributes:
        means_: `[M-1, D]`, of the features.
        scales_: `[M-1, D]`.
        coefficients_: `[M-1, D+1, O]` float64 for O outputs, the constant last.
    """

    history: bool = True
    classes: bool = True
    needs = "confidences"
    learned = ("means_", "scales_", "coefficients_")

    @property
    def reads_history(self) -> bool:
        """Whether it was made to."""
        return self.history

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Solve one regression per exit but the last, from the last one backwards."""
        return self._fit(history, SoftTargets.of(history, labels), costs)

    def _fit(self, history: History, teacher: "SoftTargets", costs: Array) -> Self:
        designs = self._designs(history)
        penalties = self._penalties(history.num_classes, not history.has_logits)
        predictions = np.concatenate([part.predictions for _, part in history.chunks()])
        self.coefficients_ = np.stack(self._solve(designs, penalties, predictions, teacher, costs))
        return self

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One product with the coefficients; per class, a softmax and a few comparisons."""
        width = len(self._penalties(num_classes))
        return width * self._num_outputs + 6 * num_classes + 2 * (exit_index + 1) * self.history

    @property
    def _num_outputs(self) -> int:
        return 1

    def _solve(
        self,
        designs: list[Array],
        penalties: Array,
        predictions: Array,
        teacher: "SoftTargets",
        costs: Array,
    ) -> list[Array]:
        """Coefficients `[D+1, O]` of every exit but the last.

        Args:
            designs: By exit, standardised features and a constant, float64 `[N, D+1]`.
            penalties: `[D+1]`.
            predictions: `[N, M]`.
            teacher: Knows labels and soft targets.
            costs: `[M]` or `[N, M]`, cumulative.
        """
        raise NotImplementedError

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        outputs = self._regressions_at(exit_index)

        def score(history: History) -> AnyArray:
            features = self._features(history)
            # A little of the log-odds, the first feature.
            return float32(self._score(outputs(features)) + APART * features[:, 0])

        return score

    def _score(self, outputs: AnyArray) -> AnyArray:
        """The score `[n]` that outputs `[n, O]` come to."""
        raise NotImplementedError

    def _regressions_at(self, exit_index: int) -> Callable[[AnyArray], AnyArray]:
        """The regressions of an exit: from features `[n, D]` to outputs, float64 `[n, O]`."""
        self.check_fitted()
        if exit_index >= len(self.coefficients_):
            raise ConfigError(
                f"there is no {type(self).__name__} at exit {exit_index}: it was fitted for a "
                f"network of {len(self.coefficients_) + 1} exits, and the last one always stops"
            )
        mean, scale = self.means_[exit_index], self.scales_[exit_index]
        lowest, highest = _limits(mean, scale)
        # Standardising is linear between the limits: the weights do it.
        weights = self.coefficients_[exit_index, :-1] / float64(scale)[:, None]
        constant = self.coefficients_[exit_index, -1] - float64(mean) @ weights
        return lambda features: float64(clipped(features, lowest, highest)) @ weights + constant

    def _features(self, history: History) -> AnyArray:
        """Features of the exits so far, `[n, D]`."""
        if not history.has_logits:
            return _stated(history, self.history)
        # Without history, the earlier exits may never have been run.
        log_prob = history.log_probs[:, -1] if self.history else history.log_prob
        xp, (log_odds, index) = namespace(log_prob), leading_pair(history.answer)
        top, probs = values_at(log_prob, index), xp.exp(log_prob)
        first, second = top[:, 0], top[:, 1]
        likeliest = xp.exp(top)
        prob, other = likeliest[:, 0], likeliest[:, 1]
        entropy = -summed(probs * log_prob)
        found = [log_odds, first - second, entropy, first, second, prob, prob - other]
        if self.history:
            found += _past(history, first, index)
        return _columns(found, probs if self._sees_classes(log_prob.shape[1]) else None)

    def _sees_classes(self, num_classes: int) -> bool:
        return self.classes and num_classes <= MOST_CLASSES

    def _penalties(self, num_classes: int, answers: bool = False) -> Array:
        """`[D+1]` float64; of answers without logits, `num_classes` are numbers per stage."""
        past, seen = PAST * self.history, num_classes * self._sees_classes(num_classes)
        # Of the numbers of a stage, the first two are its log-odds and its answer.
        widths = (1, SAID + num_classes - 3, past, 0) if answers else (1, NOW - 1, past, seen)
        levels = LOG_ODDS, CURRENT, HISTORY, CLASSES
        return np.append(np.repeat(levels, widths), 0.0) + CONSTANT

    def _designs(self, history: History) -> list[Array]:
        """Learn means and scales; then, by exit, standardised features and a constant."""
        tables: list[list[Array]] = [[] for _ in range(history.exit_index)]
        for _, part in history.chunks():
            _ = part.log_probs, part.predictions  # once for all exits: `until` hands them on
            for exit_index, table in enumerate(tables):
                table.append(self._features(part.until(exit_index)))
        joined = [np.concatenate(table) for table in tables]
        asked = [asked_after(history, exit_index) for exit_index in range(len(joined))]
        known = [float32(table[rows]) for table, rows in zip(joined, asked, strict=True)]
        means = np.stack([table.mean(axis=0, dtype=np.float64) for table in known])
        self.means_: Array = float32(means)
        first = NOW + PAST * self.history if history.has_logits else None
        self.scales_ = np.stack([_scales(table, first) for table in known])
        designs = []
        for features, rows, mean, scale in zip(
            joined, asked, self.means_, self.scales_, strict=True
        ):
            design = np.zeros((len(features), features.shape[1] + 1))
            # A row of zeros has no part in a regression: nobody asks about a sample that ended.
            design[rows, :-1] = _standardised(features[rows], mean, scale)
            design[rows, -1] = 1.0
            designs.append(design)
        return designs


def _columns(columns: list[AnyArray], probs: AnyArray | None) -> AnyArray:
    """A table `[n, D]` of columns `[n]`, and of the probabilities `[n, K]` behind them."""
    xp, count = namespace(columns[0]), len(columns)
    if len(columns[0]) == 1:  # a tenth of the time of `stack`
        return xp.concat(columns if probs is None else [*columns, probs[0]])[None]
    table = xp.concat(columns).reshape(count, -1).T
    return table if probs is None else xp.concat([table, probs], axis=1)


def _scales(table: Array, classes: int | None) -> Array:
    """Standard deviations `[D]`; all classes share one, so that rare ones stay small.

    Args:
        table: `[N, D]`.
        classes: The first column that is one of a class, or None where there is none.
    """
    scales = table.std(axis=0, dtype=np.float64)
    if classes is not None and len(scales) > classes:
        scales[classes:] = table[:, classes:].std(dtype=np.float64)
    found: Array = np.maximum(scales, 1e-3).astype(np.float32)
    return found


def asked_after(history: History, exit_index: int) -> Array:
    """Positions of the samples that go on after an exit; of all, where none do."""
    going = history.goes_on(exit_index)
    return np.arange(len(history)) if going is None or not going.any() else np.flatnonzero(going)


def _stated(history: History, past: bool) -> AnyArray:
    """Features of answers without logits: how sure they are, and how they agree; float64."""
    xp, odds = namespace(history.answers), history.odds
    now, features = odds[:, -1], history.features[:, -1]
    found = [
        now,
        -softplus(-now),
        sigmoid(now),
        *(features[:, f] for f in range(features.shape[1])),
    ]
    if past:
        count = max(history.exit_index, 1)  # stage 0 is its own past
        before, same = odds[:, :count], float64(history.agrees[:, :count])
        weights = sigmoid(before)
        total = xp.sum(weights, axis=1)
        share = xp.sum(weights * same, axis=1) / xp.where(total < 1e-12, 1e-12, total)
        found += [now - before[:, -1], now - xp.mean(before, axis=1), share]
        found += [xp.mean(same, axis=1), same[:, -1]]
    return _columns(found, None)


def _standardised(features: Array, mean: Array, scale: Array) -> Array:
    """Features `[n, D]` in standard deviations from the mean, within limits."""
    found: Array = (clipped(features, *_limits(mean, scale)) - mean) / scale
    return found


def _limits(mean: AnyArray, scale: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Between which features say more. Probabilities are bounded, and so are never cut."""
    away = clipped(LIMIT * scale, 1.0, math.inf)
    return mean - away, mean + away


def _past(history: History, first: AnyArray, index: AnyArray) -> list[AnyArray]:
    """What the earlier exits say of the two likeliest classes, and how they agree, `[n]` each."""
    count = max(history.exit_index, 1)  # exit 0 is its own past
    rows, predictions = history.log_probs[:, :count], history.predictions
    if len(rows) == 1 and history.xp is np:  # a third of the time
        seen = rows[0].take(index[0], axis=1)[None]
    else:
        every = history.xp.arange(len(rows), device=rows.device)[:, None]
        seen = history.xp.permute_dims(rows[every, :, index], (0, 2, 1))
    mean = summed(seen, axis=1) / count  # [n, 2]
    same = float32(predictions[:, :count] == predictions[:, -1:])
    found = [first - seen[:, -1, 0], first - mean[:, 0], mean[:, 0] - mean[:, 1]]
    return [*found, summed(same) / count, same[:, -1]]


@dataclass(frozen=True)
class SoftTargets:
    """Class probabilities by the likeliest ensemble of the answers of all exits, and labels.

    Attributes:
        probs: float64 `[N, K]`; without labels, those of the last exit's answer. For answers
            without logits, `[N, M]`: the chance of what each stage was the first to say.
        labels: `[N]`, or bool `[N, M]`, or None.
        stops: float64 `[N, M]`, the chance that stopping is right, where it does not follow from
            `probs`: of answers without logits.
    """

    probs: Array
    labels: Array | None = None
    stops: Array | None = None

    def soft_stop_target(self, predictions: Array) -> Array:
        """The chance that stopping is right, float64 `[N, M]`."""
        return soft_stop_target(predictions, self.probs) if self.stops is None else self.stops

    @classmethod
    def of(cls, history: History, labels: Array) -> "SoftTargets":
        """Fitted to labels."""
        if not history.has_logits:
            said = history.predictions
            targets = correctness(said, labels), stop_target(said, labels)
            right, stops = (_seen_afterwards(history, target) for target in targets)
            return cls(right, labels, stops)
        weights = best_weights(history.answers, labels, TEACHER_SHRINKAGE)
        return cls(cls._mixed(history, weights), labels)

    @classmethod
    def unlabelled(cls, history: History) -> "SoftTargets":
        """The last exit, taken at its word."""
        if not history.has_logits:
            return cls(float64(history.chances))
        last = np.zeros(history.exit_index + 1, np.float32)
        last[-1] = 1
        return cls(cls._mixed(history, last))

    @staticmethod
    def _mixed(history: History, weights: Array) -> Array:
        """Probabilities `[N, K]` by a geometric mean with these weights `[M]`."""
        mixed = [
            softmax(float64(np.einsum("nmk,m->nk", float32(part.answers), weights)))
            for _, part in history.chunks()
        ]
        return np.concatenate(mixed)


def _seen_afterwards(history: History, targets: Array) -> Array:
    """The chance of a target `[N, M]` at each stage, given all that was said: `[N, M]` float64.

    One ridge logistic regression per stage, on how sure it was, on how sure all were, on how many
    agree with it and how sure those are, on the last stage, which knows best, and on features.
    """
    odds, given = history.odds, history.predictions
    found = []
    for exit_index in range(odds.shape[1]):
        same = float64(given == given[:, exit_index, None])
        columns = [
            odds[:, exit_index],
            odds[:, -1],
            odds.mean(axis=1),
            same.mean(axis=1),
            same[:, -1],
            (sigmoid(odds) * same).sum(axis=1),
            odds[:, -1] * same[:, -1],
            *history.features[:, exit_index].T,
            *history.features[:, -1].T,
        ]
        table = np.stack(columns, axis=1)
        scale = np.maximum(table.std(axis=0), 1e-3)
        table = _standardised(table, table.mean(axis=0), scale)
        design = np.concatenate([table, np.ones((len(table), 1))], axis=1)
        penalties = np.array([TEACHER_RIDGE] * len(columns) + [CONSTANT])
        weights = fit_logistic(design, float64(targets[:, exit_index]), penalties)
        found.append(sigmoid(design @ weights))
    return np.stack(found, axis=1)


NEWTON_STEPS = 50  # about ten are needed, for two or three of which the curvature is computed
SMALL_STEP = 1e-4  # of the weights; what is left is a fraction of it
FAST = 4.0  # a step this many times smaller than the one before


def fit_logistic(
    design: Array, target: Array, penalties: Array, start: Array | None = None
) -> Array:
    """Weights `[D]` of a ridge logistic regression, by Newton's method.

    Args:
        design: float64 `[N, D]`.
        target: float64 `[N]` in [0, 1].
        penalties: float64 `[D]`.
        start: `[D]`; zeros where it is not given.
    """
    from scipy.linalg import cho_factor, cho_solve  # loading does not need it

    def loss_of(logits: Array, weights: Array) -> float:
        losses = softplus(logits) - target * logits
        return float(losses.sum() + penalties @ weights**2 / 2)

    weights = np.zeros_like(penalties) if start is None else start
    logits = design @ weights
    now, stale, before = loss_of(logits, weights), True, math.inf
    for _ in range(NEWTON_STEPS):
        chance = sigmoid(logits)
        if stale:
            curvature = np.maximum(chance * (1 - chance), 1e-4)[:, None]
            factor = cho_factor((design * curvature).T @ design + np.diag(penalties))
        step = cho_solve(factor, design.T @ (chance - target) + penalties * weights)
        moved = design @ step
        while (new := loss_of(logits - moved, weights - step)) > now and abs(step).max() > 1e-6:
            step, moved = step / 2, moved / 2
        weights, logits, now = weights - step, logits - moved, new
        size = float(abs(step).max())
        if size < SMALL_STEP:
            break
        # The curvature of an earlier step will do while steps shrink fast.
        stale, before = size > before / FAST, size
    return weights
