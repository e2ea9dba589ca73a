"""One operating point of a policy, as every runner needs it: what has to run, and who stops."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """One operating point, ready to run; it never changes, so threads can share it.

    Plain numbers: taking one from an array costs time at every exit.
    """

    index: int  # its number among the policy's points
    # `[M]`, thresholds rounded up to float32; `+inf` where an exit is closed
    limits: tuple[float, ...]
    # `[M]`, whether the head has to run: its exit is open, or something later reads its logits
    needs_head: tuple[bool, ...]
    keeps_logits: bool  # whether anything reads the logits of earlier exits
    # whether anything reads the answers at earlier exits, where these are not the logits
    # themselves
    keeps_answers: bool
    costs: tuple[float, ...]  # `[M]`, cumulative, as shares of the network without exits
    expected_cost: float  # mean cost on val
    expected_shares: tuple[float, ...]  # `[M]`, of val samples that left at each exit
    val_samples: int  # number of those samples; 1 if unknown

    @cached_property
    def is_open(self) -> tuple[bool, ...]:
        """`[M]`, whether a sample can stop there; always true at the last exit."""
        return open_exits(self.limits)


def open_exits(limits: Sequence[float]) -> tuple[bool, ...]:
    """Whether a sample can stop at each exit, `[M]`: the last one always stops.

    Example:
        >>> open_exits([0.5, math.inf, math.inf])
        (True, False, True)
    """
    return (*(limit < math.inf for limit in limits[:-1]), True)
