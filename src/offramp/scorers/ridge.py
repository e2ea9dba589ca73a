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

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp.answers.ensembles import best_weights
from offramp.costs import mean_costs
from offramp.errors import ConfigError
from offramp.ledger import AnswerHistory, History
from offramp.ledger.history import leading_pair
from offramp.scorers.base import PreparedScorer, Scoring
from offramp.targets import correctness, soft_correctness, soft_stop_target, stop_target

CURRENT, HISTORY, CLASSES = 15.0, 450.0, 4500.0
"""Penalties on weights of standardised features, in samples."""

LOG_ODDS = CURRENT / 100  # as good as free
CONSTANT = 1e-5  # keeps the equations solvable where a feature never varies
NOW, PAST = 7, 5  # features of the current exit, and of the earlier ones
SAID = 3  # features of a stage that answers without logits, besides those that it is given
MOST_CLASSES = 1000  # with more, the probabilities of single classes are left out
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
        classes: Also look at the probability of every class, if there are at most 1,000.

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

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Solve one regression per exit but the last, from the last one backwards."""
        return self._fit(history, _Teacher.of(history, labels), costs)

    def _fit(self, history: History, teacher: "_Teacher", costs: Tensor) -> Self:
        designs = self._designs(history)
        penalties = self._penalties(history.num_classes, isinstance(history, AnswerHistory))
        predictions = torch.cat([part.predictions for _, part in history.chunks()])
        found = self._solve(designs, penalties, predictions, teacher, costs)
        self.coefficients_ = torch.stack(found)
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
        designs: list[Tensor],
        penalties: Tensor,
        predictions: Tensor,
        teacher: "_Teacher",
        costs: Tensor,
    ) -> list[Tensor]:
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

        def score(history: History) -> Tensor:
            features = self._features(history)
            # A little of the log-odds, the first feature.
            return self._score(outputs(features)).add(features.select(1, 0), alpha=APART).float()

        return score

    def _score(self, outputs: Tensor) -> Tensor:
        """The score `[n]` that outputs `[n, O]` come to."""
        raise NotImplementedError

    def _regressions_at(self, exit_index: int) -> Callable[[Tensor], Tensor]:
        """The regressions of an exit: from features `[n, D]` to outputs, float64 `[n, O]`."""
        self.check_fitted()
        if exit_index >= len(self.coefficients_):
            raise ConfigError(
                f"there is no {type(self).__name__} at exit {exit_index}: it was fitted for a "
                f"network of {len(self.coefficients_) + 1} exits, and the last one always stops"
            )
        weights, constant = self.coefficients_[exit_index].split([len(self.means_[0]), 1])
        standardised = _standardising(self.means_[exit_index], self.scales_[exit_index])

        def outputs(features: Tensor) -> Tensor:
            return torch.addmm(constant, standardised(features).double(), weights)

        return outputs

    def _features(self, history: History) -> Tensor:
        """Features of the exits so far, `[n, D]`."""
        if isinstance(history, AnswerHistory):
            return _said(history, self.history)
        # Without history, the earlier exits may never have been run.
        log_prob = history.log_probs.select(1, -1) if self.history else history.log_prob
        log_odds, index = leading_pair(history.answer)
        top = log_prob.gather(1, index)
        first, second = top.unbind(1)
        prob, other = top.exp().unbind(1)
        probs = log_prob.exp()
        entropy = -(probs * log_prob).sum(dim=1)
        found = [
            log_odds,
            first - second,
            entropy,
            first,
            second,
            prob,
            prob - other,
        ]
        if self.history:
            found += _past(history, first, index)
        features = torch.stack(found, dim=1)
        sees_classes = self._sees_classes(log_prob.shape[1])
        return torch.cat([features, probs], dim=1) if sees_classes else features

    def _sees_classes(self, num_classes: int) -> bool:
        return self.classes and num_classes <= MOST_CLASSES

    def _penalties(self, num_classes: int, answers: bool = False) -> Tensor:
        """`[D+1]` float64; of answers without logits, `num_classes` are numbers per stage."""
        past, seen = PAST * self.history, num_classes * self._sees_classes(num_classes)
        # Of the numbers of a stage, the first two are its log-odds and its answer.
        widths = (1, SAID + num_classes - 3, past, 0) if answers else (1, NOW - 1, past, seen)
        levels = LOG_ODDS, CURRENT, HISTORY, CLASSES
        parts = [torch.full((n,), level) for n, level in zip(widths, levels, strict=True)]
        return torch.cat([*parts, torch.zeros(1)]).double() + CONSTANT

    def _designs(self, history: History) -> list[Tensor]:
        """Learn means and scales; then, by exit, standardised features and a constant."""
        tables: list[list[Tensor]] = [[] for _ in range(history.exit_index)]
        for _, part in history.chunks():
            _ = part.log_probs, part.predictions  # once for all exits: `until` hands them on
            for exit_index, table in enumerate(tables):
                table.append(self._features(part.until(exit_index)))
        joined = [torch.cat(table) for table in tables]
        asked = [_asked(history, exit_index) for exit_index in range(len(joined))]
        known = [table[rows] for table, rows in zip(joined, asked, strict=True)]
        self.means_ = torch.stack([table.float().mean(dim=0) for table in known])
        first = None if isinstance(history, AnswerHistory) else NOW + PAST * self.history
        self.scales_ = torch.stack([_scales(table.float(), first) for table in known])
        constant = torch.ones(len(history), 1)
        designs = [
            torch.cat([_standardising(mean, scale)(table), constant], dim=1).double()
            for table, mean, scale in zip(joined, self.means_, self.scales_, strict=True)
        ]
        if history.lengths is None:
            return designs
        # A row of zeros has no part in a regression: nobody asks about a sample that has ended.
        return [
            torch.zeros_like(design).index_copy_(0, rows, design[rows])
            for design, rows in zip(designs, asked, strict=True)
        ]


def _scales(table: Tensor, classes: int | None) -> Tensor:
    """Standard deviations `[D]`; all classes share one, so that rare ones stay small.

    Args:
        table: `[N, D]`.
        classes: The first column that is one of a class, or None where there is none.
    """
    scales = table.std(dim=0, correction=0)
    if classes is not None and len(scales) > classes:
        scales[classes:] = table[:, classes:].std(correction=0)
    return scales.clamp_min(1e-3)


def _asked(history: History, exit_index: int) -> Tensor:
    """Positions of the samples that go on after an exit; of all, where none do."""
    rows = torch.arange(len(history))
    going = history.goes_on(exit_index)
    return rows if going is None or not going.any() else rows[going]


def _said(history: AnswerHistory, past: bool) -> Tensor:
    """Features of answers without logits: how sure they are, and how they agree; float64."""
    odds = history.odds
    now = odds[:, -1]
    found = [now, torch.nn.functional.logsigmoid(now), now.sigmoid(), *history.features[:, -1].T]
    if past:
        count = max(history.exit_index, 1)  # stage 0 is its own past
        before, same = odds[:, :count], history.agrees[:, :count].double()
        weights = before.sigmoid()
        share = (weights * same).sum(dim=1) / weights.sum(dim=1).clamp_min(1e-12)
        found += [now - before[:, -1], now - before.mean(dim=1), share]
        found += [same.mean(dim=1), same[:, -1]]
    return torch.stack(found, dim=1)


def _standardising(mean: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    """How features `[n, D]` are standardised. Probabilities are bounded, and so are never cut."""
    limit = scale.reciprocal().clamp_min(LIMIT)
    return lambda features: ((features - mean) / scale).clamp(-limit, limit)


def _past(history: History, first: Tensor, index: Tensor) -> list[Tensor]:
    """What the earlier exits say of the two likeliest classes, and how they agree, `[n]` each."""
    count = max(history.exit_index, 1)  # exit 0 is its own past
    rows = history.log_probs.narrow(1, 0, count)
    seen = rows.gather(2, index.unsqueeze(1).expand(-1, count, -1))  # [n, count, 2]
    mean, other = seen.mean(dim=1).unbind(1)
    predictions = history.predictions
    same = (predictions.narrow(1, 0, count) == predictions[:, -1:]).float()
    before = seen.select(1, -1).select(1, 0)
    return [first - before, first - mean, mean - other, same.mean(dim=1), same.select(1, -1)]


@dataclass(frozen=True)
class _Teacher:
    """Class probabilities by the likeliest ensemble of the answers of all exits, and labels.

    Attributes:
        probs: float64 `[N, K]`; without labels, those of the last exit's answer. For answers
            without logits, `[N, M]`: the chance of what each stage was the first to say.
        labels: `[N]`, or bool `[N, M]`, or None.
        stops: float64 `[N, M]`, the chance that stopping is right, where it does not follow from
            `probs`: of answers without logits.
    """

    probs: Tensor
    labels: Tensor | None = None
    stops: Tensor | None = None

    def soft_stop_target(self, predictions: Tensor) -> Tensor:
        """The chance that stopping is right, float64 `[N, M]`."""
        return soft_stop_target(predictions, self.probs) if self.stops is None else self.stops

    @classmethod
    def of(cls, history: History, labels: Tensor) -> "_Teacher":
        if isinstance(history, AnswerHistory):
            said = history.predictions
            targets = correctness(said, labels), stop_target(said, labels)
            right, stops = (_seen_afterwards(history, target) for target in targets)
            return cls(right, labels, stops)
        weights = best_weights(history.answers, labels, TEACHER_SHRINKAGE)
        return cls(cls._mixed(history, weights), labels)

    @classmethod
    def unlabelled(cls, history: History) -> "_Teacher":
        if isinstance(history, AnswerHistory):
            return cls(history.chances.double())
        last = torch.zeros(history.exit_index + 1)
        last[-1] = 1
        return cls(cls._mixed(history, last))

    @staticmethod
    def _mixed(history: History, weights: Tensor) -> Tensor:
        """Probabilities `[N, K]` by a geometric mean with these weights `[M]`."""
        mixed = [
            torch.einsum("nmk,m->nk", part.answers.float(), weights).double().softmax(dim=1)
            for _, part in history.chunks()
        ]
        return torch.cat(mixed)


def _seen_afterwards(history: AnswerHistory, targets: Tensor) -> Tensor:
    """The chance of a target `[N, M]` at each stage, given all that was said: `[N, M]` float64.

    One ridge logistic regression per stage, on how sure it was, on how sure all were, on how many
    agree with it and how sure those are, on the last stage, which knows best, and on features.
    """
    odds, said = history.odds, history.predictions
    found = []
    for exit_index in range(odds.shape[1]):
        same = (said == said[:, exit_index, None]).double()
        columns = [
            odds[:, exit_index],
            odds[:, -1],
            odds.mean(dim=1),
            same.mean(dim=1),
            same[:, -1],
            (odds.sigmoid() * same).sum(dim=1),
            odds[:, -1] * same[:, -1],
            *history.features[:, exit_index].T,
            *history.features[:, -1].T,
        ]
        table = torch.stack(columns, dim=1)
        scale = table.std(dim=0, correction=0).clamp_min(1e-3)
        table = _standardising(table.mean(dim=0), scale)(table)
        design = torch.cat([table, torch.ones(len(table), 1)], dim=1)
        penalties = torch.tensor([TEACHER_RIDGE] * len(columns) + [CONSTANT]).double()
        weights = fit_logistic(design, targets[:, exit_index].double(), penalties)
        found.append((design @ weights).sigmoid())
    return torch.stack(found, dim=1)


PRICE_GRID = tuple(torch.logspace(-2.2, 0.8, 12, dtype=torch.float64).tolist())
"""Accuracy for the cost of the whole network, from next to nothing to hardly affordable."""

_LOWEST = math.log(PRICE_GRID[0])
_STEPS = torch.tensor(PRICE_GRID, dtype=torch.float64).log().diff()
# Added to the gains at all prices, it leaves those up to each of them: `[12, 12]`.
_LATER = torch.full((len(PRICE_GRID),) * 2, -torch.inf, dtype=torch.float64).triu(1)
BEYOND = 5.0  # how fast the logarithm of the price moves with the gain beyond the grid


@dataclass
class BreakEven(RidgeScorer):
    """Break-even prices of compute, by ridge regression backwards from the last exit.

    For a sample at an exit there is a price of compute at which stopping and going on are worth
    the same. For twelve prices at once, what stopping gains over going on is regressed on the
    exits so far; the price at which that gain is zero is read off between them. Minus its
    logarithm is the score. It means the same at every exit, so a single threshold serves them all
    (`thresholds="shared"`), and that needs no labels of val. Nor does the fit: without labels
    it takes the last exit's probabilities for what they are, and loses what labels would have
    told of how far to trust them.

    Args:
        history: Also look at the earlier exits.
        classes: Also look at the probability of every class, if there are at most 1,000.

    Attributes:
        means_: `[M-1, D]`, of the features.
        scales_: `[M-1, D]`.
        coefficients_: `[M-1, D+1, 12]` float64, the constant last.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> policy = Policy(BreakEven()).fit(splits["held_out"]).tune(splits["val"], "shared")
        >>> policy.at(budget=0.5).thresholds.unique().shape  # one, and -inf at the last exit
        torch.Size([2])
    """

    def fit_unlabelled(self, history: History, costs: Tensor) -> Self:
        """The same with the last exit's probabilities, taken as they are, in place of labels."""
        return self._fit(history, _Teacher.unlabelled(history), costs)

    def _score(self, outputs: Tensor) -> Tensor:
        """Minus the logarithm of the break-even price."""
        return -log_break_even(outputs)

    @property
    def _num_outputs(self) -> int:
        return len(PRICE_GRID)

    def _solve(
        self,
        designs: list[Tensor],
        penalties: Tensor,
        predictions: Tensor,
        teacher: _Teacher,
        costs: Tensor,
    ) -> list[Tensor]:
        chances = soft_correctness(predictions, teacher.probs)
        prices = torch.tensor(PRICE_GRID, dtype=torch.float64)
        shares = (costs.double() / mean_costs(costs)[-1]).expand(predictions.shape)
        paid = shares.T[..., None] * prices  # [M, N, P]
        later = chances[:, -1:] - paid[-1]  # [N, P], worth of going on
        found: list[Tensor] = []
        for exit_index in reversed(range(len(designs))):
            here, design = chances[:, exit_index, None] - paid[exit_index], designs[exit_index]
            normal = design.T @ design + penalties.diag()
            weights = torch.linalg.solve(normal, design.T @ (here - later))
            gains = design @ weights
            # Who goes on is worth half what happened to come of it, and half what was expected.
            later = torch.where(gains >= 0, here, (later + here - gains) / 2)
            found.insert(0, weights)
        return found


