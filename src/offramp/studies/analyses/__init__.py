"""Analyses of a study beyond its comparisons: functions that return a section of the report."""

from collections.abc import Callable, Sequence

from offramp.report import Section
from offramp.studies.analyses.corrector_cost import corrector_cost
from offramp.studies.analyses.domain_shift import domain_shift
from offramp.studies.analyses.futile_sample import futile_sample
from offramp.studies.analyses.method_gains import method_gains
from offramp.studies.analyses.metric_validity import metric_validity
from offramp.studies.results import ExperimentResult

__all__ = ["ANALYSES", "Analysis"]

Analysis = Callable[[Sequence[ExperimentResult]], Section]

ANALYSES: dict[str, Analysis] = {
    "metric-validity": metric_validity,
    "domain-shift": domain_shift,
    "corrector-cost": corrector_cost,
    "futile-sample": futile_sample,
    "gains": method_gains,
}
