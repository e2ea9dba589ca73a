"""Finite worlds: tables of P(x) and P(y|x), so small that every expectation is a finite sum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError, OfframpError

Array = npt.NDArray[Any]
"""float64, or objects that are all `fractions.Fraction`."""

DIGITS = 12  # floats that agree to this many decimals count as equal

_fraction: Callable[[Any], Any] = np.frompyfunc(Fraction, 1, 1)


class WorldError(OfframpError, ValueError):
    """Tables of a finite world that are no probabilities, or do not fit together."""


def as_numbers(values: Any) -> Array:  # noqa: ANN401 - anything that numpy makes an array of
    """The values as float64, or as `Fraction` if any of them is one."""
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
    """The most probable class at every point, the first one in case of a tie: `[..., N]`.

    Floats that differ only by rounding count as equal, so rational and float worlds agree.
    """
    rounded = predictor if is_rational(predictor) else predictor.round(DIGITS)
    result: npt.NDArray[np.intp] = rounded.argmax(-1)
    return result


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Raise unless the value of a parameter is one of the known ones."""
    if value not in known:
        raise ConfigError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")


def check_probabilities(name: str, probs: Array) -> None:
    """Raise unless the last dimension holds probabilities that sum to one."""
    if probs.size == 0 or not (probs >= 0).all():  # not "any below": NaN must not pass
        least = probs.min() if probs.size else "nothing"
        raise WorldError(f"`{name}` must hold probabilities of at least 0, got {least}")
    sums = np.asarray(probs.sum(-1))
    wrong = np.asarray(sums != 1 if is_rational(probs) else abs(sums - 1) > 1e-9)
    if wrong.any():
        total = np.extract(wrong, sums)[0]
        close = is_rational(probs) and abs(total - 1) < 1e-9
        hint = ": among Fractions, 0.1 is not 1/10; write Fraction(1, 10)" if close else ""
        raise WorldError(f"`{name}` must sum to 1, got {total}{hint}")


@dataclass(init=False, eq=False)
class World:
    """A finite world: the probability of every point, and of every class at each point.

    Leading dimensions hold several worlds of the same size; most users have none. With
    `fractions.Fraction` instead of floats, everything that needs no logarithm is exact.

    Args:
        p_x: `[..., N]`, positive, sums to one.
        p_y_given_x: `[..., N, K]`, every row sums to one.

    Raises:
        WorldError: The arrays are not probabilities.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> world.num_points, world.num_classes, world.mean(world.p_y_given_x)
        (2, 2, array([0.75, 0.25]))
        >>> half = Fraction(1, 2)
        >>> exact = World([half, half], [[1, 0], [half, half]])
        >>> exact.mean(exact.p_y_given_x)
        array([Fraction(3, 4), Fraction(1, 4)], dtype=object)
    """

    p_x: Array
    p_y_given_x: Array

    def __init__(self, p_x: Any, p_y_given_x: Any) -> None:  # noqa: ANN401 - nested lists too
        points, table = as_numbers(p_x), as_numbers(p_y_given_x)
        if is_rational(points) != is_rational(table):
            # One Fraction makes the whole world rational; floats are rational numbers too.
            points, table = as_numbers(points.astype(object)), as_numbers(table.astype(object))
        if table.ndim < 2 or points.shape != table.shape[:-1]:
            raise WorldError(
                "`p_x` must have shape [N] and `p_y_given_x` shape [N, K], got "
                f"{list(points.shape)} and {list(table.shape)}"
            )
        if not (points > 0).all():
            raise WorldError(
                f"`p_x` must be positive everywhere, got {points.min()}: leave out points that "
                "never occur"
            )
        check_probabilities("p_x", points)
        check_probabilities("p_y_given_x", table)
        self.p_x, self.p_y_given_x = points, table

    @property
    def num_points(self) -> int:
        """N."""
        return int(self.p_x.shape[-1])

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.p_y_given_x.shape[-1])

    def mean(self, values: Array) -> Array:
        """The expectation over x of values `[..., N]` or `[..., N, K]`.

        For values of several exits, `[M, N]`, use `per_exit().mean`.

        Raises:
            WorldError: The values do not have N points.
        """
        p_x = self.p_x if is_rational(values) else as_floats(self.p_x)
        axis = -1 if values.ndim == p_x.ndim else -2
        if values.ndim < -axis or values.shape[axis] != self.num_points:
            raise WorldError(
                f"`values` must have shape [{self.num_points}] or [{self.num_points}, K], got "
                f"{list(values.shape)}; for values of every exit, use world.per_exit().mean"
            )
        weights = p_x if axis == -1 else p_x[..., None]
        total: Array = (weights * values).sum(axis)
        return total

    def per_exit(self) -> "World":
        """The same world with a dimension for exits before the points: `[..., 1, N]`."""
        return World(self.p_x[..., None, :], self.p_y_given_x[..., None, :, :])


