"""What a runner has done: its operating point, exits taken, and whether they have drifted."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from offramp import check
from offramp.arrays import Floats
from offramp.runtime.drift import DriftAlarm
from offramp.runtime.hold_budget import BudgetController, HeldBudget
from offramp.runtime.prepared_points import PreparedPoint, PreparedPoints


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
        expected_cost: `mean_cost` on val; with a held budget at the points that were used.
        expected_shares: `[M]`, `exit_shares` on val, likewise.
        drift: Whether the exits have differed from the exits of val: see `DriftAlarm`. Stays on.
        log_evidence: Natural logarithm of the evidence for drift since the runner was made.
        false_alarm_rate: Largest probability that `drift` is ever raised without cause.
        held: What the runner does to hold its budget; None if it was not asked to.
    """

    samples: int
    failed: int
    forced: int
    mean_cost: float
    exit_shares: Floats
    expected_cost: float
    expected_shares: Floats
    drift: bool
    log_evidence: float
    false_alarm_rate: float
    held: HeldBudget | None = None

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.exit_shares.tolist())
        alarm = "; DRIFT: the exits differ from the exits of val" if self.drift else ""
        alarm += "" if self.held is None else f"; {self.held}"
        return (
            f"{self.samples} samples ({self.failed} failed, {self.forced} out of time), mean cost "
            f"{self.mean_cost:.3f} (expected {self.expected_cost:.3f}), exits {shares} %{alarm}"
        )


class Operation:
    """The operating point that a runner works at, and what it has done there.

    Several threads may share it.

    Args:
        points: The operating points that can be worked at.
        selected: The number of the first one.
        false_alarm_rate: Largest probability of a false drift alarm, over the whole stream.
        hold_window: Number of samples within which the budget is held; None if it is not.
    """

    def __init__(
        self,
        points: PreparedPoints,
        selected: int,
        false_alarm_rate: float = 0.01,
        hold_window: int | None = None,
    ) -> None:
        check.within("false_alarm_rate", false_alarm_rate, 0, 1, ends="()")
        self.points, self._hold_window = points, hold_window
        self._lock = Lock()
        self._alarm = DriftAlarm(points.table.thresholds.shape[1], false_alarm_rate)
        self._begin(selected)

    @property
    def holds_budget(self) -> bool:
        """Whether the point is moved so that the mean cost stays at the budget."""
        return self._hold_window is not None

    def start(self, selected: int) -> None:
        """Start again at another operating point; an alarm stays on."""
        with self._lock:
            self._begin(selected)

    def _begin(self, selected: int) -> None:
        self.point = self.points[selected]
        self._controller = (
            None
            if self._hold_window is None
            else BudgetController(self.points, selected, self._hold_window)
        )
        self._exits: dict[int, list[int]] = {}  # by the number of a point: samples at each exit
        self._failed = self._forced = 0
        self._alarm.add(self.point, ())  # which prepares it: the first sample does not wait

    def add(
        self, point: PreparedPoint, exits: Sequence[int], failed: int = 0, forced: int = 0
    ) -> None:
        """Count one batch: the exits of its answered samples, and what became of the others.

        Where a deadline cut samples short, neither the drift alarm nor the controller of the
        budget counts the batch: the samples that left in time are not a fair sample.
        """
        with self._lock:
            if point is not self.point and self._controller is None:
                return  # the budget was changed while this batch ran
            # Plain numbers: for a single sample, any operation on arrays takes longer than this.
            counts = self._exits.setdefault(point.index, [0] * len(point.costs))
            for exit_index in exits:
                counts[exit_index] += 1
            self._failed += failed
            self._forced += forced
            if forced or not exits:
                return
            self._alarm.add(point, exits)
            if self._controller is not None:
                cost = sum(point.costs[exit_index] for exit_index in exits)
                chosen = self._controller.add(self.point.index, len(exits), cost)
                self.point = self.points[chosen]

    def snapshot(self) -> RunStats:
        """Everything so far."""
        with self._lock:
            controller = self._controller
            used = [self.points[index] for index in self._exits] or [self.point]
            counts = np.array([*self._exits.values()] or [[0] * len(self.point.costs)])
            samples = int(counts.sum())
            spent = float((counts * [point.costs for point in used]).sum())
            # Before the first sample, what is expected of the present point.
            weights = counts.sum(axis=1) / samples if samples else [1.0] * len(used)
            return RunStats(
                samples=samples,
                failed=self._failed,
                forced=self._forced,
                mean_cost=spent / samples if samples else float("nan"),
                exit_shares=counts.sum(axis=0) / max(samples, 1),
                expected_cost=float(np.dot(weights, [point.expected_cost for point in used])),
                expected_shares=np.dot(weights, [point.expected_shares for point in used]),
                drift=self._alarm.alarm,
                log_evidence=self._alarm.log_evidence,
                false_alarm_rate=self._alarm.rate,
                held=None if controller is None else controller.report(self.point.index),
            )
