"""Which exits to keep: a head that is run and seldom stopped at only costs."""

from collections.abc import Callable, Sequence

from offramp.ledger import Ledger

__all__ = ["choose_exits"]

Rate = Callable[[Sequence[int]], float]


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose loss is the best riddance, again and again, while that helps.

    The last exit stays. Where heads cost nothing, or where their cost is not known apart, dropping
    an exit saves nothing that a closed threshold would not, and all are kept.

    Args:
        ledger: Any split: its costs are looked at.
        rate: How good a set of exits is; higher is better.

    Returns:
        Numbers of the exits to keep, ascending.

    Example:
        >>> import torch
        >>> from offramp import Costs
        >>> costs = Costs(stages=(1, 1, 1), heads=(1, 1, 1))
        >>> ledger = Ledger(torch.randn(4, 3, 2), [0, 1, 0, 1], costs, split="val")
        >>> choose_exits(ledger, lambda exits: -float(0 in exits))
        [1, 2]
    """
    kept = list(range(ledger.num_exits))
    if not any(ledger.cost_model.heads[:-1]):
        return kept
    best = rate(kept)
    while len(kept) > 2:
        rated = {m: rate([other for other in kept if other != m]) for m in kept[:-1]}
        worst = max(rated, key=lambda m: rated[m])
        if rated[worst] <= best:
            break
        best = rated[worst]
        kept.remove(worst)
    return kept
