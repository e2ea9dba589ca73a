"""Upper bounds of mean losses that hold with a stated confidence, of independent samples."""

from collections.abc import Callable
from math import e, log

import numpy as np
import scipy

from offramp import check
from offramp.arrays import AnyArray, Array, Floats, as_numpy
from offramp.errors import LedgerError
from offramp.ledger.chunks import cut

Bound = Callable[[AnyArray, float, bool], Floats]
"""`(losses [N, P], delta, signed) -> upper bounds [P]`; each may fail with probability delta.

Losses lie in [0, 1]; signed ones in [-1, 1], where less than zero is a gain. Samples with nan do
not count. Bounds lie in [0, 1].
"""

STEPS = 32  # of bisection: the bound is exact to 2^-32, and never below the exact one
EMPTY = 1e-300  # stands in for the logarithm of zero


SPENT = 0.01  # of delta, on the share of samples that differ
REACH = 9.0  # standard deviations and samples to each side, beyond which a count is impossible
UNLIKELY = 1e-12  # more than what lies beyond them


def exact(losses: AnyArray, delta: float, signed: bool = False) -> Floats:
    """The bound of Clopper and Pearson, of losses that are 0 or 1; signed, 1, 0 or -1.

    Signed losses spend a hundredth of delta on the share of samples that differ at all: the test
    of Berger and Boos (1994), with that share at its upper bound. Where it is at most one half,
    the number of losses without the number of gains is a difference of two binomial numbers,
    which has one mode, within one of its mean (Darroch 1964); and below the mode it is the
    likelier to be small, the more samples differ. So no smaller share need be tried.

    Example:
        >>> exact(np.zeros((100, 1)), delta=0.1).round(4)
        array([0.0228])
        >>> losses = np.repeat([[1.0], [-1.0], [0.0]], [20, 20, 960], axis=0)
        >>> bool(exact(losses, 0.1, True)[0] < hoeffding_bentkus(losses, 0.1, True)[0])
        True
    """
    values, counts = _checked_losses(losses, delta, signed)
    if not (np.isnan(values) | (values == np.round(values))).all():
        raise LedgerError("`exact` bounds need losses that are whole numbers; use `betting`")
    lost, gained = np.nansum(values > 0, axis=0), np.nansum(values < 0, axis=0)

    def excluded(mean: Floats) -> Floats:
        if signed:
            return np.asarray(net_p_value(lost, gained, counts, mean, delta) <= delta)
        return np.asarray(scipy.special.bdtr(lost, counts, mean) <= delta)

    return _smallest(excluded, values.shape[1])


def net_p_value(
    lost: AnyArray, gained: AnyArray, samples: AnyArray, epsilon: AnyArray, delta: float
) -> Floats:
    """How surprising these numbers of losses and gains would be if their mean were above epsilon.

    Args:
        lost: `[P]`, how many samples lost.
        gained: `[P]`, how many samples gained.
        samples: `[P]`, how many there are.
        epsilon: `[P]` or a number, in [0, 1].
        delta: The level of the test, a hundredth of which is spent on the share that differs.

    Example:
        >>> losses, gains, samples = np.array([[40, 60], [40, 20], [1000, 1000]])
        >>> net_p_value(losses, gains, samples, 0.02, delta=0.1).round(3)
        array([0.032, 1.   ])
    """
    lost, gained, samples, epsilon = np.broadcast_arrays(
        *(np.atleast_1d(as_numpy(part)) for part in (lost, gained, samples, epsilon))
    )
    spent, net = SPENT * delta, lost - gained
    differ = scipy.special.bdtri(lost + gained, samples, spent)
    differ = np.where(lost + gained < samples, differ, 1.0)  # the share's upper bound
    known = (differ <= 0.5) & (net <= (samples - 1) * epsilon - 2)
    found = np.ones(net.shape)
    found[known] = spent  # no share that is possible has so large a mean
    known &= differ >= epsilon
    if known.any():
        parts = (part[known] for part in (net, samples, epsilon, differ))
        found[known] += _below_net(*parts) + UNLIKELY
    return found


