"""Is it time to stop?"""

from offramp.scorers.confidence import Entropy, Margin, MaxProbability
from offramp.scorers.corrector import Corrector
from offramp.scorers.patience import Patience
from offramp.scorers.scorer import History, Scorer

__all__ = ["Corrector", "Entropy", "History", "Margin", "MaxProbability", "Patience", "Scorer"]
