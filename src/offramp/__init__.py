"""Early-exit neural networks: decide when to stop, for a compute budget.

Networks: `attach` puts exits on any backbone, `build` makes the paper's; `count_macs` says what
each exit costs; `data.load` gives the four splits, `train` trains, `record` makes a ledger.

Decisions: a `Ledger` of per-exit logits -> `Policy(scorer, answer)`, fitted on held_out and tuned
on val -> `evaluate` on test. `compare` does it for many methods, and `run` does a whole study,
from data to a report. `Runner` puts a policy to work. `testing` checks answers, scorers and
threshold methods of your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offramp import (
    answers,
    data,
    evaluation,
    metrics,
    networks,
    runtime,
    scorers,
    synthetic,
    targets,
    thresholds,
    training,
    zoo,
)
from offramp.advice import advise, auto
from offramp.answers import Answer, TemperatureScaling
from offramp.costs import Costs
from offramp.errors import OfframpError
from offramp.evaluation import compare, evaluate
from offramp.guarantees import Guarantee, certify
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.networks import attach, build
from offramp.onnx import OnnxRunner, export
from offramp.policy import Policy
from offramp.profile import profile
from offramp.record import record
from offramp.runtime import Runner
from offramp.scorers import Corrector, MaxProbability, Scorer
from offramp.training import TrainConfig, train

if TYPE_CHECKING:
    from offramp import studies, testing, theory
    from offramp.studies import run

__version__ = "0.1.0"

__all__ = [
    "Answer",
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
    "metrics",
    "networks",
    "profile",
    "record",
    "run",
    "runtime",
    "scorers",
    "studies",
    "synthetic",
    "targets",
    "testing",
    "theory",
    "thresholds",
    "train",
    "training",
    "zoo",
]

# Imported when they are first asked for: few programs need them, and they double the time.
_LAZY = {"run": "studies", "studies": "studies", "testing": "testing", "theory": "theory"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _LAZY:
        raise AttributeError(f"module 'offramp' has no attribute {name!r}")
    module = import_module(f"offramp.{_LAZY[name]}")
    found = module if name == _LAZY[name] else getattr(module, name)
    globals()[name] = found
    return found
