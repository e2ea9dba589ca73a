"""Policy = answer + scorer + operating points."""

from offramp.policy.policy import Policy, operating_points
from offramp.policy.saved import Provenance
from offramp.policy.uses import SplitUse

__all__ = ["Policy", "Provenance", "SplitUse", "operating_points"]
