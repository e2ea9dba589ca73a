"""Is it time to stop?"""

from offramp.ledger import AnswerHistory, History
from offramp.scorers.base import Scorer
from offramp.scorers.break_even import BreakEven
from offramp.scorers.calibrated import CalibratedConfidence
from offramp.scorers.certainty import Entropy, Margin, MaxProbability, Patience
from offramp.scorers.corrector import Corrector
from offramp.scorers.logistic import LogisticCorrector
from offramp.scorers.settled import Settled

__all__ = [
    "AnswerHistory",
    "BreakEven",
    "CalibratedConfidence",
    "Corrector",
    "Entropy",
    "History",
    "LogisticCorrector",
    "Margin",
    "MaxProbability",
    "Patience",
    "Scorer",
    "Settled",
]
