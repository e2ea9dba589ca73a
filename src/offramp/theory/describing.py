"""Small worlds and both sides of a statement as text."""

from collections.abc import Sequence

import numpy as np

from offramp.theory.exits import Exits
from offramp.theory.sides import Sides

__all__ = ["describe", "describe_sides"]


def describe(exits: Exits) -> str:
    """One small world and its exits, a line per point.

    Example:
        >>> from offramp.theory.counterexamples import growing_excess_risk
        >>> print(describe(growing_excess_risk()))
        x  P(x)  P(y|x)  exit 0: {0,1}{2}  exit 1: {0}{1,2}
        0  1/3   1 0     1 0               1 0
        1  1/3   1 0     1 0               1/2 1/2
        2  1/3   0 1     0 1               1/2 1/2
    """
    groups = [exits.grouping.exit(m) for m in range(exits.num_exits)]
    head = ["x", "P(x)", "P(y|x)", *(f"exit {m}: {group}" for m, group in enumerate(groups))]
    rows = [
        [
            str(x),
            _number(exits.world.p_x[x]),
            _numbers(exits.world.p_y_given_x[x]),
            *(_numbers(exits.predictors[m, x]) for m in range(exits.num_exits)),
        ]
        for x in range(exits.world.num_points)
    ]
    return "\n".join(_aligned([head, *rows]))


def describe_sides(sides: Sides) -> str:
    """Both sides at the place where they are furthest from what is claimed.

    Example:
        >>> describe_sides(Sides(np.array([0.5, 0.25]), np.array([0.5, 0.125]), "<="))
        '0.25 <= 0.125 is false'
    """
    place = sides.worst
    left, right = (
        _number(np.broadcast_to(side, sides.gap.shape)[place])
        for side in (sides.left, sides.right)
    )
    return f"{left} {sides.relation} {right} is {'true' if sides.holds else 'false'}"


def _number(value: object) -> str:
    """A Fraction as it is, a float to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(values: Sequence[object]) -> str:
    return " ".join(_number(value) for value in values)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
