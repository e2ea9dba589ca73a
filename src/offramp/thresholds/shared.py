"""One threshold for all exits: for scores that mean the same at each of them."""

import torch
from torch import Tensor

from offramp.thresholds.rule import exits_taken

__all__ = ["shared_sweep"]


def shared_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """The same threshold at every exit, over the whole range of costs: `[points, M]`.

    It fits scores that are prices (`Forecast`) or accuracies (`PerformanceControl`).

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`; this method does not look at it.
        costs: `[M]`, cumulative.
        points: How many operating points.

    Example:
        >>> scores = torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
        >>> shared_sweep(scores, scores > 0, torch.tensor([0.2, 0.5, 1.0]), points=3)[1]
        tensor([2.5000, 2.5000,   -inf], dtype=torch.float64)
    """
    values = scores[:, :-1].double().unique()  # growing, and so is the cost of a threshold
    middles = (values[:-1] + values[1:]) / 2
    ends = values.new_tensor([torch.inf])
    cuts = torch.cat([-ends, middles, ends])
    wanted = torch.linspace(float(costs[0]), float(costs[-1]), points, dtype=torch.float64)
    low, high = torch.zeros(points, dtype=torch.long), torch.full((points,), len(cuts) - 1)
    for _ in range(len(cuts).bit_length() + 1):
        middle = (low + high + 1) // 2
        exits = exits_taken(scores, _spread(cuts[middle], len(costs)))
        dear = costs.double()[exits.long()].mean(dim=1) > wanted + 1e-12
        low, high = torch.where(dear, low, middle), torch.where(dear, middle - 1, high)
        high = high.maximum(low)
    return _spread(cuts[low], len(costs))


def _spread(thresholds: Tensor, exits: int) -> Tensor:
    """The same at every exit but the last, which always stops: `[P]` -> `[P, M]`."""
    spread = thresholds[:, None].repeat(1, exits)
    spread[:, -1] = -torch.inf
    return spread
