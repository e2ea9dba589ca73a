"""Paired bootstrap over test samples: the same resamples for every method."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
import torch
from torch import Tensor

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
        """The interval around a value with this standard error.

        Args:
            value: As measured.
            error: Its standard error.
            negligible: An end this close to zero counts as zero.
        """
        low, high = value - QUANTILE * error, value + QUANTILE * error
        return cls(value, low, high, low > negligible or high < -negligible)


def difference(
    value: float, resampled: Tensor, negligible: float = NEGLIGIBLE, unseen: float = 0.0
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
        >>> found = difference(0.5, torch.tensor([0.4, 0.5, 0.6]))
        >>> round(found.low, 3), round(found.high, 3), found.is_clear
        (0.304, 0.696, True)
    """
    error = (float(resampled.double().var()) + unseen) ** 0.5
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

    Samples of a group are no independent witnesses: groups `[N]` are drawn whole.
    """

    def __init__(
        self, samples: int, count: int = 1000, seed: int = 0, groups: Tensor | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        units = samples if groups is None else int(groups.max()) + 1
        self.weights = torch.empty(count, samples)  # rows sum to one
        for row in self.weights:
            drawn = torch.randint(units, (units,), generator=generator)
            counts = torch.bincount(drawn, minlength=units)
            row.copy_(counts / units if groups is None else counts[groups] / counts[groups].sum())

    def means(self, values: Tensor) -> Tensor:
        """Resampled means `[R, P]` of values `[N, P]`."""
        return self.weights @ values.float()

    def accuracies(self, replay: Replay, budgets: Tensor) -> Tensor:
        """Resampled accuracies at the budgets, `[R, B]`: each resample has its own curve."""
        exits = replay.exits_by_point.T.long()  # [N, P]
        return self.curves(replay.costs_by_point.T, replay.correct.gather(1, exits), budgets)

    def curves(self, costs: Tensor, right: Tensor, budgets: Tensor) -> Tensor:
        """The same from what each sample costs, and whether it is right, at points: `[N, P]`."""
        found = accuracy_at(self.means(costs), self.means(right), budgets.float())
        return found[0].double()

    def ece(self, replay: Replay, scorer: Scorer, bins: int = 15) -> Tensor | None:
        """Resampled calibration error, mean over all exits but the last, `[R]`.

        The bins stay as they are in the whole sample. None where the scorer states no probability,
        or where there is only one exit.
        """
        last = replay.scores.shape[1] - 1
        stated = scorer.probability(replay.scores[:, :last])
        if stated is None or not last:
            return None
        gaps = (stated - replay.correct[:, :last].float())[..., None]  # [N, M-1, 1]
        index = torch.stack([torch.from_numpy(ece_bins(p, bins)) for p in stated.T], dim=1)
        spread = torch.zeros(len(gaps), last, bins).scatter_(2, index[..., None], gaps)
        per_bin = self.means(spread.flatten(1)).view(-1, last, bins)
        return per_bin.abs().sum(dim=2).mean(dim=1).double()

    def eefp(self, replay: Replay) -> Tensor:
        """Resampled EEFP, mean over all exits but the last, `[R]`.

        To first order: an AUROC moves with the weights by each sample's share in it (the
        structural components of DeLong et al. 1988), so that one product replaces R rankings.
        """
        targets = replay.stop_targets.numpy()
        known = (targets[:, :-1].mean(axis=0) > 0) & (targets[:, :-1].mean(axis=0) < 1)
        exits = known.nonzero()[0]
        if not len(exits):
            return torch.full((len(self.weights),), torch.nan, dtype=torch.float64)
        scores = replay.scores.numpy()
        shares = [auroc_shares(scores[:, index], targets[:, index]) for index in exits]
        area = float(np.mean([value for value, _ in shares]))
        per_sample = torch.from_numpy(np.mean([share for _, share in shares], axis=0))
        moved = self.means(per_sample[:, None]).squeeze(1).double()
        return moved + area


def auroc_shares(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
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
