"""A policy at work: samples really leave the batch as soon as they have their answer."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.runtime.cascade import Cascade
    from offramp.runtime.cascade_run import CascadeAnswer
    from offramp.runtime.hold_budget import HeldBudget
    from offramp.runtime.members import Member, Response
    from offramp.runtime.output import RunOutput
    from offramp.runtime.runner import Runner, near_threshold
    from offramp.runtime.stats import RunStats
    from offramp.runtime.thinking import StopThinking, Thought, answer_among, athink, think

__all__ = [
    "Cascade",
    "CascadeAnswer",
    "HeldBudget",
    "Member",
    "Response",
    "RunOutput",
    "RunStats",
    "Runner",
    "StopThinking",
    "Thought",
    "answer_among",
    "athink",
    "near_threshold",
    "think",
]

import_when_asked(__name__)
