"""What a runner has done so far, and whether the exits still are what they were on val."""

from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from offramp.runtime.drift import DriftAlarm
from offramp.runtime.output import RunOutput
from offramp.runtime.plan import Route

__all__ = ["RunStats", "Tally"]


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
        drift: Whether the exits are not those of val: see `offramp.runtime.drift`. Stays on.
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
