"""The choice of a policy without touching test, and a verdict in words."""

from offramp.advice.choice import CANDIDATES, Plan, auto
from offramp.advice.contest import AUTO, Auto, contestants
from offramp.advice.verdict import Advice, advise

__all__ = ["AUTO", "CANDIDATES", "Advice", "Auto", "Plan", "advise", "auto", "contestants"]
