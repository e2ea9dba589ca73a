"""`Replay`: a policy replayed on a ledger. Everything that is measured starts from one."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from offramp.answers import Answer
from offramp.arrays import Array
from offramp.costs import mean_costs
from offramp.decide import Decider
from offramp.errors import FileFormatError, LedgerError, NotFittedError
from offramp.ledger import History, Ledger
from offramp.ledger.checks import WITHOUT_LABELS
from offramp.price import Price, price_of
from offramp.scorers import Scorer
from offramp.targets import correctness, hopeless, stop_target
from offramp.thresholds import DEFAULT, POINTS
from offramp.thresholds.geometric import for_shares
from offramp.thresholds.rule import SURE, OperatingPoints, exit_shares, exits_taken
from offramp.thresholds.tuning import (
    ScoredSamples,
    measure,
    not_flattered,
    tune_points,
    worth_their_cost,
)

GRID = tuple(percent / 100 for percent in range(1, 101))
"""Budgets that reports show: every whole percent."""


class AccuracyAt(NamedTuple):
    """Accuracy at a budget; `cost` is the budget, or the nearest cost that can be had."""

    accuracy: float
    cost: float


@dataclass(frozen=True)
class Curve:
    """All operating points of a policy on one ledger, sorted by realised cost."""

    costs: Array  # `[P]`, mean cost as a share of the network without exits
    accuracies: Array  # `[P]`
    shares: Array  # `[P, M]`, share of samples that left at each exit
    points: Array  # `[P]`, index of the operating point in `policy.points`

    def at(self, budget: float) -> AccuracyAt:
        """Linear interpolation between the neighbouring points; no envelope, no maximum."""
        accuracies, costs = accuracy_at(
            self.costs[None], self.accuracies[None], np.array([budget])
        )
        return AccuracyAt(float(accuracies[0, 0]), float(costs[0, 0]))


BY_SAMPLE = ("predictions", "network_predictions", "scores", "confidences", "losses", "chances")
"""Names of what a replay always has for every sample and exit."""


@dataclass(frozen=True)
class Replay:
    """What a policy answers and scores at every exit of a ledger, and what stopping there costs.

    Attributes:
        labels: `[N]`, or None where the ledger has none.
        predictions: `[N, M]`, the class that would be answered at each exit.
        network_predictions: `[N, M]`, what the heads themselves predict, before any answer.
        scores: `[N, M]` float32; `+inf` at the last exit, where no scorer is run.
        confidences: `[N, M]`, max probability of the answer.
        losses: `[N, M]`, negative log-likelihood of the label under the answer, or nan.
        chances: `[N, M]`, probability that the last exit's answer gives to each exit's: a guess,
            without labels, at whether it is right.
        price: What each exit costs, and what it costs at an operating point.
        thresholds: `[P, M]`, of the policy's operating points; None before it is tuned.
        selected: The index of the chosen operating point, or None.
        lengths: `[N]`, how many exits each sample has, or None where all have all.
        groups: `[N]`, the number of each sample's group, or None where there are none.
        full_correct: bool `[N]`, whether the network without exits is right, where that is not
            the last exit here: see `Ledger.full_correct`.
        positive: bool `[N, M+1]`, of answers: which stages give a certain answer, and whether it
            is the label; None where none was named.

    Example:
        >>> from offramp import MaxProbability, Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"])
        >>> replay = policy.at(budget=0.5).replay(splits["test"])
        >>> round(float(replay.costs.mean()), 1)
        0.5
        >>> replay.curve.at(0.25).accuracy < replay.curve.at(0.75).accuracy
        True
    """

    labels: Array | None
    predictions: Array
    network_predictions: Array
    scores: Array
    confidences: Array
    losses: Array
    chances: Array
    price: Price
    thresholds: Array | None = None
    selected: int | None = None
    lengths: Array | None = None
    groups: Array | None = None
    full_correct: Array | None = None
    positive: Array | None = None

    def __len__(self) -> int:
        return len(self.predictions)

    def take(self, index: Array) -> "Replay":
        """The same for some of the samples."""
        parts = {name: getattr(self, name)[index] for name in BY_SAMPLE}
        for name in ("labels", "lengths", "groups", "full_correct", "positive"):
            known = getattr(self, name)
            parts[name] = None if known is None else known[index]
        return replace(self, price=self.price.take(index), **parts)

    def by_group(self, values: Array) -> Array:
        """The mean `[G, P]` of every group, from values `[N, P]`; these where there are no groups.

        Samples of a group are not independent, and groups are. A value of nan does not count, and
        a group of such values has none either.
        """
        if self.groups is None:
            return values
        known = ~np.isnan(values)
        sums, counts = np.zeros((2, int(self.groups.max()) + 1, *values.shape[1:]))
        np.add.at(sums, self.groups, np.where(known, values, 0))
        np.add.at(counts, self.groups, known)
        means: Array = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return means

    @cached_property
    def correct(self) -> Array:
        """A bool `[N, M]`: whether each exit's answer is right."""
        return correctness(self.predictions, self._known_labels)

    @cached_property
    def network_correct(self) -> Array:
        """A bool `[N, M]`: whether each head is right, before any answer."""
        return correctness(self.network_predictions, self._known_labels)

    @property
    def full_right(self) -> Array:
        """A bool `[N]`: whether the network without exits is right."""
        return self.network_correct[:, -1] if self.full_correct is None else self.full_correct

    @property
    def hopeless(self) -> Array:
        """A bool `[N]`: no head of the network is right."""
        return hopeless(self.network_correct)

    @property
    def stop_targets(self) -> Array:
        """A bool `[N, M]`: whether it would be right to stop at each exit."""
        return stop_target(self.predictions, self._known_labels)

    @cached_property
    def exits(self) -> Array:
        """`[N]`: the exit that each sample takes at the chosen operating point."""
        thresholds = self._thresholds  # raises where there are no points to choose from
        if self.selected is None:
            raise NotFittedError(
                "this policy has no operating point yet; choose one, for instance with "
                "policy.at(budget=0.5)"
            )
        taken = exits_taken(self.scores, thresholds[self.selected])
        return np.minimum(taken, self.last_exits).astype(np.int64)

    @property
    def gave_up(self) -> Array:
        """A bool `[N]`: stopped early with an answer that is probably wrong, as hopeless."""
        sure = self.confidences[np.arange(len(self)), self.exits] >= SURE
        return ~sure & (self.exits < self.last_exits)

    @property
    def right(self) -> Array:
        """A bool `[N]`: whether the answer at the exit taken is right."""
        found: Array = self.correct[np.arange(len(self)), self.exits]
        return found

    @property
    def cost_shares(self) -> Array:
        """`[M]` or `[N, M]` float64, cumulative, as shares of the reference; see `Price`."""
        return self.price.shares

    @property
    def costs(self) -> Array:
        """`[N]` float64: the cost of each sample, as a share of the network without exits."""
        exits = self.exits  # raises where there is no operating point
        assert self.selected is not None
        paid: Array = self.price.paid(self._thresholds[[self.selected]], exits[None])[0]
        return paid

    @cached_property
    def point_costs(self) -> Array:
        """`[P, M]` float64: what each exit costs the mean sample at every operating point."""
        shares = exit_shares(self.exits_by_point, self.scores.shape[1])
        return self.price.at(self._thresholds, shares)

    @cached_property
    def costs_by_point(self) -> Array:
        """`[P, N]` float64: the cost of each sample at every operating point."""
        if self.price.costs.by_sample:
            return self.price.paid(self._thresholds, self.exits_by_point)
        found: Array = np.take_along_axis(self.point_costs, self.exits_by_point, axis=1)
        return found

    @cached_property
    def exits_by_point(self) -> Array:
        """`[P, N]`: the exit that each sample takes at every operating point."""
        found: Array = np.minimum(exits_taken(self.scores, self._thresholds), self.last_exits)
        return found

    @property
    def last_exits(self) -> Array:
        """int16 `[N]`: the last exit that each sample has; it goes on no further."""
        last = np.full(len(self), self.scores.shape[1])
        return (last if self.lengths is None else self.lengths).astype(np.int16) - np.int16(1)

    @cached_property
    def curve(self) -> Curve:
        """Accuracy and cost at every operating point."""
        _, accuracies, shares = measure(
            self.exits_by_point, self.correct, mean_costs(self.cost_shares)
        )
        means = self.costs_by_point.mean(axis=1)
        order = means.argsort(kind="stable")
        return Curve(means[order], accuracies[order], shares[order], order)

    @property
    def scored(self) -> ScoredSamples:
        """What thresholds are chosen by."""
        correct = None if self.labels is None else self.correct
        return ScoredSamples(self.scores, correct, self.cost_shares, self.chances, self.groups)

    def operating_points(
        self, thresholds: str = DEFAULT, points: int = POINTS, unseen: bool = True
    ) -> OperatingPoints:
        """Operating points by a named method, from samples that the policy has not seen.

        Args:
            thresholds: Name of the threshold method.
            points: How many operating points.
            unseen: Whether that is so. Only then can the samples tell which points are worth what
                they cost; see `worth_their_cost`.
        """
        val, full = self.scored, np.nan
        if self.labels is not None:  # what "no loss" is measured against
            full = float(self.full_right.mean())
        found = tune_points(val, full, thresholds, points)
        if unseen:
            found = worth_their_cost(found, val)
        chosen = not_flattered(found, val, thresholds)
        return self._priced(chosen)

    def points_with_shares(self, points: OperatingPoints) -> OperatingPoints:
        """Operating points at which as many samples leave at each exit as at others' points.

        Their accuracies are those of the others' points at the same cost. Costs and shares are
        what these scores give: where they are tied, fewer costs can be had.
        """
        thresholds = for_shares(self.scores, points.shares)
        found = self._priced(self.scored.points_of(thresholds, points.full_accuracy))
        accuracies = np.interp(found.budgets, points.budgets, points.accuracies)
        return replace(found, accuracies=accuracies)

    def _priced(self, points: OperatingPoints) -> OperatingPoints:
        """With costs that depend on where samples leave, where they do."""
        if self.price.costs.by_sample:
            return points
        prices = self.price.at(points.thresholds, points.shares)
        return points.priced((prices * points.shares).sum(axis=1))

    @property
    def _known_labels(self) -> Array:
        if self.labels is None:
            raise LedgerError(f"the ledger that was replayed has no labels, {WITHOUT_LABELS}")
        return self.labels

    @property
    def _thresholds(self) -> Array:
        if self.thresholds is None:
            raise NotFittedError("this policy has no operating points; call tune(val) first")
        return self.thresholds


