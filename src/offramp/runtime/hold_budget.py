"""How a budget is held where inputs become harder or easier: by moving along operating points."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from offramp import check
from offramp.runtime.prepared_points import PreparedPoints

WINDOW = 2000  # samples
SPEED = 4.0  # times a window: what is left of an error after one window is exp(-4) of it
LARGEST_STEP = 0.5  # of the error, however large a batch is: more would overshoot


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
        at_limit: Whether the cheapest or the most expensive point is reached, so that the budget
            cannot be held.
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
            is_above = self.recent_cost > self.budget
            end, than = ("cheapest", "more") if is_above else ("most expensive", "less")
            text += f"; OUT OF REACH: even the {end} point costs {than} than the budget"
        return text


class BudgetController:
    """Chooses operating points so that the mean cost stays at that of the chosen one on val.

    The level, a cost on val, is moved by the errors of the mean cost, added up: so after T samples
    the mean cost differs from the budget by no more than the level has moved, times
    window / (4 T), whatever the inputs were. At one batch it moves by at most half of the error:
    the error falls without changing its sign, as long as the mean cost does not change more than
    twice as fast as the level.
    """

    def __init__(self, points: PreparedPoints, selected: int, window: int = WINDOW) -> None:
        self._points, self.selected, self.window = points, selected, window
        self.budget = self._level = float(points.table.budgets[selected])
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
        lowest, highest = self._points.ends
        self._level = min(max(level, lowest), highest)
        chosen = self._points.within(self._level)
        self.moves += chosen != now
        return chosen

    def report(self, now: int) -> HeldBudget:
        """What it does at present."""
        table = self._points.table
        recent = sum(cost for _, cost in self._recent)
        lost = table.accuracies[self.selected] - table.accuracies[now]
        return HeldBudget(
            budget=self.budget,
            window=self.window,
            recent_cost=recent / self._samples if self._samples else np.nan,
            point_cost=float(table.budgets[now]),
            moves=self.moves,
            at_limit=self._level in self._points.ends,
            expected_loss=float(lost),
        )


def hold_window(hold_budget: bool | int) -> int | None:
    """The window of `hold_budget`: none, the usual one, or a number of samples."""
    if hold_budget is False:
        return None
    if hold_budget is True:
        return WINDOW
    check.whole("hold_budget", hold_budget, least=1)
    return hold_budget
