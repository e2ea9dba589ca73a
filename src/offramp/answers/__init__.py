"""What does the network say if it stops here?"""

from offramp.answers.base import Answer, CurrentExit, crossfit_answers, crossfit_chunks
from offramp.answers.ensembles import (
    ClassWiseEnsemble,
    GeometricEnsemble,
    MajorityVote,
    ProductOfExperts,
)
from offramp.answers.scaling import MatrixScaling, TemperatureScaling, VectorScaling

__all__ = [
    "Answer",
    "ClassWiseEnsemble",
    "CurrentExit",
    "GeometricEnsemble",
    "MajorityVote",
    "MatrixScaling",
    "ProductOfExperts",
    "TemperatureScaling",
    "VectorScaling",
    "crossfit_answers",
    "crossfit_chunks",
]
