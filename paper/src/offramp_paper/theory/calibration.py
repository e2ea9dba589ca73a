"""Calibration by three definitions: predictors that have it, and how far others are from it."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError
from offramp_paper.theory.worlds import (
    Array,
    Grouping,
    World,
    WorldError,
    as_numbers,
    check_choice,
    check_probabilities,
    group_mean,
    is_rational,
    modal_class,
)

Definition = Literal["exact", "mean", "confidence"]
DEFINITIONS: tuple[Definition, ...] = get_args(Definition)


def calibrated(world: World, grouping: Grouping) -> Array:
    """The calibrated predictor of the paper's Definition 2.1: f(x) = P(y | group of x).

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
    """A predictor that varies within its groups but is calibrated on average over each of them.

    Args:
        world: N points, K classes.
        grouping: Of the points.
        noise: `[..., N, K]`, rows that sum to one: how it varies. It is scaled down as far as
            needed to keep every probability above zero.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> mean_calibrated(world, Grouping([0, 0]), np.array([[0.6, 0.4], [0.8, 0.2]]))
        array([[0.65, 0.35],
               [0.85, 0.15]])
    """
    centre = calibrated(world, grouping)
    away = noise - group_mean(world.p_x, grouping, noise)
    # The multiple of `away` that brings a probability to zero; half of it is used.
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
        picks: `[..., N]`, the class predicted at each point. Where a group's accuracy would be
            below 1/K, which no largest probability can be, the best classes are used instead.
        noise: `[..., N, K]`, weights: how the rest is shared among the other classes, as long as
            none exceeds the largest. A tie with an earlier class changes the prediction;
            `calibration_violation` shows whether it did.

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
    # Rounding may leave a value slightly below zero.
    result: Array = np.where(chosen, top, np.maximum(even + step * lean, 0))
    return result


def calibration_violation(
    world: World,
    predictor: Array,
    grouping: Grouping | None = None,
    definition: Definition = "exact",
) -> Any:  # noqa: ANN401 - a float or a Fraction, or an array of them
    """How far a predictor is from calibrated: the largest difference at any point.

    Args:
        world: N points, K classes.
        predictor: `[..., N, K]`.
        grouping: Of the points; none for `confidence`, which groups by the predictor itself.
        definition: `exact`: f(x) = P(y | group), the paper's Definition 2.1. `mean`: the mean of f
            over the group is P(y | group). `confidence`: the largest probability is the accuracy
            over all points that share it.

    Returns:
        A number, 0 if calibrated; with leading dimensions an array `[...]`.

    Raises:
        ConfigError: The definition is unknown, or needs a grouping and has none (or vice versa).
        WorldError: The predictor does not fit the world.

    Example:
        >>> world = World([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
        >>> predictor = np.array([[0.75, 0.25], [0.25, 0.75]])
        >>> whole = Grouping([0, 0])
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
    if definition == "mean":
        predictor = group_mean(world.p_x, grouping, predictor)
    return _plain(abs(predictor - calibrated(world, grouping)).max((-2, -1)))


def is_calibrated(
    world: World,
    predictor: Array,
    grouping: Grouping | None = None,
    definition: Definition = "exact",
) -> Any:  # noqa: ANN401 - a bool, or an array of them
    """Whether the violation is zero: exactly in a rational world, to 1e-9 in floats.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
        >>> is_calibrated(world, world.p_y_given_x, Grouping([0, 1]))
        True
    """
    violation = calibration_violation(world, predictor, grouping, definition)
    exact = is_rational(world.p_x) and is_rational(as_numbers(predictor))
    return violation <= (0 if exact else 1e-9)


def _accuracy(world: World, grouping: Grouping, picks: npt.NDArray[np.intp]) -> Array:
    """The accuracy of the picked classes over each point's group: `[..., N]`."""
    chosen = picks[..., None] == np.arange(world.num_classes)
    right: Array = (world.p_y_given_x * chosen).sum(-1)
    return group_mean(world.p_x, grouping, right)


def as_predictor(world: World, predictor: Any) -> Array:  # noqa: ANN401 - nested lists too
    """The predictor as numbers, `[..., N, K]`; raises where it does not fit the world."""
    numbers = as_numbers(predictor)
    points, classes = world.p_y_given_x.shape[-2:]
    if numbers.shape[-2:] != (points, classes):
        raise WorldError(
            f"a predictor for this world must have shape [{points}, {classes}], got "
            f"{list(numbers.shape)}"
        )
    check_probabilities("predictor", numbers)
    return numbers


def _check_definition(definition: str, grouping: Grouping | None) -> None:
    check_choice("definition", definition, DEFINITIONS)
    if (definition == "confidence") != (grouping is None):
        raise ConfigError(
            f"definition={definition!r} "
            + ("groups by the predictor itself" if grouping else "needs a grouping")
            + "; pass a grouping for `exact` and `mean`, but none for `confidence`"
        )


def _plain(value: Any) -> Any:  # noqa: ANN401 - numpy's scalars become Python's
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, eq=False)
class Exits:
    """An early-exit network in a finite world: what each of M exits predicts at each point.

    Args:
        world: N points, K classes; leading dimensions hold several worlds.
        grouping: Labels `[..., M, N]`: what each exit is calibrated with respect to.
        predictors: `[..., M, N, K]`.

    Raises:
        WorldError: The shapes do not fit together.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> print(Exits.calibrated(world, [[0, 0], [0, 1]]))
        x  P(x)  P(y|x)  exit 0: {0,1}  exit 1: {0}{1}
        0  0.5   1 0     0.5 0.5        1 0
        1  0.5   0 1     0.5 0.5        0 1
    """

    world: World
    grouping: Grouping
    predictors: Array

    def __post_init__(self) -> None:
        predictors = as_numbers(self.predictors)
        object.__setattr__(self, "predictors", predictors)
        table = self.world.p_y_given_x.shape
        exits = predictors.shape[-3] if predictors.ndim == len(table) + 1 else 0
        expected = (*table[:-2], exits, *table[-2:])
        if predictors.shape != expected or self.grouping.labels.shape != expected[:-1]:
            points, classes = table[-2:]
            raise WorldError(
                f"exits of this world need a grouping with labels [M, {points}] and predictors "
                f"[M, {points}, {classes}], got {list(self.grouping.labels.shape)} and "
                f"{list(predictors.shape)}"
            )
        check_probabilities("predictors", predictors)

    @classmethod
    def calibrated(cls, world: World, labels: object) -> "Exits":
        """Exits calibrated with respect to groupings, by the paper's Definition 2.1.

        Args:
            world: N points, K classes.
            labels: `[M, N]`, the groups of each exit.
        """
        grouping = Grouping(labels)
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
        """The exits of one of several worlds."""
        world = World(self.world.p_x[index], self.world.p_y_given_x[index])
        return Exits(world, Grouping(self.grouping.labels[index]), self.predictors[index])

    def __str__(self) -> str:
        """A single world as text, one line per point."""
        world, indices = self.world, range(self.num_exits)
        columns = [
            ["x", *map(str, range(world.num_points))],
            ["P(x)", *map(as_text, world.p_x)],
            ["P(y|x)", *map(_row_as_text, world.p_y_given_x)],
            *(
                [f"exit {index}: {self.grouping.exit(index)}", *map(_row_as_text, predictor)]
                for index, predictor in zip(indices, self.predictors, strict=True)
            ),
        ]
        widths = [max(map(len, column)) for column in columns]
        lines = zip(*columns, strict=True)
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def as_text(value: object) -> str:
    """A Fraction exactly, a float to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row_as_text(row: Array) -> str:
    return " ".join(map(as_text, row))
