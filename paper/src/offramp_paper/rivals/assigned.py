"""Exit shares learned for a budget, after EENet (Ilhan et al. 2024).

Every sample gets a soft assignment to the exits, a softmax over a scale and a bias per exit of its
scores. They are trained for being right where one is assigned to, and for keeping to the budget.
The mean assignment says how many samples are to leave at each exit; the thresholds follow by
taking the highest scores among those that are still there.

Where the paper leaves a choice or ours differs: scores are standardised exit by exit; the
assignment is trained on val, by Adam on all samples at once; it is trained for a number of budgets
side by side, and shares for the budgets between them are interpolated, which is exact in cost.
"""

import torch
from torch import Tensor

from offramp.costs import mean_costs
from offramp.thresholds.geometric import LOG_Q_LIMIT, for_shares

BUDGETS = 17
STEPS = 150
LEARNING_RATE = 0.1
PENALTY = 10.0  # accuracy per cost of the whole network: more than compute is ever worth
CHUNK = 4096  # samples whose assignments are in memory at once


def assigned_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """Thresholds for budgets spread evenly over the whole range, by learned shares: `[points, M]`.

    Args:
        scores: `[N, M]` on val; the last column is not looked at.
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative; shares are learned by those of the mean sample.
        points: How many operating points.

    Example:
        >>> scores = torch.tensor([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
        >>> correct = torch.tensor([[True, True], [True, True], [False, True], [False, True]])
        >>> assigned_sweep(scores, correct, torch.tensor([0.5, 1.0]), points=3)[1]
        tensor([2.5000,   -inf], dtype=torch.float64)
    """
    costs = mean_costs(costs)
    wanted = torch.linspace(float(costs[0]), float(costs[-1]), BUDGETS, dtype=torch.float64)
    learned = _moved_to(_learned_shares(scores, correct, costs, wanted), costs, wanted)
    place = torch.linspace(0, BUDGETS - 1, points, dtype=torch.float64)
    left = place.floor().long().clamp_max(BUDGETS - 2)
    shares = torch.lerp(learned[left], learned[left + 1], (place - left)[:, None])
    return for_shares(scores, shares)


def _learned_shares(scores: Tensor, correct: Tensor, costs: Tensor, budgets: Tensor) -> Tensor:
    """Mean assignments `[B, M]` for budgets `[B]`; they come near the budgets."""
    inputs, right = _standardised(scores), correct.float()
    spread = costs.float() / costs[-1].float()
    limits = budgets.float() / costs[-1].float()
    scales = torch.ones(len(budgets), scores.shape[1], requires_grad=True)
    biases = torch.zeros(len(budgets), scores.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([scales, biases], lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        # The cost of all samples decides whether the budget is kept, so it is known beforehand.
        with torch.no_grad():
            over = _mean_shares(inputs, scales, biases) @ spread - limits
        for part, hits in zip(inputs.split(CHUNK), right.split(CHUNK), strict=True):
            assigned = _assignments(part, scales, biases)  # [B, n, M]
            lost = (assigned * (over.sign() * PENALTY)[:, None, None] * spread).sum()
            ((lost - (assigned * hits).sum()) / len(inputs)).backward()
        optimizer.step()
    with torch.no_grad():
        return _mean_shares(inputs, scales, biases).double()


def _assignments(inputs: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    return (inputs * scales[:, None] + biases[:, None]).softmax(dim=2)


def _mean_shares(inputs: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    """`[B, M]`."""
    sums = [_assignments(part, scales, biases).sum(dim=1) for part in inputs.split(CHUNK)]
    return torch.stack(sums).sum(dim=0) / len(inputs)


def _standardised(scores: Tensor) -> Tensor:
    """Scores with mean 0 and variance 1 at every exit; 0 at the last, where none is needed."""
    known = scores[:, :-1].double()
    spread = known.std(dim=0, correction=0).clamp_min(1e-12)
    inputs = torch.zeros(scores.shape)
    inputs[:, :-1] = ((known - known.mean(dim=0)) / spread).float()
    return inputs


def _moved_to(shares: Tensor, costs: Tensor, budgets: Tensor) -> Tensor:
    """The nearest shares `[B, M]` whose mean costs are the budgets, in the sense of divergence.

    They are the shares times exp(-price x cost), for the price that bisection finds.
    """
    spread = (costs - costs[0]) / (costs[-1] - costs[0])
    logs = shares.clamp_min(1e-12).log()
    low = torch.full_like(budgets, -100 * LOG_Q_LIMIT)
    high = -low
    for _ in range(60):
        price = (low + high) / 2
        moved = (logs - price[:, None] * spread).softmax(dim=1)
        too_costly = moved @ costs > budgets
        low, high = torch.where(too_costly, price, low), torch.where(too_costly, high, price)
    return (logs - high[:, None] * spread).softmax(dim=1)
