"""Predictors that are calibrated, by three definitions, and how far any other is from it."""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError, WorldError
from offramp.theory.worlds import (
    Array,
    Grouping,
    World,
    as_numbers,
    check_probabilities,
    group_mean,
    is_rational,
    modal_class,
)

Definition = Literal["exact", "mean", "confidence"]
DEFINITIONS: tuple[Definition, ...] = get_args(Definition)


def calibrated(world: World, grouping: Grouping) -> Array:
    """The one calibrated predictor by the paper's Definition 2.1: f(x) = P(y | group of x).

    Returns:
        `[..., N, K]`.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> calibrated(world, Grouping([0, 0]))
        array([[0.75, 0.25],
               [0.75, 0.25]])
    """
    return group_mean(world.p_x, grouping, world.p_y_given_x)


def mean_calibrated(world: World, grouping: Grouping, noise: Array) -> Array:
    """A predictor that varies within its groups, and is right on average over each of them.

    Args:
        world: N points, K classes.
        grouping: Of the points.
        noise: `[..., N, K]`, rows that sum to one: how it varies. It is scaled down as far as
            is needed to keep away from zero.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> mean_calibrated(world, Grouping([0, 0]), np.array([[0.6, 0.4], [0.8, 0.2]]))
        array([[0.65, 0.35],
               [0.85, 0.15]])
    """
    centre = calibrated(world, grouping)
    away = noise - group_mean(world.p_x, grouping, noise)
    # How often `away` may be added until a probability is used up; only half of that is used.
    down = away < 0
    room = np.where(down, centre / np.where(down, -2 * away, 1), 1)
    least = np.minimum(room.min(-1), 1)  # [..., N]
    step = np.where(grouping.same, least[..., None, :], 1).min(-1)
    result: Array = centre + step[..., None] * away
    return result


def confidence_calibrated(
    world: World, grouping: Grouping, picks: npt.NDArray[np.intp], noise: Array
) -> Array:
    """A predictor whose largest probability is its accuracy over the group.

    Args:
        world: N points, K classes.
        grouping: Points that get the same largest probability.
        picks: `[..., N]`, the class answered at each point. Where a group's accuracy would be
            below 1/K, which no largest probability can be, the best classes are taken instead.
        noise: `[..., N, K]`, weights: how the rest is shared among the other classes, as far as
            none gets above the largest. One that is as large, and comes before it, takes its
            place: `calibration_violation` tells.

    Example:
        >>> world = World([1.0], [[0.5, 0.4, 0.1]])
        >>> uneven = np.array([[1.0, 1.0, 3.0]])
        >>> confidence_calibrated(world, Grouping([0]), np.array([1]), uneven).round(3)
        array([[0.2, 0.4, 0.4]])
    """
    classes = world.num_classes
    accuracy = _accuracy(world, grouping, picks)
    picks = np.where(accuracy * classes < 1, modal_class(world.p_y_given_x), picks)
    top = np.minimum(_accuracy(world, grouping, picks), 1)[..., None]  # [..., N, 1]
    chosen = picks[..., None] == np.arange(classes)
    others = np.where(chosen, 0, noise)
    others = as_numbers(np.where(others.sum(-1, keepdims=True) > 0, others, 1 - chosen))
    even = (1 - top) / (classes - 1)
    lean = (1 - top) * (others / others.sum(-1, keepdims=True)) - even
    up = ~chosen & (lean > 0)
    room = np.where(up, (top - even) / np.where(up, lean, 1), 1)
    step = np.minimum(room.min(-1), 1)[..., None]
    # Rounding may leave a hair less than nothing.
    result: Array = np.where(chosen, top, np.maximum(even + step * lean, 0))
    return result


def calibration_violation(
    world: World,
    predictor: Array,
    grouping: Grouping | None = None,
    definition: Definition = "exact",
) -> Any:  # noqa: ANN401 - a float or a Fraction, or an array of them
    """How far a predictor is from being calibrated: the largest difference at any point.

    Args:
        world: N points, K classes.
        predictor: `[..., N, K]`.
        grouping: Of the points; not for `confidence`, which groups by the predictor itself.
        definition: `exact`: f(x) = P(y | group), the paper's Definition 2.1. `mean`: the mean of f
            over the group is P(y | group). `confidence`: the largest probability is the accuracy
            over all points that share it.

    Returns:
        A number, 0 where it is calibrated; with leading dimensions an array `[...]`.

    Raises:
        ConfigError: An unknown definition, or one that does not go with the grouping.
        WorldError: The predictor is not one for this world.

    Example:
        >>> world = World([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
        >>> predictor = np.array([[0.75, 0.25], [0.25, 0.75]])
        >>> whole = Grouping.whole(2)
        >>> calibration_violation(world, predictor, whole, "exact")
        0.25
        >>> calibration_violation(world, predictor, whole, "mean")
        0.0
        >>> calibration_violation(world, predictor, definition="confidence")
        0.25
    """
    predictor = as_predictor(world, predictor)
    _check_definition(definition, grouping)
    if grouping is None:
        gap = predictor.max(-1) - _accuracy(
            world, Grouping.levels(predictor), modal_class(predictor)
        )
        return _plain(abs(gap).max(-1))
    said = group_mean(world.p_x, grouping, predictor) if definition == "mean" else predictor
    return _plain(abs(said - calibrated(world, grouping)).max((-2, -1)))


def is_calibrated(
    world: World,
    predictor: Array,
    grouping: Grouping | None = None,
    definition: Definition = "exact",
) -> Any:  # noqa: ANN401 - a bool, or an array of them
    """Whether the violation is zero: exactly in a rational world, to 1e-9 in floats.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> is_calibrated(world, world.p_y_given_x, Grouping.points(2))
        True
    """
    violation = calibration_violation(world, predictor, grouping, definition)
    exact = is_rational(world.p_x) and is_rational(as_numbers(predictor))
    return violation <= (0 if exact else 1e-9)


def _accuracy(world: World, grouping: Grouping, picks: npt.NDArray[np.intp]) -> Array:
    """The probability that the picked classes are right, over each point's group: `[..., N]`."""
    chosen = picks[..., None] == np.arange(world.num_classes)
    right: Array = (world.p_y_given_x * chosen).sum(-1)
    return group_mean(world.p_x, grouping, right)


def as_predictor(world: World, predictor: Any) -> Array:  # noqa: ANN401 - nested lists too
    """The predictor as numbers, `[..., N, K]`.

    Raises:
        WorldError: It is not one for this world.

    Example:
        >>> as_predictor(World([1.0], [[0.5, 0.5]]), [[1, 0]])
        array([[1., 0.]])
    """
    numbers = as_numbers(predictor)
    points, classes = world.p_y_given_x.shape[-2:]
    if numbers.shape[-2:] != (points, classes):
        raise WorldError(
            f"a predictor for this world must have the shape [{points}, {classes}], got "
            f"{list(numbers.shape)}"
        )
    check_probabilities("predictor", numbers)
    return numbers


def _check_definition(definition: str, grouping: Grouping | None) -> None:
    if definition not in DEFINITIONS:
        raise ConfigError(
            f"`definition` must be one of {', '.join(DEFINITIONS)}, got {definition!r}"
        )
    if (definition == "confidence") != (grouping is None):
        raise ConfigError(
            f"definition={definition!r} "
            + ("groups by the predictor itself" if grouping else "needs a grouping")
            + "; pass a grouping for `exact` and `mean`, and none for `confidence`"
        )


def _plain(value: Any) -> Any:  # noqa: ANN401 - numpy's scalars become Python's
    return value.item() if isinstance(value, np.generic) else value