def replay(answer: Answer, scorer: Scorer, ledger: Ledger) -> Replay:
    """Run a fitted answer and scorer over a ledger of any split, a few samples at a time."""
    answer.check_fitted()
    scorer.check_fitted()
    read, decider = ledger.history_type, Decider(answer, scorer)
    shape = len(ledger), ledger.num_exits
    predictions, heads = (np.empty(shape, np.int64) for _ in range(2))
    scores, confidences, chances = (np.empty(shape, np.float32) for _ in range(3))
    losses = np.full(shape, np.nan, np.float32)
    labels = ledger.labels if ledger.has_labels else None
    for rows, logits in ledger.chunks():
        history = read(logits, answer.answers(logits))
        predictions[rows] = history.predictions
        heads[rows] = read(logits, logits).predictions
        confidences[rows] = history.confidences
        chances[rows] = history.chances
        if labels is not None:
            losses[rows] = history.losses(labels[rows])
        scores[rows] = decider.scores(history)
    costs, times = ledger.cost_model, ledger.batch_times
    price = price_of(answer, scorer, costs, ledger.num_classes, times, read)
    found = Replay(labels, predictions, heads, scores, confidences, losses, chances, price)
    groups, full = ledger.group_numbers, ledger.full_right
    found = replace(found, lengths=ledger.lengths, groups=groups, full_correct=full)
    return replace(found, positive=ledger.positive)


