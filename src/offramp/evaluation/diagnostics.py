"""Diagnostics of one method: what it does at every budget, and how its scores are distributed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from offramp.arrays import Array, Floats, float64
from offramp.evaluation.outcome import placed, stated_probabilities
from offramp.metrics import ece_bins
from offramp.policy import Policy
from offramp.replay import GRID, Replay
from offramp.scorers import Scorer
from offramp.thresholds.rule import SURE, exit_shares

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BudgetPoints:
    """What the policy does on test at each budget of a grid, as `policy.at(budget=...)` would.

    Below its range, the policy's cheapest point is taken.
    """

    budgets: Floats  # `[G]`, as shares of the network without exits
    points: Counts  # `[G]`, number of the operating point in `policy.points`
    val_costs: Floats  # `[G]`, mean cost on val, by which the point was chosen
    costs: Floats  # `[G]`, mean cost on test
    accuracies: Floats  # `[G]`, on test
    shares: Floats  # `[G, M]`, share of the test samples that leave at each exit
    # `[G, M-1]`, of the stop scores; `inf` closes an exit, `-inf` lets all leave
    thresholds: Floats
    # `[G, M-1]`, the thresholds as the scorer's probabilities; None where it has none
    stated: Floats | None
    # `[G]`, mean cost on the test samples that no exit gets right; NaN where there are none
    hopeless_costs: Floats
    # `[G, M]`, share of the test samples that stop early at each exit with a confidence of at
    # least one half, and with less, as hopeless
    sure: Floats
    gave_up: Floats

    def among(self, exits: Sequence[int], count: int) -> "BudgetPoints":
        """The same among all exits of a network: no sample leaves where an exit is left out."""
        thresholds = placed(self.thresholds.T, exits[:-1], count, np.inf)
        thresholds[exits[-1]] = -np.inf  # where all samples leave that are left
        stated = self.stated
        return replace(
            self,
            thresholds=thresholds[:-1].T,
            stated=None if stated is None else placed(stated.T, exits[:-1], count, np.nan)[:-1].T,
            **{
                name: placed(getattr(self, name).T, exits, count, 0.0).T
                for name in ("shares", "sure", "gave_up")
            },
        )


@dataclass(frozen=True)
class Reliability:
    """Stated probability against how often the answer is right, in the bins of the ECE.

    At the last exit, where no scorer runs, the answer's max probability is what is stated.
    """

    stated: Floats  # `[M, B]`, mean in each bin; NaN where it is empty, or nothing is stated
    right: Floats  # `[M, B]`, share of right answers in each bin
    counts: Counts  # `[M, B]`, samples in each bin

    def among(self, exits: Sequence[int], count: int) -> "Reliability":
        """The same among all exits of a network; empty bins at the exits that are left out."""
        stated, right = (placed(part, exits, count, np.nan) for part in (self.stated, self.right))
        return Reliability(stated, right, placed(self.counts, exits, count, 0))


@dataclass(frozen=True)
class ScoreHistograms:
    """Stop scores of the samples that should stop, and of the samples that should go on."""

    edges: Floats  # `[M-1, H+1]`; the outer bins also hold the half per cent beyond each end
    stop: Counts  # `[M-1, H]`, samples that are right here, or hopeless from here on
    go: Counts  # `[M-1, H]`, the others

    def among(self, exits: Sequence[int], count: int) -> "ScoreHistograms":
        """The same among all exits of a network; empty where no scorer runs."""
        kept = exits[:-1]
        edges = placed(self.edges, kept, count, 0.0)
        edges += np.linspace(0, 1, edges.shape[1]) * (np.ptp(edges, axis=1, keepdims=True) == 0)
        stop, go = (placed(part, kept, count, 0) for part in (self.stop, self.go))
        return ScoreHistograms(edges[:-1], stop[:-1], go[:-1])


@dataclass(frozen=True)
class Diagnostics:
    """Of one fitted and tuned policy, on test."""

    points: BudgetPoints  # along the budgets
    reliability: Reliability  # per exit
    histograms: ScoreHistograms  # per exit but the last
    hopeless_count: int  # test samples that no exit of the network gets right

    def among(self, exits: Sequence[int], count: int) -> "Diagnostics":
        """The same among all exits of a network, of which the policy has kept some."""
        return Diagnostics(
            self.points.among(exits, count),
            self.reliability.among(exits, count),
            self.histograms.among(exits, count),
            self.hopeless_count,
        )


def diagnose(policy: Policy, replay: Replay) -> Diagnostics:
    """The diagnostics of a fitted and tuned policy, replayed on test."""
    return Diagnostics(
        _along_budgets(policy, replay),
        reliability(replay, policy.scorer),
        score_histograms(replay.scores[:, :-1], replay.stop_targets[:, :-1]),
        int(replay.hopeless.sum()),
    )


def _along_budgets(policy: Policy, replay: Replay) -> BudgetPoints:
    chosen = np.array([policy.points.nearest(budget) for budget in GRID])
    curve = replay.curve
    place = curve.points.argsort()[chosen]  # the curve is sorted by its own costs
    thresholds = policy.points.thresholds[chosen]
    stated = policy.scorer.probability(thresholds[:, :-1])
    exits = replay.exits_by_point[chosen]  # [G, N]
    early, lost, count = exits < replay.last_exits, replay.hopeless, thresholds.shape[1]
    sure = np.take_along_axis(replay.confidences.T, exits, axis=0) >= SURE
    with np.errstate(invalid="ignore"):  # NaN where no sample is hopeless, as documented
        hopeless_costs = replay.costs_by_point[chosen][:, lost].sum(axis=1) / lost.sum()
    return BudgetPoints(
        budgets=np.array(GRID),
        points=chosen,
        val_costs=policy.points.budgets[chosen],
        costs=curve.costs[place],
        accuracies=curve.accuracies[place],
        shares=curve.shares[place],
        thresholds=thresholds[:, :-1],
        stated=None if stated is None else float64(stated),
        hopeless_costs=hopeless_costs,
        sure=exit_shares(np.where(early & sure, exits, -1), count),
        gave_up=exit_shares(np.where(early & ~sure, exits, -1), count),
    )


def reliability(replay: Replay, scorer: Scorer, bins: int = 15) -> Reliability:
    """The reliability diagram of every exit."""
    pairs = zip(stated_probabilities(replay, scorer), replay.correct.T, strict=True)
    rows = zip(*(_bin_means(*pair, bins) for pair in pairs), strict=True)
    return Reliability(*map(np.stack, rows))


def _bin_means(stated: Array | None, correct: Array, bins: int) -> tuple[Floats, Floats, Counts]:
    if stated is None:
        return np.full(bins, np.nan), np.full(bins, np.nan), np.zeros(bins, np.int64)
    index = ece_bins(stated, bins)
    counts, sums, hits = (
        np.bincount(index, weights=weights, minlength=bins) for weights in (None, stated, correct)
    )
    with np.errstate(invalid="ignore"):  # an empty bin is NaN, as documented
        return sums / counts, hits / counts, counts


def score_histograms(scores: Array, targets: Array, bins: int = 40) -> ScoreHistograms:
    """Histograms of scores `[N, M-1]` by stop target `[N, M-1]`."""
    low, high = np.quantile(scores, [0.005, 0.995], axis=0)
    # Bins need a width even where a scorer gives every sample the same score.
    edges = np.linspace(low, np.maximum(high, low + 1e-6), bins + 1, axis=1)
    inside = np.clip(scores, edges[:, 0], edges[:, -1])

    def count(wanted: Array) -> Counts:
        rows = [
            np.histogram(column[mask], bins=limits)[0]
            for column, mask, limits in zip(inside.T, wanted.T, edges, strict=True)
        ]
        return np.array(rows, dtype=np.int64).reshape(len(edges), bins)

    return ScoreHistograms(edges, count(targets), count(~targets))