def _below_net(net: Floats, samples: Floats, epsilon: Floats, differ: Floats) -> Floats:
    """How probable at most this net number is, where a share differs and the mean is epsilon.

    A sample that loses with one probability and gains with another is a difference of two
    Bernoulli numbers; so the net number is one of two binomial numbers.
    """
    middle = (1 - epsilon) / 2
    gain = middle - np.sqrt(np.maximum(middle**2 - (differ - epsilon) / 2, 0))
    _, gains, chances = _likely(samples, gain)
    first, losses, others = _likely(samples, gain + epsilon)
    below = np.pad(others.cumsum(axis=1), ((0, 0), (1, 0)))  # of fewer losses than each
    place = (net[:, None] + gains - first[:, None] + 1).clip(0, losses.shape[1]).astype(np.int64)
    return np.asarray((chances * np.take_along_axis(below, place, axis=1)).sum(axis=1))


def _likely(samples: Floats, rate: Floats) -> tuple[Array, Array, Array]:
    """The counts `[P, G]` that are possible at all of binomial numbers, and their chances.

    The first of them, `[P]`, comes before.
    """
    reach = REACH * (np.sqrt(samples * rate * (1 - rate)) + 1)
    first = np.floor(np.maximum(samples * rate - reach, 0))
    counts = first[:, None] + np.arange(int(2 * reach.max()) + 3)
    many, chance = samples[:, None], rate[:, None]
    inside = np.minimum(counts, many)
    log_chance = (
        scipy.special.gammaln(many + 1)
        - scipy.special.gammaln(inside + 1)
        - scipy.special.gammaln(many - inside + 1)
        + scipy.special.xlogy(inside, chance)
        + scipy.special.xlog1py(many - inside, -chance)
    )
    return first, counts, np.where(counts <= many, np.exp(log_chance), 0.0)


def hoeffding_bentkus(losses: AnyArray, delta: float, signed: bool = False) -> Floats:
    """The bound of Bates et al. (2021): the smaller of Hoeffding's and Bentkus's.

    It depends on the mean and the range alone; signed losses have twice the range.

    Example:
        >>> hoeffding_bentkus(np.zeros((100, 1)), delta=0.1).round(4)
        array([0.0228])
    """
    values, counts = _checked_losses(losses, delta, signed)
    if signed:
        values = (values + 1) / 2
    totals = np.nansum(values, axis=0)

    def excluded(mean: Floats) -> Floats:
        return np.asarray(p_value(totals, counts, (mean + 1) / 2 if signed else mean) <= delta)

    return _smallest(excluded, values.shape[1])


