"""Geometric exit shares: the heuristic of MSDNet that the paper uses (Appendix C)."""

import math

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy, float64, softmax
from offramp.costs import costs_taken, mean_costs
from offramp.errors import ConfigError
from offramp.thresholds.rule import exits_taken, rounded_up, stops

LOG_Q_LIMIT = 40.0  # e^-40 of any split is less than a sample


def shares_of(log_q: Array, exits: int) -> Array:
    """Share of samples that should leave at each exit, proportional to q^j: `[P]` -> `[P, M]`.

    Example:
        >>> shares_of(np.log([2.0]), exits=3).round(4)
        array([[0.1429, 0.2857, 0.5714]])
    """
    return np.asarray(softmax(log_q[:, None] * np.arange(exits)))


def geometric(scores: AnyArray, q: float | AnyArray) -> Array:
    """Thresholds at which the exits' shares of samples are proportional to q^j.

    Each threshold is found among the samples that are still there, and lies midway between two
    neighbouring scores. Where the wanted cut falls inside a group of tied scores, the nearer end
    of the group is taken; what one exit took too few or too many, the next one makes up for.

    Args:
        scores: `[N, M]`; the last column is not used.
        q: Below one, most samples leave early; above one, late. `[P]` values give `[P, M]`.

    Returns:
        float64 thresholds `[M]` or `[P, M]`; `+inf` where no sample should leave, `-inf` where all
        should, as always at the last exit.

    Example:
        >>> scores = np.array([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
        >>> geometric(scores, q=1.0)
        array([ 2.5, -inf])
    """
    scores, many = as_numpy(scores), as_numpy(q, np.float64)
    if not (many > 0).all():
        raise ConfigError(f"`q` must be positive, got {many.min():g}")
    log_q = np.log(many).clip(-LOG_Q_LIMIT, LOG_Q_LIMIT)
    thresholds = for_shares(scores, shares_of(log_q.reshape(-1), scores.shape[1]))
    return thresholds.reshape(*many.shape, -1)


def geometric_sweep(scores: Array, correct: Array, costs: Array, points: int) -> Array:
    """Geometric thresholds over the whole range, evenly spread in expected cost: `[points, M]`.

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`; this method does not use it.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many operating points.
    """
    costs = mean_costs(costs)
    wanted = np.linspace(costs[0], costs[-1], points)
    low, high = np.full(points, -LOG_Q_LIMIT), np.full(points, LOG_Q_LIMIT)
    for _ in range(60):  # the expected cost grows with q, so that bisection finds it
        middle = (low + high) / 2
        too_costly = shares_of(middle, len(costs)) @ costs > wanted
        low, high = np.where(too_costly, low, middle), np.where(too_costly, middle, high)
    low[0], low[-1] = -LOG_Q_LIMIT, LOG_Q_LIMIT
    return geometric(scores, np.exp(low))


def for_shares(scores: Array, shares: Array) -> Array:
    """Thresholds `[P, M]` that come as close as ties allow to the exit shares `[P, M]`."""
    samples, exits = scores.shape
    goals = (shares.cumsum(axis=1) * samples).round().astype(int)  # [P, M], gone after each exit
    staying = np.ones((len(shares), samples), dtype=bool)
    thresholds = np.full(shares.shape, -np.inf)
    for exit_index in range(exits - 1):
        column = scores[:, exit_index]
        order = column.argsort()
        rising = column[order].astype(np.float64)
        for point, there in enumerate(staying[:, order]):
            gone = samples - np.count_nonzero(there)
            wanted = goals[point, exit_index] - gone
            thresholds[point, exit_index] = _cut(rising[there], wanted)
        limits = rounded_up(thresholds[:, exit_index, None], column.dtype)
        staying &= ~stops(column, limits)
    return thresholds


def _cut(rising: Array, wanted: int) -> float:
    """A threshold that stops about `wanted` of the samples with these scores, in rising order."""
    if wanted < 1 or not len(rising):
        return math.inf
    # All samples that tie with the last wanted one go together, or none of them.
    wanted = min(wanted, len(rising))
    tie = rising[len(rising) - wanted]
    with_tie = len(rising) - np.searchsorted(rising, tie)
    above = len(rising) - np.searchsorted(rising, tie, side="right")
    taken = with_tie if with_tie - wanted < wanted - above else above
    if not taken:
        return math.inf
    if taken == len(rising):
        return -math.inf
    lower, upper = float(rising[-taken - 1]), float(rising[-taken])
    middle = lower + (upper - lower) / 2
    # Neighbours that have no number between them: `>=` then cuts above the lower one at the upper.
    return middle if middle > lower else upper


def shared_sweep(scores: Array, correct: Array, costs: Array, points: int) -> Array:
    """The same threshold at every exit, over the whole range of costs: `[points, M]`.

    It fits scores that are prices (`BreakEven`) or accuracies.

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`; this method does not use it.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many operating points.

    Example:
        >>> scores = np.array([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
        >>> shared_sweep(scores, scores > 0, np.array([0.2, 0.5, 1.0]), points=3)[1]
        array([ 2.5,  2.5, -inf])
    """
    values = np.unique(scores[:, :-1].astype(np.float64))  # growing, and so is a threshold's cost
    cuts = np.array([-np.inf, *(values[:-1] + values[1:]) / 2, np.inf])
    ends = mean_costs(costs)
    wanted = np.linspace(ends[0], ends[-1], points)
    low, high = np.zeros(points, dtype=int), np.full(points, len(cuts) - 1)
    for _ in range(len(cuts).bit_length() + 1):
        middle = (low + high + 1) // 2
        exits = exits_taken(scores, _spread(cuts[middle], len(ends)))
        too_costly = costs_taken(float64(costs), exits).mean(axis=1) > wanted + 1e-12
        low, high = np.where(too_costly, low, middle), np.where(too_costly, middle - 1, high)
        high = np.maximum(high, low)
    # The cheapest point is the first exit alone, on other samples too: all scores here may lie
    # above a cut that theirs do not reach.
    low[0] = 0
    return _spread(cuts[low], len(ends))


def _spread(thresholds: Array, exits: int) -> Array:
    """The same at every exit but the last, which always stops: `[P]` -> `[P, M]`."""
    spread = np.repeat(thresholds[:, None], exits, axis=1)
    spread[:, -1] = -np.inf
    return spread
