"""Decide, input by input, when a model has computed enough.

Decisions: a `Ledger` holds the outputs of every exit. `auto` chooses a `Policy` for a budget, or a
`Policy` of a scorer and an answer is fitted on held_out and tuned on val. `evaluate` measures it
on test, `compare` does so for many methods, `advise` says whether stopping early is worth it, and
`certify` gives a `Guarantee`.

Models: `attach` puts exits on a backbone and `build` makes the paper's networks; `data.load` gives
the splits, `train` trains, and `record` makes ledgers. `Runner`, `OnnxRunner` and `Cascade` run
policies, `trees` does so for boosted trees, `profile` takes times and `export` writes ONNX.
`zoo` has a trained network, `synthetic` made-up ledgers, `testing` checks for scorers, answers and
threshold methods of your own, and `made` does each step of a script once.
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