def log_break_even(gains: Tensor) -> Tensor:
    """Logarithm of the price at which stopping begins to gain, `[n]` from gains `[n, 12]`.

    Between the prices of the grid it is interpolated, and beyond them extrapolated.

    Example:
        >>> gains = torch.linspace(-1, 1, 12, dtype=torch.float64)[None]
        >>> 10 ** (log_break_even(gains) / torch.tensor(10.0).log())  # the middle of the grid
        tensor([0.1995], dtype=torch.float64)
    """
    # A running maximum, in operations that ONNX knows: a higher price never speaks for going on.
    gains = (gains.unsqueeze(1) + _LATER).amax(dim=2)  # [n, P]
    low, high = gains[:, :-1], gains[:, 1:]
    # How much of each step of the grid lies below the price at which the gain is zero.
    shares = (-low / (high - low).clamp_min(1e-12)).clamp(0, 1)
    beyond = low.select(1, 0).clamp_min(0) + high.select(1, -1).clamp_max(0)
    return ((shares * _STEPS).sum(dim=1) + _LOWEST).sub(beyond, alpha=BEYOND)


SOFTNESS = 0.75  # weight of the soft target beside the hard one
LOGISTIC = 15.0  # a sample tells a logistic regression less, so penalties are this much smaller
NEWTON_STEPS = 50  # about ten are needed, for two or three of which the curvature is computed
SMALL_STEP = 1e-4  # of the weights; what is left is a fraction of it
FAST = 4.0  # a step this many times smaller than the one before


