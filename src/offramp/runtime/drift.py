"""Whether a stream still takes the exits that val took: an alarm that may be read at any time."""

from collections.abc import Sequence

import numpy as np
import scipy

from offramp.arrays import Floats
from offramp.runtime.prepared_points import PreparedPoint

# Samples are counted so many at a time: one by one it would take longer than a small network.
# Less frequent checks can only lower the rate of false alarms.
STEP = 50
TILTS = (-0.8, -0.4, -0.2, -0.1, 0.1, 0.2, 0.4, 0.8)  # of the logarithm of a share


class DriftAlarm:
    """Compares the exits that samples take with the shares of val at the operating point.

    If nothing has drifted, each sample leaves at an exit that is drawn from the shares at the
    point of that moment, whoever has chosen it. Evidence is the mean, over ways in which shares
    could be tilted, of the likelihood ratio of tilted against untilted shares, multiplied over
    all samples at all points. Val has only n samples, so at each point the ratio is divided by
    the most that it can be on average for any shares that are compatible with val there.

    `rate` bounds the probability of a false alarm over the whole stream: half of it is spent on
    the shares of val, at all points together, and half on the stream. An `alarm` stays on.
    """

    def __init__(self, exits: int, rate: float = 0.01) -> None:
        self.rate = rate
        self._enough = np.log(2 / rate)
        self._tilts = _tilts(exits)  # [T, M]
        self._logs = np.zeros(len(self._tilts))
        self._alarm = False
        self._gains: dict[int, Floats] = {}  # by point `[M, T]`: what a sample adds to the logs
        self._point: PreparedPoint | None = None
        self._waiting: list[int] = []  # exits at that point that are not in the logs yet

    def add(self, point: PreparedPoint, exits: Sequence[int]) -> None:
        """Add the exits of some samples, at one operating point."""
        if point is not self._point:
            self._count()
            self._point = point
            if point.index not in self._gains:
                self._gains[point.index] = self._gains_at(point)
        self._waiting += exits
        if len(self._waiting) >= STEP:
            self._count()

    @property
    def alarm(self) -> bool:
        """Whether there has been enough evidence."""
        self._count()
        return self._alarm

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the evidence; the alarm needs log(2 / rate)."""
        self._count()
        return float(scipy.special.logsumexp(self._logs) - np.log(len(self._logs)))

    def _count(self) -> None:
        """Add to the logs what is waiting."""
        if self._point is None or not self._waiting:
            return
        gains = self._gains[self._point.index]
        self._logs += np.bincount(self._waiting, minlength=len(gains)) @ gains
        self._waiting.clear()
        # The mean is no more than the largest ratio, which is found in less time.
        if self._logs.max() >= self._enough and self.log_evidence >= self._enough:
            self._alarm = True

    def _gains_at(self, point: PreparedPoint) -> Floats:
        """Logarithm of the ratio that a sample contributes, by exit and tilt."""
        cells = np.array(point.decider.is_open)  # nothing can happen at a closed exit
        shares = np.array(point.expected_shares)[cells]
        # The k-th point may spend rate / (2 k (k + 1)), which adds up to half of the rate.
        number = len(self._gains) + 1
        radius = entropy_radius(len(shares), self.rate / (2 * number * (number + 1)))
        largest = _largest_mean(np.exp(self._tilts[:, cells]), shares, radius / point.val_samples)
        gains: Floats = (self._tilts - np.log(largest)[:, None]).T
        return gains


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
