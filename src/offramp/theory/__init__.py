"""Small finite worlds in which the paper's statements are computed exactly.

A `World` is a table of P(x) and P(y|x), a `Grouping` says which points an exit cannot tell apart,
and `Exits` are an early-exit network in that world. Each statement is a function that returns both
`Sides`; `check_all` tries them on random worlds and finds the smallest world where one fails.
"""

from offramp.theory.check import Verdict, check, check_all, search, shrink
from offramp.theory.claims import CLAIMS, STATEMENTS, Claim
from offramp.theory.counterexamples import (
    calibrated_but_worse,
    excess_stays_below_the_floor,
    growing_excess_risk,
    log_loss_is_unbounded,
    worsened,
)
from offramp.theory.exits import Exits, frontier, stopping_probability
from offramp.theory.generate import Setting, random_exits
from offramp.theory.predictors import (
    calibrated,
    calibration_violation,
    confidence_calibrated,
    is_calibrated,
    mean_calibrated,
)
from offramp.theory.risks import (
    bayes_risk,
    conditional_risk,
    entropy,
    excess_risk,
    group_entropy,
    group_excess_risk,
    mutual_information,
)
from offramp.theory.show import describe, describe_sides
from offramp.theory.statements import (
    Sides,
    anytime,
    anytime_at_every_point,
    anytime_needs_refinement,
    excess_risk_is_information,
    exits_are_identical,
    exits_differ,
    monotone_at_every_point,
    monotone_needs_refinement,
    monotone_stopping,
    product_at_least_joint,
    product_at_most_joint,
    refinement_reduces_excess_risk,
    strictly_anytime,
    swap_keeps_calibration,
    zero_one_risk_is_controlled,
)
from offramp.theory.worlds import Grouping, World, group_mean

__all__ = [
    "CLAIMS",
    "STATEMENTS",
    "Claim",
    "Exits",
    "Grouping",
    "Setting",
    "Sides",
    "Verdict",
    "World",
    "anytime",
    "anytime_at_every_point",
    "anytime_needs_refinement",
    "bayes_risk",
    "calibrated",
    "calibrated_but_worse",
    "calibration_violation",
    "check",
    "check_all",
    "conditional_risk",
    "confidence_calibrated",
    "describe",
    "describe_sides",
    "entropy",
    "excess_risk",
    "excess_risk_is_information",
    "excess_stays_below_the_floor",
    "exits_are_identical",
    "exits_differ",
    "frontier",
    "group_entropy",
    "group_excess_risk",
    "group_mean",
    "growing_excess_risk",
    "is_calibrated",
    "log_loss_is_unbounded",
    "mean_calibrated",
    "monotone_at_every_point",
    "monotone_needs_refinement",
    "monotone_stopping",
    "mutual_information",
    "product_at_least_joint",
    "product_at_most_joint",
    "random_exits",
    "refinement_reduces_excess_risk",
    "search",
    "shrink",
    "stopping_probability",
    "strictly_anytime",
    "swap_keeps_calibration",
    "worsened",
    "zero_one_risk_is_controlled",
]
