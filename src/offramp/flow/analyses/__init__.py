"""Results of studies beyond a comparison: small functions of cases that return findings."""

from collections.abc import Callable, Sequence

from offramp.flow.analyses.corrector_cost import corrector_cost
from offramp.flow.analyses.domain_shift import domain_shift
from offramp.flow.analyses.futile_sample import futile_sample
from offramp.flow.analyses.gains import gains
from offramp.flow.analyses.metric_validity import metric_validity
from offramp.flow.case import CaseResult
from offramp.flow.findings import Findings

__all__ = ["ANALYSES", "Analysis"]

Analysis = Callable[[Sequence[CaseResult]], Findings]

ANALYSES: dict[str, Analysis] = {
    "metric-validity": metric_validity,
    "domain-shift": domain_shift,
    "corrector-cost": corrector_cost,
    "futile-sample": futile_sample,
    "gains": gains,
}
