"""Methods of other papers, as plug-ins of offramp: `offramp compare --methods eenet,pcee`."""

from offramp import Corrector, Method
from offramp_paper.rivals.assigned import assigned_sweep
from offramp_paper.rivals.peers import ExitUtility, Gates, PerformanceControl
from offramp_paper.rivals.stacking import StackingNetwork

__all__ = [
    "BEYOND",
    "EEFP_STACKING",
    "EENET",
    "GATES",
    "PCEE",
    "STACKING",
    "ExitUtility",
    "Gates",
    "PerformanceControl",
    "StackingNetwork",
    "assigned_sweep",
]

PCEE = Method("pcee", "PCEE", PerformanceControl(), thresholds="shared")
EENET = Method("eenet", "EENet, post hoc", ExitUtility(), thresholds="assigned")
GATES = Method("gates", "JEI-DNN gates, post hoc", Gates())
STACKING = Method("stacking", "Stacking network", answer=StackingNetwork())
EEFP_STACKING = Method("eefp-stacking", "EEFP on stacking network", Corrector(), StackingNetwork())

_TWICE = (
    *("baseline", "temperature", "margin", "patience", "product", "ensemble", "class-ensemble"),
    *("stacking", "ccct", "eefp", "eefp-no-history", "eefp-ensemble", "eefp-stacking"),
    *("eefp-no-history-class-ensemble", "gates"),
)
BEYOND = (
    *("pcee", "eenet", "eenet:smooth", "eefp-logistic", "break-even"),
    *(f"{name}{thresholds}" for name in _TWICE for thresholds in ("", ":smooth")),
)
"""The group `beyond`: most methods with the paper's thresholds and with this library's."""
