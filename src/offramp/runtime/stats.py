"""What a runner has done so far, and whether its exits still are those of val."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from offramp.runtime.operating_point import OperatingPoint

Floats = npt.NDArray[np.float64]

PRIOR = 0.5
# Evidence is computed once there are that many more samples, and that factor more, than last
# time: for single samples it would take longer than their network. Checking less often can only
# lower the rate of false alarms.
STEP, GROWTH = 50, 1.02


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


@dataclass(frozen=True, eq=False)
class RunStats:
    """What a runner has done since it was made, or since its budget was last set.

    Attributes:
        samples: Number of answered samples.
        failed: Number of samples without an answer: inputs or logits were not finite.
        forced: Number of samples that were answered because of a deadline.
        mean_cost: Mean over the answered samples, as a share of the network without exits; NaN
            before the first one.
        exit_shares: `[M]`, share of the answered samples that left at each exit.
        expected_cost: `mean_cost` on val.
        expected_shares: `[M]`, `exit_shares` on val.
        drift: Whether the exits differ from those of val: see `DriftAlarm`. Stays on.
        log_evidence: Natural logarithm of the evidence for drift, at this budget.
        false_alarm_rate: Largest probability that `drift` is ever raised without cause.
    """

    samples: int
    failed: int
    forced: int
    mean_cost: float
    exit_shares: Tensor
    expected_cost: float
    expected_shares: Tensor
    drift: bool
    log_evidence: float
    false_alarm_rate: float

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.exit_shares.tolist())
        alarm = "; DRIFT: the exits differ from those of val" if self.drift else ""
        return (
            f"{self.samples} samples ({self.failed} failed, {self.forced} out of time), mean cost "
            f"{self.mean_cost:.3f} (expected {self.expected_cost:.3f}), exits {shares} %{alarm}"
        )


class StatsCollector:
    """Counts samples and exits; several threads may add to it.

    `rate` bounds the probability of a false alarm, over all operating points together.
    """

    def __init__(self, point: OperatingPoint, rate: float) -> None:
        self._lock = Lock()
        self._rate = rate
        self._points = 0
        self._drifted = False
        self._begin(point)

    def start(self, point: OperatingPoint) -> None:
        """Start again at another operating point.

        The k-th point may spend rate / (k (k + 1)) on false alarms, which adds up to the rate
        however often the budget is changed.
        """
        with self._lock:
            self._drifted = self._is_drifting()
            self._begin(point)

    def _begin(self, point: OperatingPoint) -> None:
        self._points += 1
        rate = self._rate / (self._points * (self._points + 1))
        self._point = point
        # A single val sample says nothing about the shares, so no alarm is ever raised.
        shares = point.expected_shares.numpy()
        self._alarm = DriftAlarm(shares, point.val_samples, rate, point.is_open)
        self._exits = [0] * len(point.costs)
        self._unseen: list[int] = []  # exits that the alarm has not seen yet
        self._failed = self._forced = 0

    def _is_drifting(self) -> bool:
        self._show_alarm()
        return self._drifted or self._alarm.check()

    def _show_alarm(self) -> None:
        self._alarm.add(np.bincount(self._unseen, minlength=len(self._exits)))
        self._unseen.clear()

    def add(self, point: OperatingPoint, exits: list[int], failed: int, forced: int) -> None:
        """Count one batch: the exits of those answered, how many failed, how many were forced.

        The drift alarm ignores a batch that a deadline cut short: the samples that left in time
        are not a fair sample.
        """
        with self._lock:
            if point is not self._point:
                return  # the budget was changed while this batch ran
            for exit_index in exits:
                self._exits[exit_index] += 1
            self._failed += failed
            self._forced += forced
            if not forced:
                self._unseen += exits
            if len(self._unseen) >= STEP:
                self._show_alarm()

    def snapshot(self) -> RunStats:
        """Everything so far."""
        with self._lock:
            drift, samples = self._is_drifting(), sum(self._exits)
            shares = torch.tensor(self._exits, dtype=torch.float64) / max(samples, 1)
            return RunStats(
                samples=samples,
                failed=self._failed,
                forced=self._forced,
                mean_cost=float(shares @ self._point.costs) if samples else float("nan"),
                exit_shares=shares,
                expected_cost=self._point.expected_cost,
                expected_shares=self._point.expected_shares,
                drift=drift,
                log_evidence=self._alarm.log_evidence,
                false_alarm_rate=self._rate,
            )
