"""The choice of a policy without touching test, and a verdict in words."""

from offramp.advice.advise import Advice, advise
from offramp.advice.auto import AUTO, CANDIDATES, Auto, Plan, auto, contestants

__all__ = ["AUTO", "CANDIDATES", "Advice", "Auto", "Plan", "advise", "auto", "contestants"]
