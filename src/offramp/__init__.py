"""Early-exit neural networks: decide when to stop, for a compute budget.

Networks: `attach` puts exits on any backbone, `build` makes the paper's; `count_macs` says what
each exit costs; `data.load` gives the four splits, `train` trains, `record` makes a ledger.

Decisions: a `Ledger` of per-exit logits -> `Policy(scorer, answer)`, fitted on held_out and tuned
on val -> `evaluate` on test. `compare` does it for many methods, and `run` does a whole study,
from data to a report. `Runner` puts a policy to work. `testing` checks answers, scorers and
threshold methods of your own.
"""

from offramp import data, metrics, synthetic, targets, testing, theory, thresholds, zoo
from offramp.advice import Advice, Auto, Plan, advise, auto
from offramp.answers import (
    Answer,
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MatrixScaling,
    ProductOfExperts,
    StackingNetwork,
    TemperatureScaling,
    VectorScaling,
)
from offramp.costs import Costs
from offramp.errors import OfframpError
from offramp.evaluation import Comparison, Outcome, budget_curve, compare, evaluate
from offramp.guarantees import Certificate, Guarantee, certify
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.networks import (
    EarlyExitNetwork,
    Shared,
    attach,
    build,
    count_macs,
    take,
    time_exits,
)
from offramp.onnx import OnnxRunner, export
from offramp.policy import Policy
from offramp.record import record
from offramp.runtime import Runner, RunOutput
from offramp.scorers import (
    Corrector,
    Entropy,
    ExitUtility,
    Forecast,
    Gates,
    History,
    Margin,
    MaxProbability,
    Patience,
    PerformanceControl,
    Scorer,
    ValueOfContinuing,
)
from offramp.studies import run
from offramp.targets import stop_target
from offramp.training import TrainConfig, train

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Answer",
    "Auto",
    "Certificate",
    "ClassWiseEnsemble",
    "Comparison",
    "Corrector",
    "Costs",
    "CurrentExit",
    "EarlyExitNetwork",
    "Entropy",
    "ExitUtility",
    "Forecast",
    "Gates",
    "GeometricEnsemble",
    "Guarantee",
    "History",
    "Ledger",
    "Margin",
    "MatrixScaling",
    "MaxProbability",
    "Method",
    "OfframpError",
    "OnnxRunner",
    "Outcome",
    "Patience",
    "PerformanceControl",
    "Plan",
    "Policy",
    "ProductOfExperts",
    "RunOutput",
    "Runner",
    "Scorer",
    "Shared",
    "StackingNetwork",
    "TemperatureScaling",
    "TrainConfig",
    "ValueOfContinuing",
    "VectorScaling",
    "advise",
    "attach",
    "auto",
    "budget_curve",
    "build",
    "certify",
    "compare",
    "count_macs",
    "data",
    "evaluate",
    "export",
    "metrics",
    "record",
    "run",
    "stop_target",
    "synthetic",
    "take",
    "targets",
    "testing",
    "theory",
    "thresholds",
    "time_exits",
    "train",
    "zoo",
]
