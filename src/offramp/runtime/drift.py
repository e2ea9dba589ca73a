"""Whether a stream still takes the exits that val took: alarms that may be read at any time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy

from offramp.runtime.ladder import PreparedPoint

Floats = npt.NDArray[np.float64]

PRIOR = 0.5
# Evidence is computed once there are that many more samples, and that factor more, than last
# time: for single samples it would take longer than their network. Checking less often can only
# lower the rate of false alarms.
STEP, GROWTH = 50, 1.02
TILTS = (-0.8, -0.4, -0.2, -0.1, 0.1, 0.2, 0.4, 0.8)  # of the logarithm of a share


class DriftAlarm:
    """Compares the exits of a stream with the shares `[M]` seen on val.

    The shares come from `samples` val samples. `rate` bounds the probability of a false alarm over
    the whole stream; an `alarm` stays on. A sample can stop at the exits in `is_open`, by default
    at all.
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
        """Add the numbers `[M]` of samples that left at each exit."""
        self._counts += np.asarray(counts, dtype=np.float64)[self._cells]
        if self._counts.sum() >= max(self._checked_at + STEP, GROWTH * self._checked_at):
            self.check()

    def check(self) -> bool:
        """Compute the evidence now, and return whether there is an alarm."""
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
            weight = np.exp(scipy.optimize.brentq(outside, low, high, xtol=1e-9))
            mixed = counts + weight * self._val
            best = mixed / mixed.sum()
        return float(scipy.special.xlogy(counts, best).sum())


class MovingDriftAlarm:
    """Compares exits with val's while the operating point moves, as a held budget moves it.

    If nothing has drifted, each sample leaves at an exit that is drawn from the shares at the
    point of that moment, whoever has chosen it. Evidence is the mean, over ways in which shares
    could be tilted, of the likelihood ratio of tilted against untilted shares, multiplied over
    all samples at all points. Val has only n samples, so at each point the ratio is divided by
    the most that it can be on average for any shares that are compatible with val there. Half of
    `rate` is spent on that, over all `points` together, and half on the stream.
    """

    def __init__(self, exits: int, points: int, rate: float = 0.01) -> None:
        self._tilts = _tilts(exits)
        self._logs = np.zeros(len(self._tilts))
        self._limits: dict[int, Floats] = {}
        self._rate_of_val = rate / 2 / points
        self._enough = np.log(2 / rate)
        self.alarm = False

    def add(self, point: PreparedPoint, counts: npt.NDArray[np.int64]) -> None:
        """Add the numbers `[M]` of samples that left at each exit, at one operating point."""
        limit = self._limits.get(point.index)
        if limit is None:
            limit = self._limits[point.index] = self._limit(point)
        self._logs += self._tilts @ counts - counts.sum() * limit
        self.alarm = self.alarm or bool(self.log_evidence >= self._enough)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the evidence; the alarm needs log(2 / rate)."""
        most = self._logs.max()
        return float(most + np.log(np.exp(self._logs - most).mean()))

    def _limit(self, point: PreparedPoint) -> Floats:
        """For each tilt the log of its largest mean under shares that are compatible with val."""
        cells = np.array(point.is_open)
        shares = np.array(point.expected_shares)[cells]
        slack = entropy_radius(len(shares), self._rate_of_val) / point.val_samples
        return np.log(_largest_mean(np.exp(self._tilts[:, cells]), shares, slack))


def _tilts(exits: int) -> Floats:
    """Ways in which shares can change, `[T, M]`: one exit, or all from one on, more or less."""
    single = np.eye(exits)
    from_one_on = np.triu(np.ones((exits, exits)))[1:]
    shapes = np.concatenate([single, from_one_on])
    return np.concatenate([size * shapes for size in TILTS])


def _largest_mean(values: Floats, shares: Floats, slack: float) -> Floats:
    """A bound on the mean of values `[T, M]` under any p with D(shares, p) <= slack.

    The dual of that maximum: every number above all values gives a bound, and the best of many is
    taken.
    """
    top = values.max(axis=1, keepdims=True)
    width = np.maximum(top - values.min(axis=1, keepdims=True), 1e-6)
    above = top + width * np.logspace(-4, 3, 64)  # [T, 64]
    logs = np.log(above[:, :, None] - values[:, None, :])
    bounds = above - np.exp((shares * logs).sum(axis=2) - slack)
    found: Floats = bounds.min(axis=1)
    return found


def entropy_radius(cells: int, rate: float) -> float:
    """Bound on how far the shares of n samples lie from the truth: n times their relative entropy.

    With `cells` possible outcomes, the probability of lying farther away for any n is `rate`.
    """
    freedom = cells - 1
    if freedom < 1:
        return 0.0

    def log_bound(radius: float) -> float:
        """Log of exp(-x) (e x / (k-1))^(k-1), which falls for x above k-1."""
        return float(-radius + freedom * (1 + np.log(radius / freedom)) - np.log(rate))

    return float(scipy.optimize.brentq(log_bound, freedom, 100 * (freedom - np.log(rate))))


def _divergence(counts: Floats, shares: Floats) -> float:
    """N times the relative entropy of `counts / n` to `shares`; infinite for impossible counts."""
    seen = counts > 0
    with np.errstate(divide="ignore"):
        ratio = np.log(counts[seen] / counts.sum()) - np.log(shares[seen])
    return float((counts[seen] * ratio).sum())


def _log_mixture(counts: Floats) -> float:
    """Log-probability of a sequence with these counts under the Dirichlet mixture."""
    cells = len(counts)
    norm = scipy.special.gammaln(cells * PRIOR) - cells * scipy.special.gammaln(PRIOR)
    return float(
        norm
        + scipy.special.gammaln(counts + PRIOR).sum()
        - scipy.special.gammaln(counts.sum() + cells * PRIOR)
    )
