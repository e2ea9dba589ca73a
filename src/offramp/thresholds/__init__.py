"""Scores -> thresholds, for a budget or under a guarantee.

There are two defaults. A comparison of methods uses the paper's thresholds, so that its tables
can be compared with the paper's. A policy in use has smooth thresholds, which are seldom worse
than geometric ones, from a hundred val samples to thousands.
"""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

DEFAULT = "smooth"
"""Thresholds in use: of `Policy.tune`, `offramp fit` and `auto`."""

PAPER = "geometric"
"""Thresholds in comparisons: of a `Method` that does not ask for others."""

POINTS = 201
"""Operating points that a tuned policy stores."""

if TYPE_CHECKING:
    from offramp.thresholds.geometric import geometric
    from offramp.thresholds.rule import OperatingPoints, exits_taken, rounded_up, stops

__all__ = [
    "DEFAULT",
    "PAPER",
    "POINTS",
    "OperatingPoints",
    "exits_taken",
    "geometric",
    "rounded_up",
    "stops",
]

import_when_asked(__name__)
