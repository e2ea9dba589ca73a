"""A policy at work: samples that really leave a batch when they have their answer."""

from offramp.runtime.output import RunOutput
from offramp.runtime.routes import Plan, judge, near_threshold
from offramp.runtime.runner import Runner
from offramp.runtime.speed import Speed, measure_speed
from offramp.runtime.stats import RunStats

__all__ = [
    "Plan",
    "RunOutput",
    "RunStats",
    "Runner",
    "Speed",
    "judge",
    "measure_speed",
    "near_threshold",
]
