"""The statements on stopping probabilities, each a function that returns both sides."""

import numpy as np

from offramp.theory.exits import Exits
from offramp.theory.groupings import Grouping, group_mean
from offramp.theory.sides import TOLERANCE, Sides
from offramp.theory.stopping import Reading, stopping_probability
from offramp.theory.worlds import as_floats

__all__ = [
    "monotone_at_every_point",
    "monotone_needs_refinement",
    "monotone_stopping",
    "product_at_least_joint",
    "product_at_most_joint",
]


def monotone_stopping(exits: Exits, reading: Reading) -> Sides:
    """The next exit stops at least as probably, over every group of the exit before (Prop. 4.1).

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> back_and_forth = Exits.calibrated(world, [[0, 1], [0, 0], [0, 1]])
        >>> monotone_stopping(back_and_forth, "argmax").holds
        array(False)
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)  # [..., M, N]
    left, right = [], []
    for m in range(exits.num_exits - 1):
        grouping = exits.grouping.exit(m)
        left.append(group_mean(exits.world.p_x, grouping, stops[..., m, :]))
        right.append(group_mean(exits.world.p_x, grouping, stops[..., m + 1, :]))
    return Sides(np.concatenate(left, axis=-1), np.concatenate(right, axis=-1), "<=")


def monotone_at_every_point(exits: Exits, reading: Reading) -> Sides:
    """The next exit stops at least as probably at every single point.

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([0.2, 0.4, 0.4], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1], [0, 1, 2]])
        >>> [bool(f(chain, "argmax").holds) for f in (monotone_stopping, monotone_at_every_point)]
        [True, False]
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)
    worlds = exits.world.p_x.shape[:-1]
    left, right = stops[..., :-1, :], stops[..., 1:, :]
    return Sides(left.reshape(*worlds, -1), right.reshape(*worlds, -1), "<=")


def monotone_needs_refinement(exits: Exits, reading: Reading) -> Sides:
    """Where stopping becomes more probable over every group, strictly on average, they refine.

    The last exit always stops, so that the step to it says nothing; it is left out on both sides.

    Returns:
        Whether stopping is monotone, and whether the groupings refine, as 0 or 1.

    Example:
        >>> from offramp.theory.worlds import World
        >>> coins = World([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
        >>> coarser = Exits.calibrated(coins, [[0, 1], [0, 0], [0, 0]])
        >>> monotone_needs_refinement(coarser, "sampled").holds
        array(False)
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)[..., :-1, :]
    mean = as_floats(exits.world.per_exit().mean(stops))  # [..., M-1]
    rises = (mean[..., 1:] > mean[..., :-1] + TOLERANCE).all(-1)
    monotone = monotone_stopping(exits, reading).holds & rises
    labels, predictors = exits.grouping.labels[..., :-1, :], exits.predictors[..., :-1, :, :]
    refine = Exits(exits.world, Grouping(labels), predictors).is_chain
    return Sides(monotone[..., None] * 1.0, refine[..., None] * 1.0, "<=")


def product_at_most_joint(exits: Exits) -> Sides:
    """The product over exits is not above the probability that it stands for.

    Example:
        >>> from offramp.theory.worlds import World
        >>> coin = World([1.0], [[0.5, 0.5]])
        >>> opposite = Exits(coin, Grouping([[0], [0]]), np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> product_at_most_joint(opposite).holds
        array(False)
    """
    return _product_and_joint(exits)


def product_at_least_joint(exits: Exits) -> Sides:
    """The product over exits is not below the probability that it stands for.

    Example:
        >>> from offramp.theory.worlds import World
        >>> coin = World([1.0], [[0.5, 0.5]])
        >>> alike = Exits(coin, Grouping([[0], [0]]), np.array([[[1.0, 0.0]], [[1.0, 0.0]]]))
        >>> product_at_least_joint(alike).holds
        array(False)
    """
    sides = _product_and_joint(exits)
    return Sides(sides.right, sides.left, "<=")


def _product_and_joint(exits: Exits) -> Sides:
    worlds = exits.world.p_x.shape[:-1]
    product, joint = (
        stopping_probability(exits.world, exits.predictors, reading).reshape(*worlds, -1)
        for reading in ("product", "sampled")
    )
    return Sides(product, joint, "<=")
