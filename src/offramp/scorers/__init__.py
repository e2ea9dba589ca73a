"""Is it time to stop?"""

from offramp.scorers.confidence import Entropy, Margin, MaxProbability
from offramp.scorers.corrector import Corrector
from offramp.scorers.forecast import Forecast
from offramp.scorers.gates import Gates
from offramp.scorers.patience import Patience
from offramp.scorers.performance import PerformanceControl
from offramp.scorers.scorer import History, Scorer
from offramp.scorers.utility import ExitUtility
from offramp.scorers.value import ValueOfContinuing

__all__ = [
    "Corrector",
    "Entropy",
    "ExitUtility",
    "Forecast",
    "Gates",
    "History",
    "Margin",
    "MaxProbability",
    "Patience",
    "PerformanceControl",
    "Scorer",
    "ValueOfContinuing",
]
