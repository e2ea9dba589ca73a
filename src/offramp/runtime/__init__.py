"""A policy at work: samples that really leave a batch when they have their answer."""

from offramp.runtime.output import RunOutput
from offramp.runtime.plan import Plan, judge, near_threshold
from offramp.runtime.runner import Runner
from offramp.runtime.stats import RunStats

__all__ = ["Plan", "RunOutput", "RunStats", "Runner", "judge", "near_threshold"]