@dataclass
class LogisticCorrector(RidgeScorer):
    """Predicts the paper's stop target by a ridge logistic regression per exit.

    Where `Corrector` needs thousands of samples to gain from the history, this one takes a few
    hundred, a fraction of a second and no seed. Three quarters of its target are soft: the
    probability that no later, different answer is right.

    Args:
        history: Also look at the earlier exits.
        classes: Also look at the probability of every class, if there are at most 1,000.

    Attributes:
        means_: `[M-1, D]`, of the features.
        scales_: `[M-1, D]`.
        coefficients_: `[M-1, D+1, 1]` float64, the constant last.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> policy = Policy(LogisticCorrector()).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        torch.Size([300])
    """

    def _score(self, outputs: Tensor) -> Tensor:
        """Log-odds of "right here, or hopeless from here on"."""
        return outputs.squeeze(1)

    def probability(self, scores: Tensor) -> Tensor:
        """The corrector's own output, in [0, 1]."""
        return scores.sigmoid()

    def _solve(
        self,
        designs: list[Tensor],
        penalties: Tensor,
        predictions: Tensor,
        teacher: _Teacher,
        costs: Tensor,
    ) -> list[Tensor]:
        assert teacher.labels is not None
        hard = stop_target(predictions, teacher.labels).double()
        target = torch.lerp(hard, teacher.soft_stop_target(predictions), SOFTNESS)
        found: list[Tensor] = []
        for exit_index, design in enumerate(designs):
            start = found[-1][:, 0] if found else None  # neighbouring exits are alike
            weights = fit_logistic(design, target[:, exit_index], penalties / LOGISTIC, start)
            found.append(weights[:, None])
        return found


