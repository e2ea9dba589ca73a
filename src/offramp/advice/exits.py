"""Which exits to keep: a head that is run and seldom stopped at only costs."""

from collections.abc import Callable, Sequence

from offramp.ledger import Ledger

__all__ = ["choose_exits"]

Rate = Callable[[Sequence[int]], float]

NEGLIGIBLE = 1e-3  # of the network without exits; heads that cost less are not worth a search


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose loss is the best riddance, again and again, while that helps.

    The last exit stays, and so do exits whose heads cost next to nothing, or where their cost is
    not known apart: dropping them saves nothing that a closed threshold would not.

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
    least = NEGLIGIBLE * ledger.reference_cost
    dear = [m for m in kept[:-1] if ledger.cost_model.heads[m] > least]
    if not dear:
        return kept
    best = rate(kept)
    while len(kept) > 2 and dear:
        rated = {m: rate([other for other in kept if other != m]) for m in dear}
        worst = max(rated, key=lambda m: rated[m])
        if rated[worst] <= best:
            break
        best = rated[worst]
        kept.remove(worst)
        dear.remove(worst)
    return kept
