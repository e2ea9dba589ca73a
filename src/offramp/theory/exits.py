"""Exits: an early-exit network in a finite world, as predictors with their groupings."""

from dataclasses import dataclass

import numpy as np

from offramp.errors import WorldError
from offramp.theory.groupings import Grouping
from offramp.theory.predictors import calibrated
from offramp.theory.worlds import Array, World, as_numbers, check_probabilities

__all__ = ["Exits"]


@dataclass(frozen=True, eq=False)
class Exits:
    """A world, and what each of M exits says at each of its points.

    Args:
        world: N points, K classes; leading dimensions are worlds side by side.
        grouping: Labels `[..., M, N]`: what each exit is calibrated with respect to.
        predictors: `[..., M, N, K]`.

    Raises:
        WorldError: The shapes do not fit together.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> Exits.calibrated(world, [[0, 0], [0, 1]]).predictors[0]
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """

    world: World
    grouping: Grouping
    predictors: Array

    def __post_init__(self) -> None:
        predictors = as_numbers(self.predictors)
        object.__setattr__(self, "predictors", predictors)
        table = self.world.p_y_given_x.shape
        exits = predictors.shape[-3] if predictors.ndim == len(table) + 1 else 0
        wanted = (*table[:-2], exits, *table[-2:])
        if predictors.shape != wanted or self.grouping.labels.shape != wanted[:-1]:
            points, classes = table[-2:]
            raise WorldError(
                f"exits of this world need a grouping with labels [M, {points}] and predictors "
                f"[M, {points}, {classes}], got {list(self.grouping.labels.shape)} and "
                f"{list(predictors.shape)}"
            )
        check_probabilities("predictors", predictors)

    @classmethod
    def calibrated(cls, world: World, labels: object) -> "Exits":
        """Exits that are calibrated, by the paper's Definition 1, with respect to groupings.

        Args:
            world: N points, K classes.
            labels: `[M, N]`, the groups of each exit.
        """
        grouping = Grouping(np.asarray(labels))
        return cls(world, grouping, calibrated(world.per_exit(), grouping))

    @property
    def num_exits(self) -> int:
        """M."""
        return int(self.predictors.shape[-3])

    @property
    def is_chain(self) -> Array:
        """Whether every exit's grouping refines the one before: bool `[...]`."""
        labels = self.grouping.labels
        later, earlier = Grouping(labels[..., 1:, :]), Grouping(labels[..., :-1, :])
        return np.asarray(np.asarray(later.refines(earlier)).all(-1))

    def take(self, index: int) -> "Exits":
        """One of several worlds side by side."""
        world = World(self.world.p_x[index], self.world.p_y_given_x[index])
        return Exits(world, Grouping(self.grouping.labels[index]), self.predictors[index])
