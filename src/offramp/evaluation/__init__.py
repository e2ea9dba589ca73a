"""Policy x ledger -> outcomes, budget curves, and the comparison of many methods."""

from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.comparison import Comparison, compare
from offramp.evaluation.curve import Curve, budget_curve
from offramp.evaluation.outcome import Outcome, evaluate
from offramp.evaluation.references import References, references

__all__ = [
    "Comparison",
    "Curve",
    "Interval",
    "Outcome",
    "References",
    "budget_curve",
    "compare",
    "evaluate",
    "references",
]
