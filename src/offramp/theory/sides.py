"""Sides: the two sides of a statement in a finite world, and how far it is from being true."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from offramp.theory.worlds import Array, as_floats

__all__ = ["TOLERANCE", "Sides"]

TOLERANCE = 1e-9
Relation = Literal["==", "<=", "<", "!="]


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of a statement, at all the places where it is made.

    Args:
        left: `[..., n]`: n places per world.
        right: `[..., n]`.
        relation: `==`, `<=` and `<` at every place; `!=` at one place at least.

    Example:
        >>> sides = Sides(np.array([0.5, 0.25]), np.array([0.5, 0.125]), "<=")
        >>> float(sides.deviation), bool(sides.holds)
        (0.125, False)
    """

    left: Array
    right: Array
    relation: Relation

    @property
    def gap(self) -> npt.NDArray[np.float64]:
        """How much the left side is above the right one, `[..., n]`."""
        with np.errstate(invalid="ignore"):
            # Subtracted before they become floats: Fractions then lose nothing.
            return as_floats(np.asarray(self.left - self.right))

    @property
    def deviation(self) -> npt.NDArray[np.float64]:
        """How wrong the statement is, `[...]`; 1 or 0 for `<` and `!=`, which have no size."""
        gap = self.gap
        if self.relation == "==":
            return np.asarray(abs(gap).max(-1))
        if self.relation == "<=":
            return np.asarray(np.maximum(gap, 0).max(-1))
        if self.relation == "<":
            return np.asarray((gap >= -TOLERANCE).any(-1), dtype=np.float64)
        return np.asarray((abs(gap) <= TOLERANCE).all(-1), dtype=np.float64)

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Whether the statement is true to 1e-9, bool `[...]`."""
        return np.asarray(self.deviation <= TOLERANCE)

    @property
    def worst(self) -> int:
        """The place, of a single world, where the statement is most wrong."""
        gap = self.gap
        return int((abs(gap) if self.relation == "==" else gap).argmax())
