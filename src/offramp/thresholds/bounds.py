"""Upper confidence bounds for the mean of losses in [0, 1], for many losses at once.

Each bound lies above the true mean with probability 1 - delta over the draw of the samples,
whatever their distribution. `conformal` is different: it bounds the mean on average over draws.
"""

from collections.abc import Callable
from math import e, log

import numpy as np
import torch
from scipy.special import bdtr
from torch import Tensor

from offramp.errors import ConfigError, LedgerError
from offramp.thresholds.cuts import Floats

__all__ = ["BOUNDS", "Bound", "betting", "conformal", "hoeffding_bentkus"]

Bound = Callable[[Tensor, float], Tensor]
"""`(losses [N, P], delta) -> upper bounds [P]`."""

STEPS = 32  # of bisection: the bound is exact to 2^-32, and never below the exact one
EMPTY = 1e-300  # stands in for the logarithm of zero


def hoeffding_bentkus(losses: Tensor, delta: float) -> Tensor:
    """The bound of Bates et al. (2021): the smaller of Hoeffding's and Bentkus's.

    Args:
        losses: `[N, P]` in [0, 1], samples drawn independently.
        delta: Probability with which the bound may fail, for each of the P.

    Example:
        >>> hoeffding_bentkus(torch.zeros(100, 1, dtype=torch.float64), delta=0.1)
        tensor([0.0228], dtype=torch.float64)
    """
    values = _checked(losses, delta)
    totals, samples = values.sum(axis=0), len(values)

    def excluded(mean: Floats) -> Floats:
        return np.asarray(p_value(totals, samples, mean) <= delta)

    return _smallest(excluded, values.shape[1])


def p_value(totals: Floats, samples: int, epsilon: float | Floats) -> Floats:
    """How surprising totals `[P]` of losses would be if their mean were above epsilon."""
    mean = np.minimum(totals / samples, epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(mean > 0, mean * np.log(mean / epsilon), 0.0)
        above = np.where(
            mean < 1, (1 - mean) * np.log((1 - mean) / (1 - np.asarray(epsilon))), 0.0
        )
    hoeffding = np.exp(-samples * (below + above))
    # Sums of floats may lie a hair above a whole number, and must not be rounded up to the next.
    bentkus = e * bdtr(np.ceil(totals - 1e-9), samples, epsilon)
    smaller: Floats = np.minimum(hoeffding, bentkus)
    return smaller


def betting(losses: Tensor, delta: float) -> Tensor:
    """The bound of Waudby-Smith and Ramdas (2024): nobody gets rich betting on a true mean.

    Sample by sample, a gambler stakes a share of his wealth on losses below a mean. If that mean
    is true, his wealth exceeds 1 / delta with probability delta at most; means with which it did
    are excluded. The stakes are those of Bates et al. (2021). They adapt to the variance, so
    that rare losses cost little.

    The samples are bet on in a random order that is always the same: a file may be sorted. Early
    luck can exclude even the mean of the sample; the bound is not put below that.

    Args:
        losses: `[N, P]` in [0, 1], samples drawn independently.
        delta: Probability with which the bound may fail, for each of the P.

    Example:
        >>> betting(torch.zeros(100, 1, dtype=torch.float64), delta=0.1)
        tensor([0.0238], dtype=torch.float64)
    """
    values = _checked(losses, delta)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0)).numpy()
    values = values[order]
    stakes = _stakes(values, delta)
    won = 1 - stakes * values  # wealth is multiplied by `won + stakes * mean`

    def excluded(mean: Floats) -> Floats:
        growth = np.log(np.maximum(won + stakes * mean, EMPTY))
        richest: Floats = growth.cumsum(axis=0).max(axis=0)
        return np.asarray(richest >= log(1 / delta))

    return _smallest(excluded, values.shape[1]).maximum(torch.from_numpy(values.mean(axis=0)))


def conformal(losses: Tensor) -> Tensor:
    """Mean loss with one more sample of the largest possible loss (Angelopoulos et al. 2024).

    The first of many policies, ordered from the risky to the safe one, for which this is at most
    epsilon has a mean loss of at most epsilon on a new sample, on average over draws of the
    samples. That holds for losses that never grow towards the safe end.

    Args:
        losses: `[N, P]` in [0, 1].

    Example:
        >>> conformal(torch.zeros(99, 1, dtype=torch.float64))
        tensor([0.0100], dtype=torch.float64)
    """
    values = _checked(losses, 0.5)
    return torch.from_numpy((values.sum(axis=0) + 1) / (len(values) + 1))


def _stakes(values: Floats, delta: float) -> Floats:
    """Each bet `[N, P]` as a share of the wealth; it knows the samples before it only."""
    samples = len(values)
    seen = np.arange(2, samples + 2)[:, None]
    means = (0.5 + values.cumsum(axis=0)) / seen
    variances = (0.25 + np.square(values - means).cumsum(axis=0)) / seen
    before = np.concatenate([np.full((1, values.shape[1]), 0.25), variances[:-1]])
    stakes: Floats = np.minimum(1.0, np.sqrt(2 * log(1 / delta) / (samples * before)))
    return stakes


def _smallest(excluded: Callable[[Floats], Floats], count: int) -> Tensor:
    """The smallest means `[P]` that are excluded; all above an excluded one are, too."""
    low, high = np.zeros(count), np.ones(count)
    for _ in range(STEPS):
        middle = (low + high) / 2
        out = excluded(middle)
        low, high = np.where(out, low, middle), np.where(out, middle, high)
    return torch.from_numpy(high)


def _checked(losses: Tensor, delta: float) -> Floats:
    values: Floats = torch.as_tensor(losses, dtype=torch.float64).numpy()
    if values.ndim != 2 or not len(values):
        raise LedgerError(f"`losses` must have the shape [N, P], got {list(values.shape)}")
    if not (values >= 0).all() or not (values <= 1).all():
        raise LedgerError(
            f"`losses` must lie in [0, 1], got {np.nanmin(values):g} to {np.nanmax(values):g}"
        )
    if not 0 < delta < 1:
        raise ConfigError(f"`delta` must lie in (0, 1), got {delta}")
    return values


BOUNDS: dict[str, Bound] = {"betting": betting, "hoeffding-bentkus": hoeffding_bentkus}
