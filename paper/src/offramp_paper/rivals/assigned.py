"""Exit shares learned for a budget, after EENet (Ilhan et al. 2024).

Every sample gets a soft assignment to the exits, a softmax over a scale and a bias per exit of its
scores. They are trained for being right where one is assigned to, and for keeping to the budget.
The mean assignment says how many samples are to leave at each exit; the thresholds follow by
taking the highest scores among those that are still there.

Where the paper leaves a choice or ours differs: scores are standardised exit by exit; the
assignment is trained on val, by Adam on all samples at once; it is trained for a number of budgets
side by side, and shares for the budgets between them are interpolated, which is exact in cost.
"""

from collections.abc import Iterator

import numpy as np

from offramp.arrays import Array, softmax
from offramp.costs import mean_costs
from offramp.thresholds.geometric import LOG_Q_LIMIT, for_shares

BUDGETS = 17
STEPS = 150
LEARNING_RATE = 0.1
PENALTY = 10.0  # accuracy per cost of the whole network: more than compute is ever worth
CHUNK = 4096  # samples whose assignments are in memory at once


def assigned_sweep(scores: Array, correct: Array, costs: Array, points: int) -> Array:
    """Thresholds for budgets spread evenly over the whole range, by learned shares: `[points, M]`.

    Args:
        scores: `[N, M]` on val; the last column is not looked at.
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative; shares are learned by those of the mean sample.
        points: How many operating points.

    Example:
        >>> scores = np.array([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
        >>> correct = np.array([[True, True], [True, True], [False, True], [False, True]])
        >>> assigned_sweep(scores, correct, np.array([0.5, 1.0]), points=3)[1]
        array([ 2.5, -inf])
    """
    costs = mean_costs(costs)
    wanted = np.linspace(costs[0], costs[-1], BUDGETS)
    learned = _moved_to(_learned_shares(scores, correct, costs, wanted), costs, wanted)
    place = np.linspace(0, BUDGETS - 1, points)
    left = np.minimum(place.astype(int), BUDGETS - 2)
    step = learned[left + 1] - learned[left]
    return for_shares(scores, learned[left] + (place - left)[:, None] * step)


def _learned_shares(scores: Array, correct: Array, costs: Array, budgets: Array) -> Array:
    """Mean assignments `[B, M]` for budgets `[B]`; they come near the budgets."""
    inputs, right = _standardised(scores), correct.astype(np.float32)
    spread, limits = np.float32(costs / costs[-1]), np.float32(budgets / costs[-1])
    weights = np.zeros((2, len(budgets), scores.shape[1]), np.float32)
    weights[0] = 1  # scales; the biases begin at zero
    moments = np.zeros((2, *weights.shape), np.float32)
    for step in range(1, STEPS + 1):
        # The cost of all samples decides whether the budget is kept, so it is known beforehand.
        over = np.sign(_mean_shares(inputs, weights) @ spread - limits)
        lost = PENALTY * over[:, None] * spread  # [B, M]
        gradient = np.zeros_like(weights)
        for rows, assigned in _assignments(inputs, weights):
            loss = lost[:, None] - right[rows]
            loss -= (assigned * loss).sum(axis=2, keepdims=True)
            slope = assigned * loss  # of the log-odds that samples are assigned by, [B, n, M]
            gradient[0] += np.einsum("bnm,nm->bm", slope, inputs[rows])
            gradient[1] += slope.sum(axis=1)
        weights -= LEARNING_RATE * _adam(moments, gradient / len(inputs), step)
    return _mean_shares(inputs, weights).astype(np.float64)


def _adam(moments: Array, gradient: Array, step: int) -> Array:
    """The step of Adam (Kingma and Ba 2015, Algorithm 1); `moments` are kept up to date."""
    moments[0] = 0.9 * moments[0] + 0.1 * gradient
    moments[1] = 0.999 * moments[1] + 0.001 * gradient**2
    mean, square = moments[0] / (1 - 0.9**step), moments[1] / (1 - 0.999**step)
    return np.asarray(mean / (np.sqrt(square) + 1e-8))


def _assignments(inputs: Array, weights: Array) -> Iterator[tuple[slice, Array]]:
    """Soft assignments of samples to exits, a few samples at a time: `[B, n, M]`."""
    scales, biases = weights[:, :, None]
    for start in range(0, len(inputs), CHUNK):
        rows = slice(start, start + CHUNK)
        yield rows, softmax(inputs[rows] * scales + biases)


def _mean_shares(inputs: Array, weights: Array) -> Array:
    """`[B, M]`."""
    sums = [part.sum(axis=1) for _, part in _assignments(inputs, weights)]
    return np.asarray(np.sum(sums, axis=0) / np.float32(len(inputs)))


def _standardised(scores: Array) -> Array:
    """Scores with mean 0 and variance 1 at every exit; 0 at the last, where none is needed."""
    known = scores[:, :-1].astype(np.float64)
    inputs = np.zeros(scores.shape, np.float32)
    inputs[:, :-1] = (known - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-12)
    return inputs


def _moved_to(shares: Array, costs: Array, budgets: Array) -> Array:
    """The nearest shares `[B, M]` whose mean costs are the budgets, in the sense of divergence.

    They are the shares times exp(-price x cost), for the price that bisection finds.
    """
    spread = (costs - costs[0]) / (costs[-1] - costs[0])
    logs = np.log(np.maximum(shares, 1e-12))
    low = np.full_like(budgets, -100 * LOG_Q_LIMIT)
    high = -low
    for _ in range(60):
        price = (low + high) / 2
        moved = softmax(logs - price[:, None] * spread)
        too_costly = moved @ costs > budgets
        low, high = np.where(too_costly, price, low), np.where(too_costly, high, price)
    return np.asarray(softmax(logs - high[:, None] * spread))