def p_value(totals: Floats, samples: int | Array, epsilon: float | Floats) -> Floats:
    """How surprising totals `[P]` of losses would be if their mean were above epsilon."""
    mean = np.minimum(totals / np.maximum(samples, 1), epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(mean > 0, mean * np.log(mean / epsilon), 0.0)
        above = np.where(
            mean < 1, (1 - mean) * np.log((1 - mean) / (1 - np.asarray(epsilon))), 0.0
        )
    hoeffding = np.exp(-samples * (below + above))
    # Sums of floats may lie a hair above a whole number, and must not be rounded up to the next.
    bentkus = e * scipy.special.bdtr(np.ceil(totals - 1e-9), samples, epsilon)
    smaller: Floats = np.minimum(hoeffding, bentkus)
    return smaller


def betting(losses: AnyArray, delta: float, signed: bool = False) -> Floats:
    """The bound of Waudby-Smith and Ramdas (2024): betting on a true mean makes no gambler rich.

    Sample by sample, a gambler stakes a share of his wealth on losses below a mean. If that mean
    is true, his wealth exceeds 1 / delta with probability delta at most; means with which it did
    are excluded. Bates et al. (2021) state the stakes. They adapt to the variance, so
    that rare losses cost little.

    The samples are bet on in a random order that is always the same: a file may be sorted. Early
    luck can exclude even the mean of the sample; the bound is not put below that.

    Example:
        >>> betting(np.zeros((100, 1)), delta=0.1).round(4)
        array([0.0238])
    """
    values, counts = _checked_losses(losses, delta, signed)
    if (counts < len(values)).any():
        return np.array([_bet(column[~np.isnan(column), None], delta)[0] for column in values.T])
    return _bet(values, delta)


def _bet(values: Floats, delta: float) -> Floats:
    """`betting` of checked losses, all of which count."""
    if not len(values):
        return np.ones(values.shape[1])
    (order,) = cut(len(values), 1, seed=0)
    values = values[order]
    stakes = _stakes(values, delta)
    won = 1 - stakes * values  # wealth is multiplied by `won + stakes * mean`

    def excluded(mean: Floats) -> Floats:
        growth = stakes * mean
        growth += won  # in place, which takes half the time
        np.log(np.maximum(growth, EMPTY, out=growth), out=growth)
        richest: Floats = growth.cumsum(axis=0, out=growth).max(axis=0)
        return np.asarray(richest >= log(1 / delta))

    bounds: Floats = np.maximum(_smallest(excluded, values.shape[1]), values.mean(axis=0))
    return bounds


def conformal(losses: AnyArray) -> Floats:
    """Mean loss with one more sample of the largest possible loss (Angelopoulos et al. 2024).

    The first of many policies, ordered from the risky to the safe one, for which this is at most
    epsilon has a mean loss of at most epsilon on a new sample, on average over draws of the
    samples. That holds for losses `[N, P]` in [0, 1] that never grow towards the safe end.

    Example:
        >>> conformal(np.zeros((99, 1)))
        array([0.01])
    """
    values, _ = _checked_losses(losses, 0.5, signed=True)
    return np.asarray((values.sum(axis=0) + 1) / (len(values) + 1))


BOUNDS: dict[str, Bound] = {
    "exact": exact,
    "betting": betting,
    "hoeffding-bentkus": hoeffding_bentkus,
}


def upper_bounds(
    losses: AnyArray, level: float | None, bound: str = "exact", signed: bool = False
) -> Floats:
    """Upper bounds of the mean losses `[N, P]` along a path from its safe end, float64 `[P]`.

    The bounds never fall: a policy is certified only if all safer ones are.

    Args:
        losses: In [0, 1], or in [-1, 1] where they are signed; samples with nan do not count.
        level: The share of delta that they may use; None for conformal risk control.
        bound: Name of the bound.
        signed: Whether less than zero is possible, a gain.

    Example:
        >>> losses = np.zeros((200, 3))
        >>> losses[:20, 1] = 1.0  # the policy in the middle is the worst
        >>> upper_bounds(losses, 0.1).round(4)
        array([0.0114, 0.1328, 0.1328])
    """
    if level is None:
        # Losses that a safer policy has, too, count for the riskier one: then they never grow
        # towards the safe end, as conformal risk control needs, and bound the true ones.
        return conformal(np.maximum.accumulate(as_numpy(losses), axis=1))
    return np.maximum.accumulate(BOUNDS[bound](losses, level, signed))


def certified(bounds: Array, limit: float) -> int:
    """How many policies, from the safe end, are certified: the last is number count - 1.

    The scan ends before the first failure, and zero means that none is certified.

    Example:
        >>> certified(np.array([0.01, 0.04, 0.06]), limit=0.05)
        2
    """
    return int(np.logical_and.accumulate(bounds <= limit).sum())


def _stakes(values: Floats, delta: float) -> Floats:
    """Each bet `[N, P]` as a share of the wealth; it knows the samples before it only."""
    samples = len(values)
    seen = np.arange(2, samples + 2)[:, None]
    means = (0.5 + values.cumsum(axis=0)) / seen
    variances = (0.25 + np.square(values - means).cumsum(axis=0)) / seen
    before = np.concatenate([np.full((1, values.shape[1]), 0.25), variances[:-1]])
    stakes: Floats = np.minimum(1.0, np.sqrt(2 * log(1 / delta) / (samples * before)))
    return stakes


def _smallest(excluded: Callable[[Floats], Floats], count: int) -> Floats:
    """The smallest means `[P]` that are excluded; all above an excluded one are, too."""
    low, high = np.zeros(count), np.ones(count)
    for _ in range(STEPS):
        middle = (low + high) / 2
        out = excluded(middle)
        low, high = np.where(out, low, middle), np.where(out, middle, high)
    return high


def _checked_losses(losses: AnyArray, delta: float, signed: bool) -> tuple[Floats, Array]:
    """Losses `[N, P]`, and how many count in each column."""
    values: Floats = as_numpy(losses).astype(np.float64, copy=False)
    check.shape("losses", values, "N", "P", error=LedgerError)
    least = -1 if signed else 0
    if (values < least).any() or (values > 1).any():
        raise LedgerError(
            f"`losses` must lie in [{least}, 1], got {np.nanmin(values):g} to "
            f"{np.nanmax(values):g}"
        )
    check.within("delta", delta, 0, 1, ends="()")
    return values, np.asarray((~np.isnan(values)).sum(axis=0))
