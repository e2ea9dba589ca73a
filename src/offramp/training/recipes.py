"""Recipes: named sets of defaults for training."""

from dataclasses import dataclass, replace
from typing import Any

from offramp.errors import ConfigError
from offramp.training.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A set of defaults, which options of the command line override.

    Args:
        config: How to train.
        objective: Name of the objective.
        augment: Name of the augmentation, where the data are images.
    """

    config: TrainConfig
    objective: str = "joint"
    augment: str = "none"

    def config_with(self, **options: Any) -> TrainConfig:  # noqa: ANN401
        """The settings, replaced by the options that are not None.

        Example:
            >>> find_recipe("finetune").config_with(epochs=3, batch_size=None).epochs
            3
        """
        return replace(self.config, **{k: v for k, v in options.items() if v is not None})


RECIPES: dict[str, Recipe] = {
    "paper": Recipe(TrainConfig()),
    # Pretrained weights need few epochs, in one cycle, and a lower learning rate than new heads;
    # what these rates were better than on val is in docs/results/claims.md.
    # Distillation helps the early exits. With averaged weights no epoch has to be chosen, so no
    # data are held back.
    "finetune": Recipe(
        TrainConfig(
            epochs=12,
            batch_size=64,
            learning_rate=5e-4,
            head_rate=8.0,
            restart_epochs=1000.0,
            averaging=0.999,
            patience=None,
        ),
        objective="distillation",
        augment="light",
    ),
}


def find_recipe(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        ConfigError: There is none of that name.

    Example:
        >>> find_recipe("finetune").config.head_rate
        8.0
    """
    if name not in RECIPES:
        raise ConfigError(f"`recipe` must be one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]
