"""Smooth thresholds: backward induction over prices, for val splits of a few hundred samples.

Thresholds that are best on a small val split owe that to a handful of lucky samples. Here, what
stopping gains over going on is taken to be a smooth function of the score's rank at an exit: a
cubic, fitted to all samples. From the last exit backwards, and for many prices of compute at
once, the cut is the best prefix of these smooth gains.
"""

from dataclasses import dataclass

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy, sigmoid
from offramp.costs import costs_taken, mean_costs
from offramp.errors import LedgerError
from offramp.scorers.ridge import fit_logistic
from offramp.thresholds.rule import exits_taken

DEGREE = 3
RIDGE = 2.0  # in samples, on the powers of the normal score; a tenth of it on the slope
PRICES = (-2.6, 1.2, 60)  # powers of ten, and how many
SMALLEST = 1e-6  # a chance; nothing is surer in float32
PRIOR = 1.0  # of slope and offset, in samples: holds them where all answers are right
EXIT_PRIOR = 100.0  # of what a single exit adds to them: a few hundred samples hardly move it
HALVINGS = 10  # of the way from the cuts of one price to the cuts of the next
ROUNDING = 1e-12  # costs are means of float64


def smooth_sweep(scores: AnyArray, correct: AnyArray, costs: AnyArray, points: int) -> Array:
    """Smooth thresholds over the whole range of costs: `[P, M]`.

    Args:
        scores: `[N, M]` on val.
        correct: `[N, M]`: whether each answer is right, or the chance that it is.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many costs, spread evenly; fewer points come back where a larger cost buys
            nothing.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.normal(size=(100, 3))
        >>> correct = rng.random((100, 3)) < sigmoid(scores)
        >>> smooth_sweep(scores, correct, np.array([0.2, 0.5, 1.0]), points=11).shape[1]
        3
    """
    scores, correct = as_numpy(scores), as_numpy(correct)
    costs = as_numpy(costs, np.float64)
    _check_arrays(scores, correct, costs)
    ranked = _Ranked.of(scores)
    corners = _corners(ranked, correct, costs)

    def spent(cuts: Array) -> Array:
        """Mean costs `[P]`."""
        exits = exits_taken(scores, ranked.thresholds(cuts))
        return np.asarray(costs_taken(costs, exits).mean(axis=1))

    ends = mean_costs(costs)
    wanted = np.linspace(ends[0], ends[-1], points) + ROUNDING
    # The last corner that is not above a wanted cost: the next one is, and between lies the cost.
    within = spent(corners) <= wanted[:, None]
    low = len(corners) - 1.0 - within[:, ::-1].argmax(axis=1)
    high = np.minimum(low + 1, len(corners) - 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = spent(_between(corners, middle)) <= wanted
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.unique(ranked.thresholds(_between(corners, low)), axis=0)


def calibrated_chances(chances: AnyArray, correct: AnyArray) -> Array:
    """Chances of being right, made to agree with what was right: float64 `[N, M]`.

    A network's probabilities may be too sure. A slope and an offset of the log-odds are fitted to
    which answers are right: one pair for all exits, and what each exit adds to it. The latter is
    held near zero, so that it shows with thousands of samples and hardly with a few hundred.

    Args:
        chances: `[N, M]` in [0, 1], from a source that is better than the exits themselves.
        correct: bool `[N, M]`.

    Example:
        >>> chances = np.array([[0.999], [0.999], [0.999], [0.999]])
        >>> correct = np.array([[True], [True], [True], [False]])
        >>> calibrated_chances(chances, correct).round(1)
        array([[0.7],
               [0.7],
               [0.7],
               [0.7]])
    """
    values = as_numpy(chances, np.float64).clip(SMALLEST, 1 - SMALLEST)
    samples, exits = values.shape
    pair = np.stack([np.log(values) - np.log1p(-values), np.ones_like(values)], axis=2)
    own = np.einsum("nmp,me->nmep", pair, np.eye(exits)).reshape(samples, exits, -1)
    design = np.concatenate([pair, own], axis=2).reshape(samples * exits, -1)
    prior = np.array([PRIOR] * 2 + [EXIT_PRIOR] * 2 * exits)
    weights = fit_logistic(design, as_numpy(correct, np.float64).reshape(-1), prior)
    return np.asarray(sigmoid(design @ weights)).reshape(values.shape)


@dataclass(frozen=True)
class _Ranked:
    """Scores, and the samples by falling score at every exit but the last.

    A cut says how many samples of an exit's order stop there; those that stopped before count too.

    Attributes:
        scores: `[N, M]`.
        order: `[M-1, N]`, sample numbers.
        allowed: bool `[M-1, N+1]`, whether a cut of that size keeps tied scores together.
        limits: `[M-1, N+1]`, the threshold of a cut of that size, made smaller where it parts a
            tie.
    """

    scores: Array
    order: Array
    allowed: Array
    limits: Array

    @classmethod
    def of(cls, scores: Array) -> "_Ranked":
        columns = scores[:, :-1].T.astype(np.float64)
        order = (-columns).argsort(axis=1, kind="stable")
        falling = np.take_along_axis(columns, order, axis=1)
        allowed = np.pad(falling[:, 1:] != falling[:, :-1], ((0, 0), (1, 1)), constant_values=True)
        middles = (falling[:, 1:] + falling[:, :-1]) / 2
        limits = np.pad(middles, ((0, 0), (1, 1)), constant_values=((0, 0), (np.inf, -np.inf)))
        whole = np.maximum.accumulate(np.arange(len(scores) + 1) * allowed, axis=1)
        return cls(scores, order, allowed, np.take_along_axis(limits, whole, axis=1))

    def thresholds(self, cuts: Array) -> Array:
        """Thresholds `[P, M]` of cuts `[P, M-1]`."""
        found = np.take_along_axis(self.limits, cuts.T, axis=1).T
        return np.pad(found, ((0, 0), (0, 1)), constant_values=-np.inf)


def _corners(ranked: _Ranked, correct: Array, costs: Array) -> Array:
    """Cuts `[R, M-1]` by falling price, between all leaving at exit 0 and none leaving early."""
    right = correct.T.astype(np.float64)[..., None]  # [M, N, 1]
    spent = (costs[:, None] if costs.ndim == 1 else costs.T)[..., None]  # [M, 1 or N, 1]
    prices = np.logspace(*PRICES)[::-1] / spent[-1].mean()
    later = right[-1] - prices * spent[-1]  # [N, R], worth of going on
    samples, exits = ranked.scores.shape
    cuts = np.zeros((len(prices) + 2, exits - 1), dtype=np.int64)
    cuts[0] = samples
    for exit_index in reversed(range(exits - 1)):
        order = ranked.order[exit_index]
        here = right[exit_index] - prices * spent[exit_index]
        gains = _smoothed(ranked.scores[:, exit_index], here - later)
        totals = np.zeros((samples + 1, len(prices)))
        np.cumsum(gains[order], axis=0, out=totals[1:])
        totals[~ranked.allowed[exit_index]] = -np.inf  # ties stay together
        best = totals.argmax(axis=0)
        cuts[1:-1, exit_index] = best
        stopping = order.argsort()[:, None] < best
        later = np.where(stopping, here, later)
    return cuts


def _smoothed(scores: Array, gains: Array) -> Array:
    """Gains `[N, R]` as a ridge cubic in the normal score of their samples."""
    from scipy.special import ndtri  # here, since only who tunes needs it

    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    normal = ndtri((counts.cumsum() - counts / 2)[group] / len(scores))
    design = np.vander(normal, DEGREE + 1, increasing=True)
    ridge = np.diag([1e-6, RIDGE / 10, *[RIDGE] * (DEGREE - 1)])
    return np.asarray(design @ np.linalg.solve(design.T @ design + ridge, design.T @ gains))


def _between(corners: Array, place: Array) -> Array:
    """Cuts `[P, M-1]` at places `[P]` on the way along the corners `[R, M-1]`."""
    left = np.minimum(place.astype(int), len(corners) - 2)
    share = (place - left)[:, None]
    cuts = (1 - share) * corners[left] + share * corners[left + 1]
    return np.asarray(cuts.round().astype(int))


def _check_arrays(scores: Array, correct: Array, costs: Array) -> None:
    fits = costs.shape in (scores.shape, scores.shape[1:])
    if scores.ndim != 2 or correct.shape != scores.shape or not fits:
        raise LedgerError(
            "`scores` and `correct` must have the shape [N, M] and `costs` [M] or [N, M], got "
            f"{list(scores.shape)}, {list(correct.shape)} and {list(costs.shape)}"
        )
    if not np.isfinite(scores[:, :-1]).all():
        raise LedgerError("`scores` must be finite at every exit but the last")
