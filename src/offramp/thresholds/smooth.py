"""Smooth thresholds: backward induction over prices, for val splits of a few hundred samples.

Thresholds that are best on a small val split owe that to a handful of lucky samples. Here, what
stopping gains over going on is taken to be a smooth function of the score's rank at an exit: a
cubic, fitted to all samples. From the last exit backwards, and for many prices of compute at
once, the cut is the best prefix of these smooth gains.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    _check_arrays(scores, correct, costs)
    ranked = _Ranked.of(scores)
    corners = _corners(ranked, correct, costs)

    def spent(cuts: Tensor) -> Tensor:
        """Mean costs `[P]`."""
        exits = exits_taken(scores, ranked.thresholds(cuts))
        return costs_taken(costs, exits).mean(dim=1)

    ends = mean_costs(costs)
    wanted = torch.linspace(float(ends[0]), float(ends[-1]), points, dtype=torch.float64)
    wanted += ROUNDING
    # The last corner that is not above a wanted cost: the next one is, and between lies the cost.
    within = (spent(corners) <= wanted[:, None]).int()
    low = (len(corners) - 1 - within.flip(1).argmax(dim=1)).double()
    high = (low + 1).clamp_max(len(corners) - 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = spent(_between(corners, middle)) <= wanted
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    different: Tensor = torch.unique(ranked.thresholds(_between(corners, low)), dim=0)
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


@dataclass(frozen=True)
class _Ranked:
    """Scores, and the samples by falling score at every exit but the last.

    A cut says how many samples of an exit's order stop there; those that stopped before count too.

    Attributes:
        scores: `[N, M]`.
        order: `[M-1, N]`, sample numbers.
        rank: `[M-1, N]`, the place of each sample in that order.
        allowed: bool `[M-1, N+1]`, whether a cut of that size keeps tied scores together.
    """

    scores: Tensor
    order: Tensor
    rank: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> "_Ranked":
        values, order = scores[:, :-1].T.double().sort(dim=1, descending=True, stable=True)
        allowed = torch.ones(len(values), len(scores) + 1, dtype=torch.bool)
        allowed[:, 1:-1] = values[:, 1:] != values[:, :-1]
        return cls(scores, order, order.argsort(dim=1), allowed)

    def thresholds(self, cuts: Tensor) -> Tensor:
        """Thresholds `[P, M]` of cuts `[P, M-1]`, made smaller where they part a tie."""
        found = torch.full((len(cuts), self.scores.shape[1]), -torch.inf, dtype=torch.float64)
        infinite = torch.tensor([torch.inf], dtype=torch.float64)
        sizes = torch.arange(len(self.scores) + 1)
        for exit_index, order in enumerate(self.order):
            falling = self.scores[order, exit_index].double()
            limits = torch.cat([infinite, (falling[1:] + falling[:-1]) / 2, -infinite])
            whole = torch.where(self.allowed[exit_index], sizes, 0).cummax(dim=0).values
            found[:, exit_index] = limits[whole[cuts[:, exit_index]]]
        return found


def _corners(ranked: _Ranked, correct: Tensor, costs: Tensor) -> Tensor:
    """Cuts `[R, M-1]` by falling price, between all leaving at exit 0 and none leaving early."""
    right = correct.T.double()[..., None]  # [M, N, 1]
    spent = (costs[:, None] if costs.ndim == 1 else costs.T)[..., None]  # [M, 1 or N, 1]
    reference = spent[-1].contiguous().numpy().mean()
    prices = torch.logspace(*PRICES, dtype=torch.float64).flip(0) / reference
    later = right[-1] - prices * spent[-1]  # [N, R], worth of going on
    samples, exits = ranked.scores.shape
    cuts = torch.zeros(len(prices) + 2, exits - 1, dtype=torch.long)
    cuts[0] = samples
    for exit_index in reversed(range(exits - 1)):
        here = right[exit_index] - prices * spent[exit_index]
        gains = _smoothed(ranked.scores[:, exit_index], here - later)
        totals = torch.zeros(samples + 1, len(prices), dtype=torch.float64)
        totals[1:] = gains[ranked.order[exit_index]].cumsum(dim=0)
        totals[~ranked.allowed[exit_index]] = -torch.inf  # ties stay together
        best = totals.argmax(dim=0)
        cuts[1:-1, exit_index] = best
        later = torch.where(ranked.rank[exit_index][:, None] < best, here, later)
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


def _between(corners: Tensor, place: Tensor) -> Tensor:
    """Cuts `[P, M-1]` at places `[P]` on the way along the corners `[R, M-1]`."""
    left = place.long().clamp_max(len(corners) - 2)
    share = (place - left)[:, None]
    return ((1 - share) * corners[left] + share * corners[left + 1]).round().long()


def _check_arrays(scores: Tensor, correct: Tensor, costs: Tensor) -> None:
    fits = costs.shape in (scores.shape, scores.shape[1:])
    if scores.ndim != 2 or correct.shape != scores.shape or not fits:
        raise LedgerError(
            "`scores` and `correct` must have the shape [N, M] and `costs` [M] or [N, M], got "
            f"{list(scores.shape)}, {list(correct.shape)} and {list(costs.shape)}"
        )
    if not scores[:, :-1].isfinite().all():
        raise LedgerError("`scores` must be finite at every exit but the last")
