"""Training networks with exits: one loop, one small class per training method."""

from offramp.training.config import TrainConfig
from offramp.training.distillation import Distillation
from offramp.training.gradient_equilibrium import GradientEquilibrium
from offramp.training.history import TrainHistory
from offramp.training.joint import Joint
from offramp.training.objective import Objective, Phase, exit_losses
from offramp.training.train import OBJECTIVES, train
from offramp.training.zero_time_waste import LastExit, ZeroTimeWaste

__all__ = [
    "OBJECTIVES",
    "Distillation",
    "GradientEquilibrium",
    "Joint",
    "LastExit",
    "Objective",
    "Phase",
    "TrainConfig",
    "TrainHistory",
    "ZeroTimeWaste",
    "exit_losses",
    "train",
]
