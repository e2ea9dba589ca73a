"""What does the network say if it stops here?"""

from offramp.answers.answer import Answer
from offramp.answers.class_wise import ClassWiseEnsemble
from offramp.answers.crossfit import crossfit_answers, crossfit_chunks
from offramp.answers.current import CurrentExit
from offramp.answers.ensembles import GeometricEnsemble, ProductOfExperts
from offramp.answers.scaling import MatrixScaling, TemperatureScaling, VectorScaling
from offramp.answers.stacking import StackingNetwork

__all__ = [
    "Answer",
    "ClassWiseEnsemble",
    "CurrentExit",
    "GeometricEnsemble",
    "MatrixScaling",
    "ProductOfExperts",
    "StackingNetwork",
    "TemperatureScaling",
    "VectorScaling",
    "crossfit_answers",
    "crossfit_chunks",
]