def accuracy_at(costs: Array, accuracies: Array, budgets: Array) -> tuple[Array, Array]:
    """Interpolate many curves `[R, P]`, in any order of costs, at budgets `[B]` at once.

    Returns accuracies `[R, B]` and the costs they belong to `[R, B]`: the budget, or, where a
    curve does not reach it, the cost of its nearest point.

    Example:
        >>> costs, accuracies = np.array([[0.2, 0.6]]), np.array([[0.5, 0.7]])
        >>> accuracy_at(costs, accuracies, np.array([0.1, 0.4]))
        (array([[0.5, 0.6]]), array([[0.2, 0.4]]))
    """
    order = costs.argsort(axis=1, kind="stable")
    costs, accuracies = (np.take_along_axis(part, order, 1) for part in (costs, accuracies))
    wanted = np.maximum(np.minimum(budgets, costs[:, -1:]), costs[:, :1])
    # How many points are cheaper: `searchsorted` row by row.
    right = (costs[:, :, None] < wanted[:, None]).sum(axis=1).clip(1, costs.shape[1] - 1)
    left = np.maximum(right - 1, 0)  # a curve may be a single point
    low, high = (np.take_along_axis(costs, place, 1) for place in (left, right))
    below, above = (np.take_along_axis(accuracies, place, 1) for place in (left, right))
    step = high - low
    share = np.divide(wanted - low, step, out=np.zeros_like(step), where=step > 0)
    return below + share * (above - below), wanted


def try_out(answer: Answer, scorer: Scorer, exits: int, classes: int, where: str) -> None:
    """Raise `FileFormatError` unless an answer and a scorer from a file can be used.

    What they have learned is theirs to know, and only a try shows whether it fits.
    """
    logits = np.linspace(-1, 1, 2 * exits * classes, dtype=np.float32).reshape(2, exits, classes)
    try:
        answers = answer.answers(logits)
        if answers.shape != logits.shape:
            raise LedgerError(f"answers {list(answers.shape)} to logits {list(logits.shape)}")
        Decider(answer, scorer).scores(History(logits, answers))
    # Components are anybody's, and fail in their own ways.
    except Exception as error:
        raise FileFormatError(
            f"{where}: {answer} and {scorer} do not fit {exits} exits and {classes} classes: "
            f"{error}"
        ) from None
