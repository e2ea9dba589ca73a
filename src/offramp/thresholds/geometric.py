"""Geometric exit shares: the heuristic of MSDNet that the paper uses (Appendix C)."""

import torch
from torch import Tensor

from offramp.costs import costs_taken, mean_costs
from offramp.errors import ConfigError
from offramp.thresholds.rule import exits_taken, rounded_up, stops

LOG_Q_LIMIT = 40.0  # e^-40 of any split is less than a sample


def shares_of(log_q: Tensor, exits: int) -> Tensor:
    """Share of samples that should leave at each exit, proportional to q^j: `[P]` -> `[P, M]`.

    Example:
        >>> shares_of(torch.tensor([2.0]).log(), exits=3)
        tensor([[0.1429, 0.2857, 0.5714]])
    """
    return (log_q[:, None] * torch.arange(exits)).softmax(dim=1)


def geometric(scores: Tensor, q: float | Tensor) -> Tensor:
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
        >>> scores = torch.tensor([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
        >>> geometric(scores, q=1.0)
        tensor([2.5000,   -inf], dtype=torch.float64)
    """
    scores, many = torch.as_tensor(scores), torch.as_tensor(q, dtype=torch.float64)
    if not (many > 0).all():
        raise ConfigError(f"`q` must be positive, got {many.min():g}")
    log_q = many.log().clamp(-LOG_Q_LIMIT, LOG_Q_LIMIT)
    thresholds = for_shares(scores, shares_of(log_q.reshape(-1), scores.shape[1]))
    return thresholds if many.ndim else thresholds[0]


def geometric_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """Geometric thresholds over the whole range, evenly spread in expected cost: `[points, M]`.

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`; this method does not use it.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many operating points.
    """
    costs = mean_costs(costs)
    wanted = torch.linspace(float(costs[0]), float(costs[-1]), points, dtype=torch.float64)
    low = torch.full((points,), -LOG_Q_LIMIT, dtype=torch.float64)
    high = -low
    for _ in range(60):  # the expected cost grows with q, so that bisection finds it
        middle = (low + high) / 2
        too_costly = shares_of(middle, len(costs)) @ costs > wanted
        low, high = torch.where(too_costly, low, middle), torch.where(too_costly, middle, high)
    low[0], low[-1] = -LOG_Q_LIMIT, LOG_Q_LIMIT
    return geometric(scores, low.exp())


def for_shares(scores: Tensor, shares: Tensor) -> Tensor:
    """Thresholds `[P, M]` that come as close as ties allow to the exit shares `[P, M]`."""
    samples, exits = scores.shape
    goals = (shares.cumsum(1) * samples).round().long()  # [P, M], samples gone after each exit
    staying = torch.ones(len(shares), samples, dtype=torch.bool)
    thresholds = torch.full_like(shares, -torch.inf, dtype=torch.float64)
    for exit_index in range(exits - 1):
        column = scores[:, exit_index].double()
        gone = samples - staying.sum(dim=1)
        thresholds[:, exit_index] = _cut(column, staying, goals[:, exit_index] - gone)
        limits = rounded_up(thresholds[:, exit_index, None], scores.dtype)
        staying &= ~stops(scores[:, exit_index], limits)
    return thresholds


def _cut(scores: Tensor, staying: Tensor, wanted: Tensor) -> Tensor:
    """Thresholds `[P]` that stop about `wanted` `[P]` of the samples `staying` `[P, N]`."""
    values, order = scores.sort(descending=True)
    ranks = staying[:, order].cumsum(dim=1, dtype=torch.int32)  # [P, N], staying ones so far
    there = ranks[:, -1]
    wanted = wanted.clamp_min(0).minimum(there).int()

    def value_of(rank: Tensor) -> Tensor:
        """Score of the staying sample with this rank, counted from one."""
        return values[
            torch.searchsorted(ranks, rank[:, None]).squeeze(1).clamp_max(len(values) - 1)
        ]

    # All samples that tie with the last wanted one go together, or none of them.
    tie = value_of(wanted.clamp_min(1))
    first = torch.searchsorted(-values, -tie)
    end = torch.searchsorted(-values, -tie, right=True)
    above = torch.where(first > 0, _at(ranks, first - 1), 0)
    with_tie = _at(ranks, end - 1)
    taken = torch.where(with_tie - wanted < wanted - above, with_tie, above)
    upper, lower = value_of(taken.clamp_min(1)), value_of(taken + 1)
    middle = lower + (upper - lower) / 2
    # Neighbours that have no number between them: `>=` then cuts above the lower one at the upper.
    threshold = torch.where(middle > lower, middle, upper)
    threshold = torch.where(taken == there, -torch.inf, threshold)
    return torch.where(taken == 0, torch.inf, threshold)


def _at(ranks: Tensor, column: Tensor) -> Tensor:
    return ranks.gather(1, column.clamp_min(0)[:, None]).squeeze(1)


def shared_sweep(scores: Tensor, correct: Tensor, costs: Tensor, points: int) -> Tensor:
    """The same threshold at every exit, over the whole range of costs: `[points, M]`.

    It fits scores that are prices (`BreakEven`) or accuracies.

    Args:
        scores: `[N, M]` on val.
        correct: bool `[N, M]`; this method does not use it.
        costs: `[M]` or `[N, M]`, cumulative.
        points: How many operating points.

    Example:
        >>> scores = torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
        >>> shared_sweep(scores, scores > 0, torch.tensor([0.2, 0.5, 1.0]), points=3)[1]
        tensor([2.5000, 2.5000,   -inf], dtype=torch.float64)
    """
    values = scores[:, :-1].double().unique()  # growing, and so is the cost of a threshold
    middles = (values[:-1] + values[1:]) / 2
    infinite = values.new_tensor([torch.inf])
    cuts = torch.cat([-infinite, middles, infinite])
    ends = mean_costs(costs)
    wanted = torch.linspace(float(ends[0]), float(ends[-1]), points, dtype=torch.float64)
    low, high = torch.zeros(points, dtype=torch.long), torch.full((points,), len(cuts) - 1)
    for _ in range(len(cuts).bit_length() + 1):
        middle = (low + high + 1) // 2
        exits = exits_taken(scores, _spread(cuts[middle], len(ends)))
        too_costly = costs_taken(costs.double(), exits).mean(dim=1) > wanted + 1e-12
        low, high = torch.where(too_costly, low, middle), torch.where(too_costly, middle - 1, high)
        high = high.maximum(low)
    return _spread(cuts[low], len(ends))


def _spread(thresholds: Tensor, exits: int) -> Tensor:
    """The same at every exit but the last, which always stops: `[P]` -> `[P, M]`."""
    spread = thresholds[:, None].repeat(1, exits)
    spread[:, -1] = -torch.inf
    return spread