@dataclass(init=False, eq=False)
class Grouping:
    """A partition of the points into groups.

    Leading dimensions of `labels` hold the partitions of several worlds or exits.

    Args:
        labels: `[..., N]` integers; points with the same label are in the same group.

    Raises:
        WorldError: The labels are not integers of at least 0.

    Example:
        >>> coarse, fine = Grouping([0, 0, 1]), Grouping([0, 1, 2])
        >>> fine.refines(coarse), coarse.refines(fine)
        (True, False)
        >>> print(coarse, "and", coarse.join(Grouping([0, 1, 1])))
        {0,1}{2} and {0}{1}{2}
    """

    labels: npt.NDArray[np.int64]

    def __init__(self, labels: Any) -> None:  # noqa: ANN401 - nested lists too
        try:
            array: npt.NDArray[Any] = np.asarray(labels)
        except ValueError:
            raise WorldError(
                f"`labels` must have the same length at every exit, got {labels!r}"
            ) from None
        if array.ndim < 1 or array.dtype.kind not in "iu" or (array < 0).any():
            raise WorldError(
                f"`labels` must be the group of each point, integers of at least 0, got {labels!r}"
            )
        self.labels = array.astype(np.int64)

    @classmethod
    def levels(cls, predictor: Array) -> "Grouping":
        """Points with the same largest probability: the grouping of confidence calibration.

        Args:
            predictor: `[..., N, K]`; floats are equal if they agree to twelve decimals.
        """
        top = predictor.max(-1)
        top = top if is_rational(top) else top.round(DIGITS)
        same = top[..., :, None] == top[..., None, :]
        return cls(same.astype(bool).argmax(-1))  # the first point of the group gives the label

    @property
    def same(self) -> npt.NDArray[np.bool_]:
        """`[..., N, N]`: whether two points are in the same group."""
        result: npt.NDArray[np.bool_] = self.labels[..., :, None] == self.labels[..., None, :]
        return result

    @property
    def groups(self) -> list[list[int]]:
        """The groups of a single partition, as lists of points in order of appearance."""
        if self.labels.ndim > 1:
            raise WorldError(
                "groups are those of a single partition, with labels [N], got "
                f"{list(self.labels.shape)}: select one with `exit`"
            )
        found: dict[int, list[int]] = {}
        for point, label in enumerate(self.labels.tolist()):
            found.setdefault(label, []).append(point)
        return list(found.values())

    def refines(self, other: "Grouping") -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether points that are together in this grouping are together in the other one too.

        In the paper's notation, other ⪯ self. A bool; with leading dimensions an array `[...]`.
        """
        self._check_partner(other)
        result = (~self.same | other.same).all((-2, -1))
        return bool(result) if result.ndim == 0 else result

    def join(self, other: "Grouping") -> "Grouping":
        """The coarsest grouping that refines both."""
        self._check_partner(other)
        both = self.same & other.same
        return Grouping(both.argmax(-1))

    def exit(self, exit_index: int) -> "Grouping":
        """One exit's grouping, out of labels `[..., M, N]`."""
        return Grouping(self.labels[..., exit_index, :])

    def __eq__(self, other: object) -> bool:
        """Whether the partitions are the same, whatever the labels."""
        return isinstance(other, Grouping) and np.array_equal(self.same, other.same)

    def __hash__(self) -> int:
        return hash(self.same.tobytes())

    def __str__(self) -> str:
        return "".join("{" + ",".join(map(str, group)) + "}" for group in self.groups)

    def _check_partner(self, other: "Grouping") -> None:
        mine, theirs = self.labels.shape[-1], other.labels.shape[-1]
        if mine != theirs:
            raise WorldError(f"both groupings must have the same points, got {mine} and {theirs}")


def group_mean(p_x: Array, grouping: Grouping, values: Array) -> Array:
    """The mean over each point's group, given at every point.

    Args:
        p_x: `[..., N]`.
        grouping: With labels `[..., N]`.
        values: `[..., N]` or `[..., N, K]`.

    Returns:
        The shape of `values`, broadcast against the leading dimensions.

    Raises:
        WorldError: The grouping has another number of points.

    Example:
        >>> group_mean(np.array([0.5, 0.25, 0.25]), Grouping([0, 1, 1]), np.array([1.0, 2.0, 4.0]))
        array([1., 3., 3.])
    """
    mine, theirs = p_x.shape[-1], grouping.labels.shape[-1]
    if mine != theirs:
        raise WorldError(f"the grouping must have the world's {mine} points, got {theirs}")
    if not is_rational(values):
        p_x = as_floats(p_x)
    weights = grouping.same * p_x[..., None, :]  # [..., N, N]
    weights = weights / weights.sum(-1, keepdims=True)
    if values.ndim == p_x.ndim:
        return _weighted(weights, values[..., None])[..., 0]
    return _weighted(weights, values)


def _weighted(weights: Array, values: Array) -> Array:
    """A matrix product in which an infinite value counts in its own group only."""
    if is_rational(values) or np.isfinite(values).all():
        product: Array = np.matmul(weights, values)
        return product
    finite = np.matmul(weights, np.where(np.isinf(values), 0, values))
    touched = np.matmul((weights > 0).astype(float), np.isinf(values).astype(float)) > 0
    result: Array = np.where(touched, np.inf, finite)
    return result
