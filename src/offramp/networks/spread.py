"""Choosing exits that are spread evenly in cost, not in depth."""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["spread_evenly"]


def spread_evenly(costs: Sequence[float], count: int) -> list[int]:
    """Choose `count` of the ends of consecutive blocks, the last one always among them.

    The cumulative costs at the chosen ends differ as little as possible, summed over the exits,
    from equal shares of the whole.

    Args:
        costs: Of each block.
        count: How many ends to choose, at most as many as there are blocks.

    Returns:
        Positions of blocks, increasing.

    Example:
        >>> spread_evenly([8, 1, 1, 1, 1, 4], 2)
        [0, 5]
    """
    ends = list(accumulate(costs))
    shares = [ends[-1] * (index + 1) / count for index in range(count)]
    # best[b] is the least distance, and the choice that has it, when the newest exit is at b.
    best: list[tuple[float, list[int]]] = [
        (abs(end - shares[0]), [b]) for b, end in enumerate(ends)
    ]
    for share in shares[1:]:
        best = [
            min(
                ((distance + abs(end - share), [*chosen, b]) for distance, chosen in best[:b]),
                default=(float("inf"), []),
            )
            for b, end in enumerate(ends)
        ]
    return best[-1][1]
