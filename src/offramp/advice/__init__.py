"""The choice of a policy without touching test, and a verdict in words."""

from offramp.advice.advise import Advice, advise
from offramp.advice.auto import Auto, auto

__all__ = ["Advice", "Auto", "advise", "auto"]
