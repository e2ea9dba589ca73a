"""Results of studies beyond a comparison: small functions of cases that return findings."""

from collections.abc import Callable, Sequence

from offramp.studies.analyses.corrector_cost import corrector_cost
from offramp.studies.analyses.domain_shift import domain_shift
from offramp.studies.analyses.futile_sample import futile_sample
from offramp.studies.analyses.method_gains import gains
from offramp.studies.analyses.metric_validity import metric_validity
from offramp.studies.results import CaseResult, Findings

__all__ = ["ANALYSES", "Analysis"]

Analysis = Callable[[Sequence[CaseResult]], Findings]

ANALYSES: dict[str, Analysis] = {
    "metric-validity": metric_validity,
    "domain-shift": domain_shift,
    "corrector-cost": corrector_cost,
    "futile-sample": futile_sample,
    "gains": gains,
}