def fit_logistic(
    design: Tensor, target: Tensor, penalties: Tensor, start: Tensor | None = None
) -> Tensor:
    """Weights `[D]` of a ridge logistic regression, by Newton's method.

    Args:
        design: float64 `[N, D]`.
        target: float64 `[N]` in [0, 1].
        penalties: float64 `[D]`.
        start: `[D]`; zeros where it is not given.
    """

    def loss_of(logits: Tensor, weights: Tensor) -> float:
        losses = binary_cross_entropy_with_logits(logits, target, reduction="sum")
        return float(losses + penalties @ weights.square() / 2)

    weights = torch.zeros_like(penalties) if start is None else start
    logits = design @ weights
    now, stale, before = loss_of(logits, weights), True, math.inf
    for _ in range(NEWTON_STEPS):
        chance = logits.sigmoid()
        if stale:
            curvature = (chance * (1 - chance)).clamp_min(1e-4)[:, None]
            hessian = (design * curvature).T @ design + penalties.diag()
            factor = torch.linalg.cholesky(hessian)
        gradient = design.T @ (chance - target) + penalties * weights
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        moved = design @ step
        while (new := loss_of(logits - moved, weights - step)) > now and step.abs().max() > 1e-6:
            step, moved = step / 2, moved / 2
        weights, logits, now = weights - step, logits - moved, new
        size = float(step.abs().max())
        if size < SMALL_STEP:
            break
        # The curvature of an earlier step will do while steps shrink fast.
        stale, before = size > before / FAST, size
    return weights
