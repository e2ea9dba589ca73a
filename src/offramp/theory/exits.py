"""Exits: an early-exit network in a finite world, as predictors with their groupings."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from offramp.errors import ConfigError, WorldError
from offramp.theory.predictors import calibrated
from offramp.theory.risks import conditional_risk
from offramp.theory.worlds import (
    Array,
    Grouping,
    World,
    as_numbers,
    check_probabilities,
    is_rational,
    modal_class,
)


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
        """Exits that are calibrated, by the paper's Definition 2.1, with respect to groupings.

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
        """One of several worlds side by side."""
        world = World(self.world.p_x[index], self.world.p_y_given_x[index])
        return Exits(world, Grouping(self.grouping.labels[index]), self.predictors[index])


Reading = Literal["product", "sampled", "argmax"]
READINGS: tuple[Reading, ...] = get_args(Reading)


def stopping_probability(world: World, predictors: Array, reading: Reading = "argmax") -> Array:
    """P(stop | x) at every exit: right here, or wrong at every exit from here on.

    Args:
        world: N points, K classes.
        predictors: `[..., M, N, K]`, one per exit.
        reading: `product`: as the paper writes it, with the product of the exits' probabilities
            of being wrong. `sampled`: every exit draws its prediction from its own probabilities,
            independently of the others, and all are compared with one label. `argmax`: every exit
            predicts its most probable class, as in the paper's Eq. (ee_target).

    Returns:
        `[..., M, N]`; 1 at the last exit.

    Raises:
        ConfigError: An unknown reading.
        WorldError: The predictors are not for this world.

    Example:
        Two exits that always answer the same class: both wrong is as likely as one wrong, 1/2.
        The product says 1/4.

        >>> world = World([1.0], [[0.5, 0.5]])
        >>> same = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
        >>> stopping_probability(world, same, "product")[:, 0]
        array([0.75, 1.  ])
        >>> stopping_probability(world, same, "sampled")[:, 0]
        array([1., 1.])
    """
    if reading not in READINGS:
        raise ConfigError(f"`reading` must be one of {', '.join(READINGS)}, got {reading!r}")
    predictors = as_numbers(predictors)
    if predictors.ndim < 3 or predictors.shape[-2:] != world.p_y_given_x.shape[-2:]:
        raise WorldError(
            f"`predictors` must have the shape [M, {world.num_points}, {world.num_classes}], got "
            f"{list(predictors.shape)}"
        )
    if reading == "argmax":
        chosen = modal_class(predictors)[..., None] == np.arange(world.num_classes)
        predictors = chosen.astype(int).astype(predictors.dtype)
    probs = world.p_y_given_x[..., None, :, :]  # [..., 1, N, K]
    right = (probs * predictors).sum(-1)  # [..., M, N]
    if reading == "product":
        hopeless = _from_here_on(1 - right, axis=-2)
    else:
        # One label for all exits: they are independent given the label, not otherwise.
        hopeless = (probs * _from_here_on(1 - predictors, axis=-3)).sum(-1)
    result: Array = right + hopeless
    return result


def _from_here_on(values: Array, axis: int) -> Array:
    """The product over this exit and all later ones."""
    result: Array = np.flip(np.multiply.accumulate(np.flip(values, axis), axis=axis), axis)
    return result


class TradeOff(NamedTuple):
    """Mean cost and accuracy."""

    cost: Any
    accuracy: Any


def frontier(exits: Exits, scores: Array, costs: Sequence[Any]) -> list[TradeOff]:
    """The best accuracies for their cost among all thresholds on the exits' scores.

    Args:
        exits: Of one small world.
        scores: `[M, N]`; a point stops at the first exit whose score reaches the threshold. The
            last exit always stops.
        costs: `[M]`, cumulative.

    Raises:
        WorldError: Scores or costs of another number of exits or points.

    Example:
        >>> from offramp.theory.counterexamples import calibrated_but_worse
        >>> pair = calibrated_but_worse()
        >>> best = frontier(pair.calibrated, pair.calibrated.predictors.max(-1), pair.costs)
        >>> [(str(point.cost), str(point.accuracy)) for point in best]
        [('1', '3/5'), ('2', '4/5')]
    """
    scores = as_numbers(scores)
    costs = [Fraction(cost) if is_rational(exits.world.p_x) else cost for cost in costs]
    shape = (exits.num_exits, exits.world.num_points)
    if scores.shape != shape or len(costs) != shape[0]:
        raise WorldError(
            f"`scores` must have the shape {list(shape)} and `costs` [{shape[0]}], got "
            f"{list(scores.shape)} and [{len(costs)}]"
        )
    right = 1 - conditional_risk(exits.world.per_exit(), exits.predictors, "zero-one")  # [M, N]
    points = np.arange(shape[1])
    found = set()
    # None closes an exit.
    for chosen in itertools.product(*([*sorted(set(row)), None] for row in scores[:-1].tolist())):
        stops = np.ones(shape, dtype=bool)
        for m, threshold in enumerate(chosen):
            stops[m] = False if threshold is None else scores[m] >= threshold
        taken = stops.argmax(0)
        cost = exits.world.mean(as_numbers([costs[m] for m in taken]))
        found.add(TradeOff(cost, exits.world.mean(right[taken, points])))
    return _undominated(found)


def _undominated(found: set[TradeOff]) -> list[TradeOff]:
    best: list[TradeOff] = []
    for point in sorted(found, key=lambda each: (each.cost, -each.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best
