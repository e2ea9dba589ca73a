"""Early-exit neural networks: decide when to stop, for a compute budget.

Networks: `attach` puts exits on any backbone, `build` makes the paper's; `count_macs` says what
each exit costs; `data.load` gives the four splits, `train` trains, `record` makes a ledger.

Decisions: a `Ledger` of per-exit logits -> `Policy(scorer, answer)`, fitted on held_out and tuned
on val -> `evaluate` on test. `compare` does it for many methods. `Runner` puts a policy to work.
`trees` does all this for boosted trees.
`made` knows what a script has made before, and `testing` checks answers, scorers and threshold
methods of your own.
"""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp import (
        answers,
        data,
        evaluation,
        made,
        metrics,
        networks,
        runtime,
        scorers,
        synthetic,
        targets,
        testing,
        thresholds,
        training,
        trees,
        zoo,
    )
    from offramp.advice.advise import advise
    from offramp.advice.auto import auto
    from offramp.answers import Answer, TemperatureScaling
    from offramp.costs import Costs
    from offramp.errors import OfframpError
    from offramp.evaluation.compare import compare
    from offramp.evaluation.outcome import evaluate
    from offramp.guarantees import Guarantee, certify
    from offramp.ledger import Ledger
    from offramp.methods import Method
    from offramp.networks import attach, build
    from offramp.onnx import OnnxRunner, export
    from offramp.policy import Policy
    from offramp.record import record
    from offramp.runtime import Cascade, Runner
    from offramp.scorers import Corrector, MaxProbability, Scorer
    from offramp.speed_up import quick
    from offramp.timing.profile import profile
    from offramp.training.config import TrainConfig
    from offramp.training.train import train

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Cascade",
    "Corrector",
    "Costs",
    "Guarantee",
    "Ledger",
    "MaxProbability",
    "Method",
    "OfframpError",
    "OnnxRunner",
    "Policy",
    "Runner",
    "Scorer",
    "TemperatureScaling",
    "TrainConfig",
    "advise",
    "answers",
    "attach",
    "auto",
    "build",
    "certify",
    "compare",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "made",
    "metrics",
    "networks",
    "profile",
    "quick",
    "record",
    "runtime",
    "scorers",
    "synthetic",
    "targets",
    "testing",
    "thresholds",
    "train",
    "training",
    "trees",
    "zoo",
]

import_when_asked(__name__)
