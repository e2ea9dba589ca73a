"""The best pairs of models of a cascade, and mixes of them: what a longer cascade has to beat.

Two models with a threshold on the confidence of the first are a point of cost and accuracy, and
two such points can be mixed at random. All that is reachable in this way, without a third model
and without anything learned, lies below a concave curve (Bouchard 2026, arXiv 2605.06350, there
without mixing).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offramp.answers import CurrentExit
from offramp.arrays import Array
from offramp.ledger import Ledger
from offramp.replay import replay
from offramp.scorers import MaxProbability
from offramp.thresholds.rule import stops


@dataclass(frozen=True)
class PairMix:
    """Two cascades of two models, one of which answers each sample, chosen at random."""

    pairs: tuple[tuple[int, ...], ...]  # first the cheaper pair; one stage is a model alone
    share: float  # of the samples that the second pair answers
    cost: float  # as a share of the last model alone
    accuracy: float  # on test


@dataclass(frozen=True)
class PairCascade:
    """Two stages and a threshold between them, or one stage alone."""

    stages: tuple[int, ...]
    threshold: float = -np.inf  # on the log-odds of the first; a sample below goes on


@dataclass(frozen=True)
class PairEnvelope:
    """Corners of the concave envelope on one split, as they fare on another.

    Attributes:
        corners: From the cheapest to the most accurate on the first split.
        costs: `[N, V]` float64, what each sample costs at each corner, as shares.
        right: bool `[N, V]`, whether it is answered correctly.

    Example:
        >>> from offramp import Costs, synthetic
        >>> prices = Costs.of_members([1, 2, 4, 10], "dollars")
        >>> splits = synthetic.ledgers(seed=0, exits=4)
        >>> val, test = (splits[name].with_costs(prices) for name in ("val", "test"))
        >>> mix = pair_envelope([val], test).at(0.5)
        >>> round(mix.cost, 6), 0 <= mix.share <= 1, len(mix.pairs)
        (0.5, True, 2)
    """

    corners: list[PairCascade]
    costs: Array
    right: Array

    def at(self, budget: float) -> PairMix:
        """The mix of neighbouring corners that costs a budget, or the nearest corner."""
        spent, hits = self.costs.mean(axis=0), self.right.mean(axis=0)
        order = spent.argsort(kind="stable")
        above = int(np.searchsorted(spent[order], budget))
        low, high = order[max(above - 1, 0)], order[min(above, len(order) - 1)]
        gap = spent[high] - spent[low]
        share = float((budget - spent[low]) / gap) if gap > 0 else 0.0
        cost, accuracy = (float((1 - share) * x[low] + share * x[high]) for x in (spent, hits))
        return PairMix(
            (self.corners[low].stages, self.corners[high].stages), share, cost, accuracy
        )


def pair_envelope(chosen_on: Sequence[Ledger], test: Ledger) -> PairEnvelope:
    """Find the envelope of all pairs of stages on some splits, and measure its corners on test.

    Nothing is fitted, so that all samples but the test samples may choose pairs and thresholds.

    Args:
        chosen_on: held_out and val, say.
        test: To measure on.
    """
    corners = _envelope_corners(_AnsweredSamples.of(chosen_on))
    samples = _AnsweredSamples.of([test])
    measured = [samples.answered(corner) for corner in corners]
    costs, right = (np.stack(columns, axis=1) for columns in zip(*measured, strict=True))
    return PairEnvelope(corners, costs, right)


@dataclass(frozen=True)
class _AnsweredSamples:
    """The log-odds of every stage on the samples of some ledgers, and whether it is right."""

    ledgers: Sequence[Ledger]
    scores: Array  # [N, M]
    correct: Array  # bool [N, M]
    reference: float  # mean cost of the last model alone

    @classmethod
    def of(cls, ledgers: Sequence[Ledger]) -> "_AnsweredSamples":
        found = [replay(CurrentExit(), MaxProbability(), ledger) for ledger in ledgers]
        whole = sum(len(ledger) * ledger.reference_cost for ledger in ledgers)
        return cls(
            ledgers,
            np.concatenate([each.scores for each in found]).astype(np.float64),
            np.concatenate([each.network_correct for each in found]),
            whole / sum(map(len, ledgers)),
        )

    def costs(self, stages: Sequence[int]) -> Array:
        """`[N, 1 or 2]` float64: what these stages cost each sample, all others left out."""
        kept = [ledger.keep_exits(stages) for ledger in self.ledgers]
        found = [each.cumulative_costs + np.zeros((len(each), 1)) for each in kept]
        return np.concatenate(found) / self.reference

    def answered(self, corner: PairCascade) -> tuple[Array, Array]:
        """What each sample costs `[N]`, and whether it is answered correctly `[N]`."""
        stopped = stops(self.scores[:, corner.stages[0]], corner.threshold)
        costs, correct = self.costs(corner.stages), self.correct[:, list(corner.stages)]
        cost, right = (np.where(stopped, x[:, 0], x[:, -1]) for x in (costs, correct))
        return cost, right


def _envelope_corners(samples: _AnsweredSamples) -> list[PairCascade]:
    exits = samples.scores.shape[1]
    points = [PairCascade((stage,)) for stage in range(exits)]
    for first in range(exits - 1):
        order = np.argsort(-samples.scores[:, first])
        ordered = samples.scores[order, first]
        between = np.flatnonzero(ordered[:-1] > ordered[1:])  # no threshold parts ties
        limits = ((ordered[between] + ordered[between + 1]) / 2).tolist()
        if not limits:
            continue
        for second in range(first + 1, exits):
            pair = (first, second)
            spent = _means(samples.costs(pair)[order])[between]
            hits = _means(samples.correct[order][:, pair])[between]
            points += [PairCascade(pair, limits[index]) for index in upper_hull(spent, hits)]
    means = [[x.mean() for x in samples.answered(point)] for point in points]
    return [points[index] for index in upper_hull(*np.array(means).T)]


def _means(values: Array) -> Array:
    """`[N]`: the mean of values `[N, 2]` when the first 1, 2, ... samples stop early."""
    early, late = values.cumsum(axis=0).T
    means: Array = (early + late[-1] - late) / len(values)
    return means


def upper_hull(costs: Array, accuracies: Array) -> list[int]:
    """Numbers of the points on the concave envelope, from the cheapest to the most accurate.

    Args:
        costs: `[P]`.
        accuracies: `[P]`.

    Example:
        >>> upper_hull(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.2, 0.3, 0.8, 0.7]))
        [0, 2]
    """
    order = np.lexsort((-accuracies, costs))
    best = np.maximum.accumulate(accuracies[order])
    # A point that costs more must be more accurate than all before it.
    better = np.concatenate([[True], accuracies[order][1:] > best[:-1]])
    kept: list[int] = []
    for index in order[better].tolist():
        while len(kept) > 1 and _is_below(kept[-2], kept[-1], index, costs, accuracies):
            kept.pop()
        kept.append(index)
    return kept


def _is_below(one: int, two: int, three: int, costs: Array, accuracies: Array) -> bool:
    """Whether the second of three points lies on or below the line through the others.

    Up to rounding, or the order of a sum would decide which points on a line are corners.
    """
    rise = (accuracies[three] - accuracies[one]) * (costs[two] - costs[one])
    return bool((accuracies[two] - accuracies[one]) * (costs[three] - costs[one]) <= rise + 1e-12)
