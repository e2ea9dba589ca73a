"""An alarm for drift that may be looked at after every batch, for ever.

The shares of the exits on val are known from n samples only, so they are compared with a stated
tolerance. Let `v` be the val shares and D the relative entropy.

Null hypothesis: the exits of the stream are drawn independently from one and the same `p` with
`n * D(v, p) <= radius`. The radius is such that the shares of n samples from `p` are within it
with probability 1 - rate/2 (Agrawal 2020, a bound for every sample size).

The evidence is a likelihood ratio: a mixture over all shares (Dirichlet with parameters 1/2)
against the best `p` within the null hypothesis. Under each such `p` it is at most a martingale
that starts at 1, so by Ville's inequality the probability that it *ever* reaches 2/rate is at most
rate/2. Together: the probability of any false alarm in the whole stream is at most `rate`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy

__all__ = ["DriftAlarm", "entropy_radius"]

Floats = npt.NDArray[np.float64]

PRIOR = 0.5
# Evidence is worked out when there are so many more samples than last time, and times more: for
# single samples it would take longer than their network. Looking less often alarms less often.
STEP, GROWTH = 50, 1.02


class DriftAlarm:
    """Compares the exits of a stream with the shares seen on val.

    Args:
        shares: `[M]`, on val.
        samples: How many val samples they come from.
        rate: Probability of a false alarm over the whole stream, at most.
        is_open: `[M]`, exits at which a sample can stop; all by default.

    Attributes:
        alarm: Whether there ever was enough evidence; it stays on.

    Example:
        >>> alarm = DriftAlarm([0.5, 0.3, 0.2], samples=2000, rate=0.01)
        >>> alarm.add([510, 290, 200])
        >>> alarm.alarm
        False
        >>> alarm.add([200, 300, 500])
        >>> alarm.alarm
        True
    """

    def __init__(
        self,
        shares: Sequence[float] | Floats,
        samples: int,
        rate: float = 0.01,
        is_open: Sequence[bool] | None = None,
    ) -> None:
        shares = np.asarray(shares, dtype=np.float64)
        # Nothing can happen at a closed exit, so there is nothing to estimate there.
        self._cells = np.ones(len(shares), dtype=bool) if is_open is None else np.array(is_open)
        self._val = shares[self._cells] * samples
        self._counts = np.zeros(len(self._val))
        self._radius = entropy_radius(len(self._val), rate / 2)
        self._enough = np.log(2 / rate)
        self._checked_at = 0.0
        self.rate = rate
        self.alarm = False

    def add(self, counts: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Count how many further samples left at each exit, `[M]`."""
        self._counts += np.asarray(counts, dtype=np.float64)[self._cells]
        if self._counts.sum() >= max(self._checked_at + STEP, GROWTH * self._checked_at):
            self.check()

    def check(self) -> bool:
        """Work out the evidence now, and say whether there is an alarm."""
        self._checked_at = self._counts.sum()
        self.alarm = self.alarm or bool(self.log_evidence >= self._enough)
        return self.alarm

    @property
    def log_evidence(self) -> float:
        """Logarithm of the likelihood ratio; the alarm needs log(2 / rate)."""
        counts = self._counts
        if len(counts) < 2 or not counts.sum():
            return 0.0
        return _log_mixture(counts) - self._best_within(counts)

    def _best_within(self, counts: Floats) -> float:
        """The largest log-likelihood of the counts under any `p` of the null hypothesis.

        The best `p` is a mixture of the stream's counts and val's, with as little of val's as
        brings it within the radius.
        """

        def outside(log_weight: float) -> float:
            mixed = counts + np.exp(log_weight) * self._val
            return _divergence(self._val, mixed / mixed.sum()) - self._radius

        low, high = -40.0, 40.0
        if outside(low) <= 0:
            best = counts / counts.sum()
        else:
            weight = np.exp(brentq(outside, low, high, xtol=1e-9))
            mixed = counts + weight * self._val
            best = mixed / mixed.sum()
        return float(xlogy(counts, best).sum())


def entropy_radius(cells: int, rate: float) -> float:
    """How far shares of n samples are from the truth, as n times their relative entropy.

    Args:
        cells: Number of possible outcomes k.
        rate: Probability of being farther away, at most, for every n.

    Example:
        >>> round(entropy_radius(cells=9, rate=0.005), 1)
        21.0
    """
    freedom = cells - 1
    if freedom < 1:
        return 0.0

    def log_bound(radius: float) -> float:
        """Log of exp(-x) (e x / (k-1))^(k-1), which falls for x above k-1."""
        return float(-radius + freedom * (1 + np.log(radius / freedom)) - np.log(rate))

    return float(brentq(log_bound, freedom, 100 * (freedom - np.log(rate))))


def _divergence(counts: Floats, shares: Floats) -> float:
    """Relative entropy of `counts / n` to `shares`, n times; infinite if a count is impossible."""
    seen = counts > 0
    with np.errstate(divide="ignore"):
        ratio = np.log(counts[seen] / counts.sum()) - np.log(shares[seen])
    return float((counts[seen] * ratio).sum())


def _log_mixture(counts: Floats) -> float:
    """Log-probability of a sequence with these counts under the Dirichlet mixture."""
    cells = len(counts)
    norm = gammaln(cells * PRIOR) - cells * gammaln(PRIOR)
    return float(norm + gammaln(counts + PRIOR).sum() - gammaln(counts.sum() + cells * PRIOR))
