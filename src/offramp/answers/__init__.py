"""What does the network say if it stops here?"""

from offramp.answers.answer import Answer
from offramp.answers.crossfit import crossfit_answers, crossfit_chunks
from offramp.answers.current import CurrentExit
from offramp.answers.ensembles import GeometricEnsemble, ProductOfExperts
from offramp.answers.scaling import MatrixScaling, TemperatureScaling, VectorScaling

__all__ = [
    "Answer",
    "CurrentExit",
    "GeometricEnsemble",
    "MatrixScaling",
    "ProductOfExperts",
    "TemperatureScaling",
    "VectorScaling",
    "crossfit_answers",
    "crossfit_chunks",
]
