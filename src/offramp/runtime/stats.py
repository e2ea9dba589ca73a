"""What a runner has done so far, and whether the exits still are what they were on val."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from offramp.runtime.output import RunOutput
from offramp.runtime.routes import Route

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
            weight = np.exp(scipy.optimize.brentq(outside, low, high, xtol=1e-9))
            mixed = counts + weight * self._val
            best = mixed / mixed.sum()
        return float(scipy.special.xlogy(counts, best).sum())


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

    return float(scipy.optimize.brentq(log_bound, freedom, 100 * (freedom - np.log(rate))))


def _divergence(counts: Floats, shares: Floats) -> float:
    """Relative entropy of `counts / n` to `shares`, n times; infinite if a count is impossible."""
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
    """A runner's record since it was made, or since its budget was last set.

    Attributes:
        samples: Answered.
        failed: Not answered, since inputs or logits were not finite.
        forced: Of the answered ones, those for which time was up.
        mean_cost: Per answered sample, as a share of the network without exits; NaN before the
            first one.
        exit_shares: `[M]`, of the answered samples.
        expected_cost: What `mean_cost` was on val.
        expected_shares: `[M]`, what `exit_shares` were on val.
        drift: Whether the exits are not those of val: see `offramp.runtime.stats`. Stays on.
        log_evidence: Natural logarithm of the evidence for that, at this budget.
        false_alarm_rate: Probability that `drift` is ever raised without cause, at most.
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
        alarm = "; DRIFT: the exits are not those of val" if self.drift else ""
        return (
            f"{self.samples} samples ({self.failed} failed, {self.forced} out of time), mean cost "
            f"{self.mean_cost:.3f} (expected {self.expected_cost:.3f}), exits {shares} %{alarm}"
        )


class Tally:
    """Counts what runs have done; several threads may add to it.

    Args:
        plan: The first operating point.
        rate: Of false alarms, over all operating points together.
    """

    def __init__(self, plan: Route, rate: float) -> None:
        self._lock = Lock()
        self._rate = rate
        self._points = 0
        self._drifted = False
        self._begin(plan)

    def start(self, plan: Route) -> None:
        """Begin again, at another operating point.

        The k-th point may spend rate / (k (k + 1)) on false alarms, which adds up to the rate
        however often the budget is changed.
        """
        with self._lock:
            self._drifted = self._is_drifting()
            self._begin(plan)

    def _begin(self, plan: Route) -> None:
        self._points += 1
        rate = self._rate / (self._points * (self._points + 1))
        self._plan = plan
        # From a single val sample nothing is known about the shares, and no alarm is raised.
        shares = plan.expected_shares.numpy()
        self._alarm = DriftAlarm(shares, plan.val_samples, rate, plan.is_open)
        self._exits = np.zeros(len(plan.costs), dtype=np.int64)
        self._failed = self._forced = 0

    def _is_drifting(self) -> bool:
        return self._drifted or self._alarm.check()

    def add(self, plan: Route, output: RunOutput, forced: Tensor) -> None:
        """Count one batch.

        A batch that was cut short by a deadline says nothing about drift: those who left in time
        are no fair sample. The alarm leaves it out.
        """
        # numpy: for a single sample, every operation of torch takes longer than the rest of this.
        answered = output.exits.numpy()[output.predictions.numpy() >= 0]
        counts = np.bincount(answered, minlength=len(plan.costs))
        with self._lock:
            if plan is not self._plan:
                return  # the budget was changed while this batch ran
            self._exits += counts
            self._failed += len(output) - len(answered)
            cut = int(forced.sum())
            self._forced += cut
            if not cut:
                self._alarm.add(counts)

    def snapshot(self) -> RunStats:
        """Everything so far."""
        with self._lock:
            samples = int(self._exits.sum())
            shares = torch.from_numpy(self._exits / max(samples, 1))
            return RunStats(
                samples=samples,
                failed=self._failed,
                forced=self._forced,
                mean_cost=float(shares @ self._plan.costs) if samples else float("nan"),
                exit_shares=shares,
                expected_cost=self._plan.expected_cost,
                expected_shares=self._plan.expected_shares,
                drift=self._is_drifting(),
                log_evidence=self._alarm.log_evidence,
                false_alarm_rate=self._rate,
            )
