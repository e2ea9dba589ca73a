"""A policy at work: samples really leave the batch as soon as they have their answer."""

from offramp.runtime.cascade import Cascade
from offramp.runtime.cascade_run import CascadeAnswer
from offramp.runtime.members import Member, Said
from offramp.runtime.operating_point import near_threshold
from offramp.runtime.output import RunOutput
from offramp.runtime.runner import Runner
from offramp.runtime.stats import HeldBudget, RunStats

__all__ = [
    "Cascade",
    "CascadeAnswer",
    "HeldBudget",
    "Member",
    "RunOutput",
    "RunStats",
    "Runner",
    "Said",
    "near_threshold",
]
