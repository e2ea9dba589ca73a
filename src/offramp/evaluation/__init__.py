"""Policy x ledger -> outcomes, references, intervals, and the comparison of many methods."""

from offramp.evaluation.bootstrap import Interval, Resamples, auroc_shares
from offramp.evaluation.compare import compare
from offramp.evaluation.outcome import ExitMetrics, Outcome, evaluate
from offramp.evaluation.pairs import PairEnvelope, PairMix, pair_envelope
from offramp.evaluation.references import References, references
from offramp.evaluation.results import Comparison

__all__ = [
    "Comparison",
    "ExitMetrics",
    "Interval",
    "Outcome",
    "PairEnvelope",
    "PairMix",
    "References",
    "Resamples",
    "auroc_shares",
    "compare",
    "evaluate",
    "pair_envelope",
    "references",
]
