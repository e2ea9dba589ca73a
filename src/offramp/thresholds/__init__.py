"""Scores -> thresholds, for a budget or under a guarantee."""

from typing import TYPE_CHECKING

from offramp.lazy import import_when_asked

if TYPE_CHECKING:
    from offramp.thresholds.geometric import geometric
    from offramp.thresholds.optimized import optimize
    from offramp.thresholds.points import OperatingPoints
    from offramp.thresholds.rule import rounded_up, stops
    from offramp.thresholds.taken import exits_taken
    from offramp.thresholds.tuning import THRESHOLD_METHODS

__all__ = [
    "THRESHOLD_METHODS",
    "OperatingPoints",
    "exits_taken",
    "geometric",
    "optimize",
    "rounded_up",
    "stops",
]

import_when_asked(
    __name__,
    {
        "OperatingPoints": "points",
        "THRESHOLD_METHODS": "tuning",
        "exits_taken": "taken",
        "geometric": "geometric",
        "optimize": "optimized",
        "rounded_up": "rule",
        "stops": "rule",
    },
)
