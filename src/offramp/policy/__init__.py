"""Policy = answer + scorer + operating points."""

from offramp.ledger.origin import SplitUse
from offramp.policy.policy import Policy
from offramp.policy.saved import Provenance

__all__ = ["Policy", "Provenance", "SplitUse"]
