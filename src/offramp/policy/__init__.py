"""Policy = answer + scorer + operating points."""

from offramp.policy.policy import Policy
from offramp.policy.saved import Provenance
from offramp.policy.uses import SplitUse

__all__ = ["Policy", "Provenance", "SplitUse"]
