"""Paired bootstrap over test samples: the same resamples for every method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from offramp.arrays import Array
from offramp.files import Number
from offramp.metrics import ece_bins
from offramp.replay import Replay, accuracy_at
from offramp.scorers import Scorer

QUANTILE = 1.959964  # of the normal distribution, for two-sided intervals of 95 %
NEGLIGIBLE = 5e-5  # half of the last digit of an accuracy in percent


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval.

    Attributes:
        value: As measured.
        low: Lower end.
        high: Upper end.
        is_clear: Whether the interval leaves zero out, by more than tables show. (Two methods
            that decide alike still differ by the few MACs of one of them.)
    """

    value: Number
    low: Number
    high: Number
    is_clear: bool

    @classmethod
    def around(cls, value: float, error: float, negligible: float = 0.0) -> Self:
        """The interval around a difference of shares with this standard error, within [-1, 1].

        Args:
            value: As measured.
            error: Its standard error.
            negligible: An end this close to zero counts as zero.
        """
        low, high = value - QUANTILE * error, value + QUANTILE * error
        is_clear = low > negligible or high < -negligible
        return cls(value, max(low, -1.0), min(high, 1.0), is_clear)  # of two shares

    @property
    def is_gain(self) -> bool:
        """Whether it is clearly above zero."""
        return self.is_clear and self.low > 0

    @property
    def is_loss(self) -> bool:
        """Whether it is clearly below zero."""
        return self.is_clear and self.high < 0


def for_all(gap: Interval, count: int) -> Interval:
    """An interval as wide as it must be for `count` of them to hold together (Bonferroni).

    The best of several methods, and the largest of several differences, owe something to luck.

    Example:
        >>> gap = for_all(Interval(0.05, 0.01, 0.09, True), count=6)
        >>> round(gap.low, 3), gap.is_clear
        (-0.004, False)
    """
    factor = float(scipy.special.ndtri(1 - 0.025 / count)) / QUANTILE
    low = gap.value - factor * (gap.value - gap.low)
    high = gap.value + factor * (gap.high - gap.value)
    is_clear = gap.is_clear and (low > 0 or high < 0)
    return Interval(gap.value, max(low, -1.0), min(high, 1.0), is_clear)


def difference(
    value: float, resampled: Array, negligible: float = NEGLIGIBLE, unseen: float = 0.0
) -> Interval:
    """The 95 % interval of a difference, from its standard error over resamples `[R]`.

    Only their spread is used, not where they lie: resampling adds noise to the samples, and a
    calibration error only grows by noise.

    Args:
        value: As measured.
        resampled: The difference in every resample.
        negligible: An end this close to zero counts as zero.
        unseen: Added to the variance; `unseen_variance` for a difference of accuracies.

    Example:
        >>> found = difference(0.5, np.array([0.4, 0.5, 0.6]))
        >>> round(found.low, 3), round(found.high, 3), found.is_clear
        (0.304, 0.696, True)
    """
    error = (float(np.var(resampled, ddof=1, dtype=np.float64)) + unseen) ** 0.5
    return Interval.around(value, error, negligible)


def unseen_variance(samples: int) -> float:
    """What the variance of a difference of accuracies is raised by: one more sample for each side.

    Resamples of samples on which two policies hardly differ hardly differ either, and say that
    the difference is known exactly. It is not: with none of N samples on which only one policy
    is right, such samples may still be three in N. Bonett and Price (2012) count one more of
    them for each policy, which adds `2 / N²`. Then it takes six such samples, all for the same
    policy, to call it better, as in the exact test of McNemar.

    Example:
        >>> unseen_variance(100)
        0.0002
    """
    return 2 / samples**2


class Resamples:
    """`count` (R) bootstrap resamples of `samples` (N) samples, as weights.

    Samples of a group are not independent: groups `[N]` are drawn whole.
    """

    def __init__(
        self, samples: int, count: int = 1000, seed: int = 0, groups: Array | None = None
    ) -> None:
        rng = np.random.default_rng(seed)
        units = samples if groups is None else int(groups.max()) + 1
        self.weights = np.empty((count, samples), np.float32)  # rows sum to one
        for row in self.weights:
            counts = np.bincount(rng.integers(units, size=units), minlength=units)
            drawn = counts if groups is None else counts[groups]
            row[:] = drawn / drawn.sum()

    def means(self, values: Array) -> Array:
        """Resampled means `[R, P]` of values `[N, P]`, in float32 for speed."""
        return self.weights @ values.astype(np.float32)

    def accuracies(self, replay: Replay, budgets: Sequence[float]) -> Array:
        """Resampled accuracies at the budgets, `[R, B]`: each resample has its own curve."""
        right: Array = np.take_along_axis(replay.correct, replay.exits_by_point.T, axis=1)
        return self.curves(replay.costs_by_point.T, right, budgets)

    def curves(self, costs: Array, right: Array, budgets: Sequence[float]) -> Array:
        """The same from what each sample costs, and whether it is right, at points: `[N, P]`."""
        wanted = np.asarray(budgets, np.float32)
        accuracies, _ = accuracy_at(self.means(costs), self.means(right), wanted)
        return accuracies.astype(np.float64)

    def ece(self, replay: Replay, scorer: Scorer, bins: int = 15) -> Array | None:
        """Resampled calibration error, mean over all exits but the last, `[R]`.

        The bins stay as they are in the whole sample. None where the scorer states no probability,
        or where there is only one exit.
        """
        last = replay.scores.shape[1] - 1
        stated = scorer.probability(replay.scores[:, :last])
        if stated is None or not last:
            return None
        gaps = stated - replay.correct[:, :last]  # [N, M-1]
        index = np.stack([ece_bins(column, bins) for column in stated.T], axis=1)
        spread = np.zeros((*gaps.shape, bins), np.float32)
        np.put_along_axis(spread, index[..., None], gaps[..., None], axis=2)
        per_bin = self.means(spread.reshape(len(gaps), -1)).reshape(-1, last, bins)
        errors: Array = np.abs(per_bin).sum(axis=2).mean(axis=1, dtype=np.float64)
        return errors

    def eefp(self, replay: Replay) -> Array:
        """Resampled EEFP, mean over all exits but the last, `[R]`.

        To first order: an AUROC moves with the weights by each sample's share in it (the
        structural components of DeLong et al. 1988), so that one product replaces R rankings.
        """
        columns = zip(replay.scores[:, :-1].T, replay.stop_targets[:, :-1].T, strict=True)
        found = [auroc_shares(s, t) for s, t in columns if t.any() and not t.all()]
        if not found:
            return np.full(len(self.weights), np.nan)
        areas, shares = (np.mean(part, axis=0) for part in zip(*found, strict=True))
        moved: Array = areas + self.means(shares[:, None])[:, 0]
        return moved


def auroc_shares(scores: Array, targets: Array) -> tuple[float, Array]:
    """The AUROC, and how much each sample pulls it up or down, `[N]` with mean zero.

    Their variance is DeLong's, who divides by one sample less in each class.
    """
    ranks = scipy.stats.rankdata(scores)
    placed = np.empty(len(scores))
    for positive, others in ((True, (~targets).sum()), (False, targets.sum())):
        mine = targets == positive
        placed[mine] = (ranks[mine] - scipy.stats.rankdata(scores[mine])) / others
    placed[~targets] = 1 - placed[~targets]
    area = float(placed[targets].mean())
    count = np.where(targets, targets.sum(), (~targets).sum())
    weight = len(targets) / np.sqrt(count * np.maximum(count - 1, 1))
    return area, weight * (placed - area)
