"""Thresholds that are best on val: coordinate ascent over the exits' cuts.

For a price of compute, the mean of correct - price x cost is made as large as moving one exit's
cut at a time can make it: sort the samples that reach the exit, add up what each gains by
stopping there, and take the best prefix. A budget has no price of its own. Seen as points of cost
and accuracy, the best cuts for all prices are the corners of a concave curve; the price for a
budget is found by cutting the chord between the two corners around it, again and again. Between
the last two corners, one exit's cut is moved, up to the budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.costs import mean_costs
from offramp.errors import BudgetError, ConfigError, LedgerError
from offramp.thresholds.geometric import for_shares, geometric_sweep
from offramp.thresholds.taken import exits_taken

Cuts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SortedSamples:
    """The samples of val, sorted at every exit but the last.

    Attributes:
        order: `[M-1, N]`, sample numbers by falling score.
        rank: `[M-1, N]`, the place of each sample in that order.
        allowed: bool `[M-1, N+1]`, whether a cut of that size keeps tied scores together.
        correct: float `[M, N]`.
        costs: `[M, N]`, or `[M, 1]` where they are the same for all samples; cumulative.

    Example:
        >>> scores = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
        >>> right = torch.tensor([[True, True], [False, True], [True, True]])
        >>> table = SortedSamples.of(scores, right, torch.tensor([0.5, 1.0]))
        >>> accuracy, cost = table.measure(np.array([[2]]))  # the two highest scores stop
        >>> float(accuracy[0]), round(float(cost[0]), 3)
        (1.0, 0.667)
    """

    order: Cuts
    rank: Cuts
    allowed: Bools
    correct: Floats
    costs: Floats

    @classmethod
    def of(cls, scores: Tensor, correct: Tensor, costs: Tensor) -> "SortedSamples":
        """Sort scores `[N, M]` exit by exit; correct is bool `[N, M]`, costs `[M]` or `[N, M]`."""
        columns = scores[:, :-1].T.double()
        values, order = columns.sort(dim=1, descending=True, stable=True)
        allowed = torch.ones(len(values), values.shape[1] + 1, dtype=torch.bool)
        allowed[:, 1:-1] = values[:, 1:] != values[:, :-1]
        return cls(
            order.numpy(),
            order.argsort(dim=1).numpy(),
            allowed.numpy(),
            correct.T.double().contiguous().numpy(),
            (costs[:, None] if costs.ndim == 1 else costs.T).double().contiguous().numpy(),
        )

    @property
    def samples(self) -> int:
        """N."""
        return int(self.correct.shape[1])

    def cuts_of(self, exits: Tensor) -> Cuts:
        """The smallest cuts `[B, M-1]` with which samples leave at these exits, `[B, N]`."""
        taken = exits.numpy()
        places = [
            np.where(taken == exit_index, rank + 1, 0).max(axis=1)
            for exit_index, rank in enumerate(self.rank)
        ]
        return np.stack(places, axis=1)

    def exits_of(self, cuts: Cuts) -> Cuts:
        """The exit of every sample, `[B, N]`, from cuts `[B, M-1]`."""
        exits = np.full((len(cuts), self.samples), len(self.order))
        for exit_index in reversed(range(len(self.order))):
            exits[self.rank[exit_index] < cuts[:, exit_index, None]] = exit_index
        return exits

    def measure(self, cuts: Cuts) -> tuple[Floats, Floats]:
        """Accuracy and mean cost `[B]` of cuts `[B, M-1]`."""
        exits = self.exits_of(cuts)
        right = self.correct[exits, np.arange(self.samples)]
        spent = self.costs[exits, np.arange(self.samples) if self.costs.shape[1] > 1 else 0]
        return right.mean(axis=1), spent.mean(axis=1)

    def reach(self, cuts: Cuts) -> list[Bools]:
        """For each exit but the last, which samples get there, `[B, N]`."""
        there = np.ones((len(cuts), self.samples), dtype=bool)
        found = []
        for exit_index in range(len(self.order)):
            found.append(there)
            there = there & (self.rank[exit_index] >= cuts[:, exit_index, None])
        return found

    def by_cut(self, exit_index: int, reach: Bools, gain: Floats) -> Floats:
        """What every possible cut at an exit brings, `[B, N+1]`.

        Args:
            exit_index: Of that exit.
            reach: `[B, N]`, who gets there.
            gain: `[B, N]`, what each brings more by stopping here than by going on.
        """
        totals = np.zeros((len(reach), self.samples + 1))
        np.cumsum(np.where(reach, gain, 0.0)[:, self.order[exit_index]], axis=1, out=totals[:, 1:])
        return totals

    def moves(self, cuts: Cuts) -> Iterator[tuple[int, Floats, Floats]]:
        """For each exit: accuracy and mean cost `[B, N+1]` if only its cut were changed."""
        accuracy, cost = self.measure(cuts)
        rows, reach = np.arange(len(cuts)), self.reach(cuts)
        right = np.broadcast_to(self.correct[-1], (len(cuts), self.samples))
        spent = np.broadcast_to(self.costs[-1], (len(cuts), self.samples))
        for exit_index in reversed(range(len(self.order))):
            found = []
            for now, here, later in (
                (accuracy, self.correct[exit_index], right),
                (cost, self.costs[exit_index], spent),
            ):
                totals = self.by_cut(exit_index, reach[exit_index], here - later) / self.samples
                found.append(now[:, None] + totals - totals[rows, cuts[:, exit_index]][:, None])
            yield exit_index, found[0], found[1]
            stop = self.rank[exit_index] < cuts[:, exit_index, None]
            right = np.where(stop, self.correct[exit_index], right)
            spent = np.where(stop, self.costs[exit_index], spent)


# By five-fold cross-validation on val splits, see docs/thresholds.md: 0.02 to 0.1 do equally well,
# and a bit better than none.
SMOOTHING = 0.05
SWEEPS = 30  # over all exits; a handful is enough, and the smoothed gains could go in circles
STARTS = 33  # geometric thresholds, of which the best for a price is a start
ROUNDS = 30  # of cutting chords for one budget
SWEEP_ROUNDS = 6  # for the whole curve: at most 2^6 corners
FRESH_ROUNDS = 2  # of these, with all starts
NEXT_TO_NOTHING = 1e-6  # a price at which only useless compute is saved
SAME = 1e-12  # costs and accuracies are means of float64
CHUNK = 1 << 21  # numbers in one array


def optimize(
    scores: Tensor,
    correct: Tensor,
    costs: Tensor,
    budget: float | None = None,
    price: float | None = None,
    smoothing: float = SMOOTHING,
) -> Tensor:
    """Thresholds of the best accuracy for a budget, or of the best accuracy - price x cost.

    Args:
        scores: `[N, M]` on val; the last column is not looked at.
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative, in the unit of `budget`.
        budget: Mean cost that must not be exceeded on these samples.
        price: Instead: accuracy that one unit of cost has to bring.
        smoothing: Share of the samples over which gains are averaged before the best cut is
            taken, so that a lucky handful does not place it; 0 takes the gains as they are.

    Returns:
        float64 thresholds `[M]`; `+inf` closes an exit.

    Raises:
        BudgetError: The budget is below the first exit's cost.

    Example:
        >>> scores = torch.tensor([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
        >>> correct = torch.tensor([[True, True], [True, True], [False, True], [False, True]])
        >>> optimize(scores, correct, torch.tensor([0.5, 1.0]), budget=0.75)
        tensor([2.5000,   -inf], dtype=torch.float64)
    """
    search = _Search.of(scores, correct, costs, smoothing)
    if (budget is None) == (price is None):
        raise ConfigError("give either `budget` or `price`")
    if price is not None:
        if not 0 <= price < float("inf"):
            raise ConfigError(f"`price` must not be negative, got {price}")
        prices = np.array([float(price)])
        cuts = search.best_for(prices, search.starts(prices))
    else:
        assert budget is not None
        least = float(search.table.costs[0].mean())
        if not budget >= least - SAME:
            raise BudgetError(
                f"`budget` must be at least {least:g}, the cost of exit 0, got {budget}"
            )
        corners = search.corners(ROUNDS, focus=budget)
        cuts = search.within(corners, np.array([budget]))
    return search.thresholds(cuts)[0]


def optimized_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """The best thresholds for budgets spread evenly over the whole range: `[P, M]`.

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many budgets; fewer points come back where a larger budget buys nothing.
    """
    search = _Search.of(scores, correct, costs, SMOOTHING)
    ends = mean_costs(torch.as_tensor(costs))
    budgets = np.linspace(float(ends[0]), float(ends[-1]), points)
    cuts = search.within(search.corners(SWEEP_ROUNDS), budgets)
    return search.thresholds(np.unique(cuts, axis=0))


@dataclass(frozen=True)
class _Search:
    """The sorted samples, where to start the search, and the guard against noise."""

    table: SortedSamples
    scores: Tensor
    geometric: Cuts
    window: int

    @classmethod
    def of(cls, scores: Tensor, correct: Tensor, costs: Tensor, smoothing: float) -> "_Search":
        scores, correct = torch.as_tensor(scores), torch.as_tensor(correct)
        costs = torch.as_tensor(costs, dtype=torch.float64)
        check_arrays(scores, correct, costs)
        if not 0 <= smoothing < 1:
            raise ConfigError(
                f"`smoothing` must be a share of the samples in [0, 1), got {smoothing}"
            )
        table = SortedSamples.of(scores, correct, costs)
        starts = geometric_sweep(scores, correct, costs, STARTS)
        cuts = table.cuts_of(exits_taken(scores, starts))
        return cls(table, scores, cuts, round(smoothing * len(scores) / 2))

    def starts(self, prices: Floats) -> list[Cuts]:
        """Where to start for prices `[C]`: all open, all closed, and the best geometric cuts."""
        everyone = self._open(len(prices))
        accuracy, cost = self.table.measure(self.geometric)
        nearest = self.geometric[(accuracy - prices[:, None] * cost).argmax(axis=1)]
        return [everyone, 0 * everyone, nearest]

    def best_for(self, prices: Floats, starts: list[Cuts]) -> Cuts:
        """The best cuts `[C, M-1]` for prices `[C]` that ascent finds from several starts."""
        many = np.tile(prices, len(starts))
        found = self._ascend(np.concatenate(starts), many)
        values = self._value(found, many).reshape(len(starts), -1)
        rows = values.argmax(axis=0) * len(prices) + np.arange(len(prices))
        best: Cuts = found[rows]
        return best

    def corners(self, rounds: int, focus: float | None = None) -> Cuts:
        """Cuts `[V, M-1]` that are best for some price, cheapest first.

        Args:
            rounds: How often all chords between neighbours are cut.
            focus: A cost: only the chord over it is cut.
        """
        free = np.full(1, NEXT_TO_NOTHING)
        ends = [self._open(1), self.best_for(free, self.starts(free))]
        found = {self._cost(cuts): cuts[0] for cuts in ends}
        settled: set[tuple[float, float]] = set()
        for number in range(rounds):
            chords = [
                chord
                for chord in pairwise(sorted(found))
                if chord not in settled and (focus is None or chord[0] <= focus < chord[1])
            ]
            if not chords:
                break
            settled |= set(chords)
            left, right = (np.stack([found[chord[end]] for chord in chords]) for end in (0, 1))
            new = self._cut_chords(left, right, afresh=number < FRESH_ROUNDS)
            found |= {self._cost(cuts[None]): cuts for cuts in new}
        return np.stack([found[cost] for cost in sorted(found)])

    def within(self, corners: Cuts, budgets: Floats) -> Cuts:
        """The best cuts `[T, M-1]` not above budgets `[T]`: a corner with one cut moved."""
        best = np.full(len(budgets), -np.inf)
        chosen = np.repeat(self._open(1), len(budgets), axis=0)
        for exit_index, right, spent in self.table.moves(corners):
            values = np.where(self.table.allowed[exit_index], self._smooth(right), -np.inf)
            for corner, value, cost in zip(corners, values, spent, strict=True):
                first = np.searchsorted(-cost, -budgets - SAME)  # cost falls as the cut grows
                cut = _best_from(value)[np.minimum(first, self.table.samples)]
                better = (first <= self.table.samples) & (value[cut] > best + SAME)
                best = np.where(better, value[cut], best)
                chosen[better] = corner
                chosen[better, exit_index] = cut[better]
        return chosen

    def thresholds(self, cuts: Cuts) -> Tensor:
        """Thresholds `[B, M]` at which as many samples leave everywhere as with the cuts."""
        exits = self.table.exits_of(cuts)
        numbers = range(len(self.table.costs))
        shares = np.stack([(exits == exit_index).mean(axis=1) for exit_index in numbers], axis=1)
        return for_shares(self.scores, torch.from_numpy(shares))

    def _cut_chords(self, left: Cuts, right: Cuts, afresh: bool) -> Cuts:
        """New corners above the chords between two sets of corners; none where there is none.

        Neighbours are good starts; only while they are far apart, others are tried too.
        """
        (low, low_cost), (high, high_cost) = self.table.measure(left), self.table.measure(right)
        prices = np.maximum((high - low) / (high_cost - low_cost), 0.0)
        starts = [left, right, *(self.starts(prices) if afresh else [])]
        found = self.best_for(prices, starts)
        above = self._value(found, prices) > low - prices * low_cost + SAME
        return found[above]

    def _ascend(self, cuts: Cuts, prices: Floats) -> Cuts:
        """Move one cut at a time until nothing changes; a few sets of cuts at a time."""
        size = max(1, CHUNK // self.table.samples)
        parts = [slice(start, start + size) for start in range(0, len(cuts), size)]
        return np.concatenate([self._ascend_part(cuts[part], prices[part]) for part in parts])

    def _ascend_part(self, cuts: Cuts, prices: Floats) -> Cuts:
        cuts, moving = cuts.copy(), np.arange(len(cuts))
        for _ in range(SWEEPS):
            before = cuts[moving]
            cuts[moving] = self._sweep(before, prices[moving, None])
            moving = moving[(cuts[moving] != before).any(axis=1)]
            if not len(moving):
                break
        return cuts

    def _sweep(self, cuts: Cuts, prices: Floats) -> Cuts:
        """Move every cut once, from the last exit to the first: none changes who gets there."""
        table, cuts, rows = self.table, cuts.copy(), np.arange(len(cuts))
        reach = table.reach(cuts)
        later = table.correct[-1] - prices * table.costs[-1]  # [B, N], worth of going on
        for exit_index in reversed(range(len(table.order))):
            here = table.correct[exit_index] - prices * table.costs[exit_index]
            totals = self._smooth(table.by_cut(exit_index, reach[exit_index], here - later))
            totals[:, ~table.allowed[exit_index]] = -np.inf
            best = totals.argmax(axis=1)
            better = totals[rows, best] > totals[rows, cuts[:, exit_index]] + 1e-9
            cuts[:, exit_index] = np.where(better, best, cuts[:, exit_index])
            later = np.where(table.rank[exit_index] < cuts[:, exit_index, None], here, later)
        return cuts

    def _smooth(self, totals: Floats) -> Floats:
        """Means over neighbouring cuts, `[B, N+1]`; the window narrows towards the ends."""
        if not self.window:
            return totals
        width, place = 2 * self.window + 1, np.arange(self.window)
        sums = np.zeros((len(totals), totals.shape[1] + 1))
        np.cumsum(totals, axis=1, out=sums[:, 1:])
        smooth = np.empty_like(totals)
        smooth[:, self.window : -self.window] = (sums[:, width:] - sums[:, :-width]) / width
        smooth[:, place] = sums[:, 2 * place + 1] / (2 * place + 1)
        ends = sums[:, -1:] - sums[:, -2 - 2 * place]
        smooth[:, -1 - place] = ends / (2 * place + 1)
        return smooth

    def _value(self, cuts: Cuts, prices: Floats) -> Floats:
        accuracy, cost = self.table.measure(cuts)
        return accuracy - prices * cost

    def _cost(self, cuts: Cuts) -> float:
        return float(self.table.measure(cuts)[1][0])

    def _open(self, count: int) -> Cuts:
        """Cuts with which everyone leaves at exit 0."""
        return np.full((count, len(self.table.order)), self.table.samples)


def _best_from(values: Floats) -> Cuts:
    """For each place, where the largest of the values from there on is: the last of equals."""
    backwards = values[::-1]
    peaks = np.maximum.accumulate(backwards)
    new = np.concatenate([[True], backwards[1:] > peaks[:-1]])
    found = np.maximum.accumulate(np.where(new, np.arange(len(values)), 0))
    places: Cuts = (len(values) - 1 - found)[::-1]
    return places


def check_arrays(scores: Tensor, correct: Tensor, costs: Tensor) -> None:
    """Raise unless scores and correct are `[N, M]`, costs `[M]` or so, and scores finite.

    Raises:
        LedgerError: With the shapes, or the rule that is broken.
    """
    fits = costs.shape in (scores.shape, scores.shape[1:])
    if scores.ndim != 2 or correct.shape != scores.shape or not fits:
        raise LedgerError(
            "`scores` and `correct` must have the shape [N, M] and `costs` [M] or [N, M], got "
            f"{list(scores.shape)}, {list(correct.shape)} and {list(costs.shape)}"
        )
    if not scores[:, :-1].isfinite().all():
        raise LedgerError("`scores` must be finite at every exit but the last")
