"""Small finite worlds in which the paper's statements are computed exactly.

A `World` is a table of P(x) and P(y|x), a `Grouping` says which points an exit cannot distinguish,
and `Exits` are an early-exit network in that world. Each of the `statements` is a function that
returns a `Relation` of two sides; `check_all` tries them on random worlds and finds the smallest
world where one fails.
"""

from offramp_paper.theory import statements
from offramp_paper.theory.calibration import (
    Exits,
    calibrated,
    calibration_violation,
    confidence_calibrated,
    is_calibrated,
    mean_calibrated,
)
from offramp_paper.theory.check import ClaimResult, check, check_all, claims_table, search, shrink
from offramp_paper.theory.claims import CLAIMS, STATEMENTS, Claim
from offramp_paper.theory.counterexamples import (
    calibrated_but_worse,
    frontier,
    growing_excess_risk,
)
from offramp_paper.theory.generate import Setting, random_exits
from offramp_paper.theory.risks import (
    bayes_risk,
    conditional_risk,
    entropy,
    excess_risk,
    mutual_information,
    stopping_probability,
)
from offramp_paper.theory.statements import Relation
from offramp_paper.theory.trained_network import compare_with_truth
from offramp_paper.theory.worlds import Grouping, World, group_mean

__all__ = [
    "CLAIMS",
    "STATEMENTS",
    "Claim",
    "ClaimResult",
    "Exits",
    "Grouping",
    "Relation",
    "Setting",
    "World",
    "bayes_risk",
    "calibrated",
    "calibrated_but_worse",
    "calibration_violation",
    "check",
    "check_all",
    "claims_table",
    "compare_with_truth",
    "conditional_risk",
    "confidence_calibrated",
    "entropy",
    "excess_risk",
    "frontier",
    "group_mean",
    "growing_excess_risk",
    "is_calibrated",
    "mean_calibrated",
    "mutual_information",
    "random_exits",
    "search",
    "shrink",
    "statements",
    "stopping_probability",
]
