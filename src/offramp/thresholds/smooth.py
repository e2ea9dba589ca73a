"""Smooth thresholds: backward induction over prices, for val splits of a few hundred samples.

Thresholds that are best on a small val split owe that to a handful of lucky samples. Here, what
stopping gains over going on is taken to be a smooth function of the score's rank at an exit: a
cubic, fitted to all samples. From the last exit backwards, and for many prices of compute at
once, the cut is the best prefix of these smooth gains.
"""

import numpy as np
import torch
from torch import Tensor

from offramp.costs import costs_taken, mean_costs
from offramp.scorers.ridge import fit_logistic
from offramp.thresholds.optimized import SAME, Cuts, Floats, SortedSamples, check_arrays
from offramp.thresholds.taken import exits_taken

DEGREE = 3
RIDGE = 2.0  # in samples, on the powers of the normal score; a tenth of it on the slope
PRICES = (-2.6, 1.2, 60)  # powers of ten, and how many
SMALLEST = 1e-6  # a chance; nothing is surer in float32
PRIOR = 1.0  # of slope and offset, in samples: holds them where all answers are right
EXIT_PRIOR = 100.0  # of what a single exit adds to them: a few hundred samples hardly move it
HALVINGS = 10  # of the way from the cuts of one price to those of the next


def smooth_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """Smooth thresholds over the whole range of costs: `[P, M]`.

    Args:
        scores: `[N, M]` on val.
        correct: `[N, M]`: whether each answer is right, or the chance that it is.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many costs, spread evenly; fewer points come back where a larger cost buys
            nothing.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> scores = torch.randn(100, 3, generator=generator)
        >>> correct = torch.rand(100, 3, generator=generator) < scores.sigmoid()
        >>> smooth_sweep(scores, correct, torch.tensor([0.2, 0.5, 1.0]), points=11).shape[1]
        3
    """
    scores, correct = torch.as_tensor(scores), torch.as_tensor(correct)
    costs = torch.as_tensor(costs, dtype=torch.float64)
    check_arrays(scores, correct, costs)
    table = SortedSamples.of(scores, correct, costs)
    corners = _corners(scores, table)
    spent = _costs(scores, costs, _thresholds(scores, table, corners))
    ends = mean_costs(costs)
    wanted = torch.linspace(float(ends[0]), float(ends[-1]), points, dtype=torch.float64) + SAME
    # The last corner that is not above a wanted cost: the next one is, and between lies the cost.
    within = (spent <= wanted[:, None]).int()
    low = (len(corners) - 1 - within.flip(1).argmax(dim=1)).double()
    high = (low + 1).clamp_max(len(corners) - 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        thresholds = _thresholds(scores, table, _between(corners, middle.numpy()))
        fits = _costs(scores, costs, thresholds) <= wanted
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    found = _thresholds(scores, table, _between(corners, low.numpy()))
    different: Tensor = torch.unique(found, dim=0)
    return different


def calibrated_chances(chances: Tensor, correct: Tensor) -> Tensor:
    """Chances of being right, made to agree with what was right: float64 `[N, M]`.

    A network's probabilities may be too sure. A slope and an offset of the log-odds are fitted to
    which answers are right: one pair for all exits, and what each exit adds to it. The latter is
    held near zero, so that it shows with thousands of samples and hardly with a few hundred.

    Args:
        chances: `[N, M]` in [0, 1], from a source that is better than the exits themselves.
        correct: bool `[N, M]`.

    Example:
        >>> chances = torch.tensor([[0.999], [0.999], [0.999], [0.999]])
        >>> correct = torch.tensor([[True], [True], [True], [False]])
        >>> calibrated_chances(chances, correct).round(decimals=1)
        tensor([[0.7000],
                [0.7000],
                [0.7000],
                [0.7000]], dtype=torch.float64)
    """
    exits = chances.shape[1]
    odds = chances.double().clamp(SMALLEST, 1 - SMALLEST).logit()
    pair = torch.stack([odds, torch.ones_like(odds)], dim=2)  # [N, M, 2]
    own = torch.einsum("nmp,me->nmep", pair, torch.eye(exits, dtype=torch.float64)).flatten(2)
    design = torch.cat([pair, own], dim=2).flatten(0, 1)
    prior = torch.tensor([PRIOR] * 2 + [EXIT_PRIOR] * 2 * exits, dtype=torch.float64)
    weights = fit_logistic(design, correct.flatten().double(), prior)
    return (design @ weights).sigmoid().view(chances.shape)


def _corners(scores: Tensor, table: SortedSamples) -> Cuts:
    """Cuts `[R, M-1]` by falling price, between all leaving at exit 0 and none leaving early."""
    prices = torch.logspace(*PRICES, dtype=torch.float64).flip(0) / table.costs[-1].mean()
    correct, costs = torch.from_numpy(table.correct), torch.from_numpy(table.costs)[..., None]
    later = correct[-1][:, None] - prices * costs[-1]  # [N, R], worth of going on
    cuts = np.zeros((len(prices) + 2, len(table.order)), dtype=np.int64)
    cuts[0] = table.samples
    for exit_index in reversed(range(len(table.order))):
        here = correct[exit_index][:, None] - prices * costs[exit_index]
        gains = _smoothed(scores[:, exit_index], here - later)
        totals = torch.zeros(table.samples + 1, len(prices), dtype=torch.float64)
        totals[1:] = gains[torch.from_numpy(table.order[exit_index])].cumsum(dim=0)
        totals[~torch.from_numpy(table.allowed[exit_index])] = -torch.inf  # ties stay together
        best = totals.argmax(dim=0)
        cuts[1:-1, exit_index] = best.numpy()
        stop = torch.from_numpy(table.rank[exit_index])[:, None] < best
        later = torch.where(stop, here, later)
    return cuts


def _smoothed(scores: Tensor, gains: Tensor) -> Tensor:
    """Gains `[N, R]` as a ridge cubic in the normal score of their samples."""
    _, group, counts = scores.double().unique(return_inverse=True, return_counts=True)
    shares = (counts.cumsum(0) - counts / 2)[group] / len(scores)
    normal = torch.special.ndtri(shares.double())
    design = torch.stack([normal**power for power in range(DEGREE + 1)], dim=1)
    ridge = torch.tensor([1e-6, RIDGE / 10, *[RIDGE] * (DEGREE - 1)], dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(design.T @ design + ridge.diag(), design.T @ gains)
    return design @ weights


def _between(corners: Cuts, place: Floats) -> Cuts:
    """Cuts `[P, M-1]` at places `[P]` on the way along the corners `[R, M-1]`."""
    left = np.minimum(place.astype(np.int64), len(corners) - 2)
    share = (place - left)[:, None]
    cuts: Cuts = np.rint((1 - share) * corners[left] + share * corners[left + 1]).astype(np.int64)
    return cuts


def _thresholds(scores: Tensor, table: SortedSamples, cuts: Cuts) -> Tensor:
    """Thresholds `[P, M]` of cuts `[P, M-1]`, which are made smaller where they part a tie."""
    found = torch.full((len(cuts), scores.shape[1]), -torch.inf, dtype=torch.float64)
    infinite, numbers = torch.tensor([torch.inf], dtype=torch.float64), np.arange(len(scores) + 1)
    for exit_index, order in enumerate(table.order):
        ranked = scores[torch.from_numpy(order), exit_index].double()
        limits = torch.cat([infinite, (ranked[1:] + ranked[:-1]) / 2, -infinite])
        whole = np.maximum.accumulate(np.where(table.allowed[exit_index], numbers, 0))
        found[:, exit_index] = limits[torch.from_numpy(whole[cuts[:, exit_index]])]
    return found


def _costs(scores: Tensor, costs: Tensor, thresholds: Tensor) -> Tensor:
    """Mean costs `[P]`."""
    return costs_taken(costs, exits_taken(scores, thresholds)).mean(dim=1)
