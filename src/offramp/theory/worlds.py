"""World: a table of P(x) and P(y|x), small enough that every expectation is a finite sum."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import WorldError

__all__ = ["Array", "World", "as_floats", "as_numbers", "is_rational", "modal_class"]

Array = npt.NDArray[Any]
"""float64, or objects that are all `fractions.Fraction`."""

DIGITS = 12  # floats that agree to so many decimals are taken for equal

_fraction: Callable[[Any], Any] = np.frompyfunc(Fraction, 1, 1)


def as_numbers(values: Any) -> Array:  # noqa: ANN401 - anything that numpy makes an array of
    """An array of float64; of `Fraction` if any of the values is one.

    Example:
        >>> as_numbers([1, 2]).dtype.name
        'float64'
        >>> as_numbers([Fraction(1, 3), 1])
        array([Fraction(1, 3), Fraction(1, 1)], dtype=object)
    """
    array = np.asarray(values)
    if array.dtype != object:
        return array.astype(np.float64)
    result: Array = np.asarray(_fraction(array), dtype=object)
    return result


def is_rational(array: Array) -> bool:
    """Whether the numbers are exact."""
    return array.dtype == object


def as_floats(array: Array) -> npt.NDArray[np.float64]:
    """The numbers as float64; logarithms have no exact form."""
    return array.astype(np.float64)


def modal_class(predictor: Array) -> npt.NDArray[np.intp]:
    """The most probable class at every point, the first of several: `[..., N]`.

    Floats that differ by rounding only count as equal, so that rational and float worlds agree.

    Example:
        >>> modal_class(np.array([[0.2, 0.4, 0.4 + 1e-16]]))
        array([1])
    """
    rounded = predictor if is_rational(predictor) else predictor.round(DIGITS)
    result: npt.NDArray[np.intp] = rounded.argmax(-1)
    return result


@dataclass(frozen=True, eq=False, init=False)
class World:
    """Everything there is to know: how likely every point is, and every class at that point.

    Leading dimensions are worlds of the same size side by side; most users have none. With
    `fractions.Fraction` in place of floats, all that needs no logarithm is computed exactly.

    Args:
        p_x: `[..., N]`, positive, sums to one.
        p_y_given_x: `[..., N, K]`, every row sums to one.

    Raises:
        WorldError: The arrays are no probabilities.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> world.num_points, world.num_classes, world.p_y
        (2, 2, array([0.75, 0.25]))
        >>> half = Fraction(1, 2)
        >>> World([half, half], [[1, 0], [half, half]]).p_y
        array([Fraction(3, 4), Fraction(1, 4)], dtype=object)
    """

    p_x: Array
    p_y_given_x: Array

    def __init__(self, p_x: Any, p_y_given_x: Any) -> None:  # noqa: ANN401 - nested lists too
        points, table = as_numbers(p_x), as_numbers(p_y_given_x)
        if is_rational(points) != is_rational(table):
            # One Fraction makes the whole world rational; floats are rational numbers too.
            points, table = as_numbers(points.astype(object)), as_numbers(table.astype(object))
        object.__setattr__(self, "p_x", points)
        object.__setattr__(self, "p_y_given_x", table)
        if self.p_y_given_x.ndim < 2 or self.p_x.shape != self.p_y_given_x.shape[:-1]:
            raise WorldError(
                "`p_x` must have the shape [N] and `p_y_given_x` [N, K], got "
                f"{list(self.p_x.shape)} and {list(self.p_y_given_x.shape)}"
            )
        if not (self.p_x > 0).all():
            raise WorldError(
                f"`p_x` must be above 0 everywhere, got {self.p_x.min()}: leave out points that "
                "never occur"
            )
        check_probabilities("p_x", self.p_x)
        check_probabilities("p_y_given_x", self.p_y_given_x)

    @property
    def num_points(self) -> int:
        """N."""
        return int(self.p_x.shape[-1])

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.p_y_given_x.shape[-1])

    @property
    def p_y(self) -> Array:
        """How likely every class is, `[..., K]`."""
        return self.mean(self.p_y_given_x)

    def mean(self, values: Array) -> Array:
        """The expectation over x of values `[..., N]`, or of values `[..., N, K]`."""
        p_x = self.p_x if is_rational(values) else as_floats(self.p_x)
        if values.ndim == p_x.ndim:
            total: Array = (p_x * values).sum(-1)
        else:
            total = (p_x[..., None] * values).sum(-2)
        return total

    def per_exit(self) -> "World":
        """The same world with a dimension for exits before the points: `[..., 1, N]`."""
        return World(self.p_x[..., None, :], self.p_y_given_x[..., None, :, :])


def check_probabilities(name: str, probs: Array) -> None:
    """Raise unless the last dimension holds probabilities."""
    if probs.size == 0 or not (probs >= 0).all():  # not "any below": NaN must not pass
        least = probs.min() if probs.size else "nothing"
        raise WorldError(f"`{name}` must hold probabilities, at least 0, got {least}")
    sums = np.asarray(probs.sum(-1))
    wrong = np.asarray(sums != 1 if is_rational(probs) else abs(sums - 1) > 1e-9)
    if wrong.any():
        raise WorldError(f"`{name}` must sum to 1, got {np.extract(wrong, sums)[0]}")
