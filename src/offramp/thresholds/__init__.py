"""Scores -> thresholds, for a budget or under a guarantee."""

from offramp.thresholds.geometric import geometric
from offramp.thresholds.optimized import optimize
from offramp.thresholds.points import THRESHOLD_METHODS, OperatingPoints
from offramp.thresholds.rule import exits_taken, rounded_up, stops

__all__ = [
    "THRESHOLD_METHODS",
    "OperatingPoints",
    "exits_taken",
    "geometric",
    "optimize",
    "rounded_up",
    "stops",
]
