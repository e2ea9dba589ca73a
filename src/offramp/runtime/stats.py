"""What a runner has done: its operating point, exits taken, and whether they have drifted."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from offramp import check
from offramp.runtime.drift import STEP, DriftAlarm, Floats, MovingDriftAlarm
from offramp.runtime.hold_budget import BudgetController, HeldBudget
from offramp.runtime.ladder import Ladder, PreparedPoint


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
        drift: Whether the exits differ from those of val: see `DriftAlarm`. Stays on.
        log_evidence: Natural logarithm of the evidence for drift, at this budget.
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
        alarm = "; DRIFT: the exits differ from those of val" if self.drift else ""
        alarm += "" if self.held is None else f"; {self.held}"
        return (
            f"{self.samples} samples ({self.failed} failed, {self.forced} out of time), mean cost "
            f"{self.mean_cost:.3f} (expected {self.expected_cost:.3f}), exits {shares} %{alarm}"
        )


class Operation:
    """The operating point that a runner works at, and what it has done there.

    Several threads may share it. `rate` bounds the probability of a false alarm, over all
    operating points together. With a `window`, the budget is held.
    """

    def __init__(
        self, ladder: Ladder, selected: int, rate: float = 0.01, window: int | None = None
    ) -> None:
        check.within("false_alarm_rate", rate, 0, 1, ends="()")
        self.ladder, self._rate, self._window = ladder, rate, window
        self._lock = Lock()
        self._budgets_set = 0
        self._drifted = False
        self._moving = MovingDriftAlarm(
            ladder.points.thresholds.shape[1], len(ladder.reachable), rate
        )
        self._begin(selected)

    @property
    def holds_budget(self) -> bool:
        """Whether the point is moved so that the mean cost stays at the budget."""
        return self._window is not None

    def start(self, selected: int) -> None:
        """Start again at another operating point; an alarm stays on."""
        with self._lock:
            self._drifted = self._is_drifting()
            self._begin(selected)

    def _begin(self, selected: int) -> None:
        self.point = point = self.ladder[selected]
        self._controller = (
            None if self._window is None else BudgetController(self.ladder, selected, self._window)
        )
        self._budgets_set += 1
        # The k-th budget may spend rate / (k (k + 1)) on false alarms, which adds up to the rate
        # however often the budget is changed.
        rate = self._rate / (self._budgets_set * (self._budgets_set + 1))
        # A single val sample says nothing about the shares, so no alarm is ever raised.
        shares = np.array(point.expected_shares)
        self._alarm = DriftAlarm(shares, point.val_samples, rate, point.is_open)
        self._exits = [0] * len(point.costs)
        self._expected = np.zeros(len(point.costs))  # in samples
        self._expected_cost = self._spent = 0.0
        self._unseen: list[int] = []  # exits that the alarm has not seen yet
        self._failed = self._forced = 0

    def _is_drifting(self) -> bool:
        if self._controller is not None:
            return self._drifted or self._moving.alarm
        self._show_alarm()
        return self._drifted or self._alarm.check()

    def _show_alarm(self) -> None:
        self._alarm.add(np.bincount(self._unseen, minlength=len(self._exits)))
        self._unseen.clear()

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
            for exit_index in exits:
                self._exits[exit_index] += 1
            self._failed += failed
            self._forced += forced
            if self._controller is not None:
                self._add_held(self._controller, point, exits, forced)
            elif not forced:
                self._unseen += exits
                if len(self._unseen) >= STEP:
                    self._show_alarm()

    def _add_held(
        self,
        controller: BudgetController,
        point: PreparedPoint,
        exits: Sequence[int],
        forced: int,
    ) -> None:
        self._expected += len(exits) * np.array(point.expected_shares)
        self._expected_cost += len(exits) * point.expected_cost
        # Seconds of an exit depend on the operating point, so they are added up at each.
        cost = sum(point.costs[exit_index] for exit_index in exits)
        self._spent += cost
        if forced or not exits:
            return
        self._moving.add(point, np.bincount(exits, minlength=len(self._exits)))
        self.point = self.ladder[controller.add(self.point.index, len(exits), cost)]

    def _mean_cost(self, samples: int, shares: Floats) -> float:
        if not samples:
            return float("nan")
        is_held = self._controller is not None
        return self._spent / samples if is_held else float(shares @ np.array(self.point.costs))

    def snapshot(self) -> RunStats:
        """Everything so far."""
        with self._lock:
            drift, samples, controller = self._is_drifting(), sum(self._exits), self._controller
            shares = np.array(self._exits) / max(samples, 1)
            held = controller is not None and samples > 0
            return RunStats(
                samples=samples,
                failed=self._failed,
                forced=self._forced,
                mean_cost=self._mean_cost(samples, shares),
                exit_shares=shares,
                expected_cost=(
                    self._expected_cost / samples if held else self.point.expected_cost
                ),
                expected_shares=(
                    self._expected / samples if held else np.array(self.point.expected_shares)
                ),
                drift=drift,
                log_evidence=(
                    self._alarm.log_evidence if controller is None else self._moving.log_evidence
                ),
                false_alarm_rate=self._rate,
                held=None if controller is None else controller.report(self.point.index),
            )
