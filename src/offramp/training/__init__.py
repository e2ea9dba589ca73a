"""Training networks with exits: one loop, one small class per training method."""

from offramp.training.config import RECIPES, Recipe, TrainConfig
from offramp.training.history import TrainHistory
from offramp.training.objectives import (
    Distillation,
    GradientEquilibrium,
    Joint,
    LastExit,
    Objective,
    Phase,
    ZeroTimeWaste,
    exit_losses,
)
from offramp.training.teacher import Teacher
from offramp.training.train import OBJECTIVES, train

__all__ = [
    "OBJECTIVES",
    "RECIPES",
    "Distillation",
    "GradientEquilibrium",
    "Joint",
    "LastExit",
    "Objective",
    "Phase",
    "Recipe",
    "Teacher",
    "TrainConfig",
    "TrainHistory",
    "ZeroTimeWaste",
    "exit_losses",
    "train",
]
