"""Training networks with exits: one loop, one small class per training method."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.training.checkpoint import TrainHistory
    from offramp.training.config import Recipe, TrainConfig
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
    from offramp.training.processes import Processes
    from offramp.training.teacher import Teacher
    from offramp.training.train import train

__all__ = [
    "Distillation",
    "GradientEquilibrium",
    "Joint",
    "LastExit",
    "Objective",
    "Phase",
    "Processes",
    "Recipe",
    "Teacher",
    "TrainConfig",
    "TrainHistory",
    "ZeroTimeWaste",
    "exit_losses",
    "train",
]

import_when_asked(__name__)
