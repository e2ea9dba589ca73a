"""What a runner does: at which operating point, which exits, and whether these have drifted."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from offramp.errors import BudgetError, ConfigError
from offramp.runtime.drift import STEP, DriftAlarm, Floats, MovingDriftAlarm
from offramp.runtime.operating_point import OperatingPoint
from offramp.thresholds.points import ROUNDING, OperatingPoints

WINDOW = 2000  # samples
SPEED = 4.0  # times a window: what is left of an error after one window is exp(-4) of it
LARGEST_STEP = 0.5  # of the error, however large a batch is: more would overshoot


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
    held: "HeldBudget | None" = None

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.exit_shares.tolist())
        alarm = "; DRIFT: the exits differ from those of val" if self.drift else ""
        alarm += "" if self.held is None else f"; {self.held}"
        return (
            f"{self.samples} samples ({self.failed} failed, {self.forced} out of time), mean cost "
            f"{self.mean_cost:.3f} (expected {self.expected_cost:.3f}), exits {shares} %{alarm}"
        )


@dataclass(frozen=True)
class HeldBudget:
    """How a runner holds its budget.

    Attributes:
        budget: Mean cost that is held: that of the chosen operating point on val.
        window: Number of samples within which an error of the mean cost is made up for.
        recent_cost: Mean cost of the last `window` samples; NaN before the first one.
        point_cost: What the present operating point costs on val: below the budget where inputs
            have become harder, and above it where they have become easier.
        moves: How often the operating point has been changed.
        at_limit: Whether the cheapest or the dearest point is reached, so that the budget cannot
            be held.
        expected_loss: Accuracy on val at the chosen point minus that at the present one; NaN
            where val had no labels.
    """

    budget: float
    window: int
    recent_cost: float
    point_cost: float
    moves: int
    at_limit: bool
    expected_loss: float

    def __str__(self) -> str:
        text = (
            f"budget {self.budget:.3f} held at a point of {self.point_cost:.3f}: mean cost of the "
            f"last {self.window} samples {self.recent_cost:.3f}, accuracy on val "
            f"{-100 * self.expected_loss:+.1f} points"
        )
        if self.at_limit:
            end = "cheapest" if self.recent_cost > self.budget else "dearest"
            than = "dearer" if self.recent_cost > self.budget else "cheaper"
            text += f"; OUT OF REACH: even the {end} point is {than} than the budget"
        return text


class Ladder:
    """The operating points that a runner can work at, each made when it is first needed.

    `missing` names the exits that a point needs and the runner does not have; it then stays out of
    reach.
    """

    def __init__(
        self,
        points: OperatingPoints,
        make: Callable[[int], OperatingPoint],
        missing: Callable[[int], Sequence[str]] = lambda index: (),
    ) -> None:
        self.points, self._missing = points, missing
        self.reachable = [index for index in range(len(points)) if not missing(index)]
        self._make, self._made = make, dict[int, OperatingPoint]()
        costs, accuracies = points.budgets.tolist(), points.accuracies.tolist()
        self._order = sorted(self.reachable, key=lambda i: (costs[i], accuracies[i]))
        self._costs = [costs[index] for index in self._order]

    def __getitem__(self, index: int) -> OperatingPoint:
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def for_budget(self, budget: float) -> int:
        """The number of the point for a budget.

        Raises:
            BudgetError: No point is that cheap, or the point for it cannot be reached.
        """
        index = self.points.for_budget(budget)
        if missing := self._missing(index):
            raise BudgetError(
                f"the budget {budget} needs exits that are not in this export "
                f"({', '.join(missing)}): export again at that budget, or with points='all'"
            )
        return index

    def within(self, cost: float) -> int:
        """The dearest reachable point that costs no more on val; else the cheapest."""
        return self._order[max(bisect_right(self._costs, cost + ROUNDING) - 1, 0)]

    @property
    def ends(self) -> tuple[float, float]:
        """What the cheapest and the dearest reachable point cost on val."""
        return self._costs[0], self._costs[-1]


class BudgetController:
    """Chooses operating points so that the mean cost stays at that of the chosen one on val.

    The level, a cost on val, is moved by the errors of the mean cost, added up: so after T samples
    the mean cost differs from the budget by no more than the level has moved, times
    window / (4 T), whatever the inputs were. At one batch it moves by at most half of the error:
    the error falls without changing its sign, as long as the mean cost does not change more than
    twice as fast as the level.
    """

    def __init__(self, ladder: Ladder, selected: int, window: int = WINDOW) -> None:
        self._ladder, self.selected, self.window = ladder, selected, window
        self.budget = self._level = float(ladder.points.budgets[selected])
        self._recent: deque[tuple[int, float]] = deque()  # samples and their total cost
        self._samples = 0  # in all of these
        self.moves = 0

    def add(self, now: int, samples: int, cost: float) -> int:
        """Take in the total cost of some samples, and return the number of the next point."""
        self._recent.append((samples, cost))
        self._samples += samples
        while self._samples - self._recent[0][0] >= self.window:
            self._samples -= self._recent.popleft()[0]
        step = min(SPEED * samples / self.window, LARGEST_STEP)
        level = self._level + step * (self.budget - cost / samples)
        lowest, highest = self._ladder.ends
        self._level = min(max(level, lowest), highest)
        chosen = self._ladder.within(self._level)
        self.moves += chosen != now
        return chosen

    def report(self, now: int) -> HeldBudget:
        """What it does at present."""
        points = self._ladder.points
        recent = sum(cost for _, cost in self._recent)
        lost = points.accuracies[self.selected] - points.accuracies[now]
        return HeldBudget(
            budget=self.budget,
            window=self.window,
            recent_cost=recent / self._samples if self._samples else np.nan,
            point_cost=float(points.budgets[now]),
            moves=self.moves,
            at_limit=self._level in self._ladder.ends,
            expected_loss=float(lost),
        )


def hold_window(hold_budget: bool | int) -> int | None:
    """The window of `hold_budget`: none, the usual one, or a number of samples."""
    if hold_budget is False:
        return None
    return WINDOW if hold_budget is True else hold_budget


class Operation:
    """The operating point that a runner works at, and what it has done there.

    Several threads may share it. `rate` bounds the probability of a false alarm, over all
    operating points together. With a `window`, the budget is held.
    """

    def __init__(
        self, ladder: Ladder, selected: int, rate: float = 0.01, window: int | None = None
    ) -> None:
        if not 0 < rate < 1:
            raise ConfigError(f"`false_alarm_rate` must lie in (0, 1), got {rate}")
        if window is not None and window < 1:
            raise ConfigError(f"`hold_budget` must be a positive number of samples, got {window}")
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
        self, point: OperatingPoint, exits: Sequence[int], failed: int = 0, forced: int = 0
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
        point: OperatingPoint,
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
