"""The paper's statements on calibration and risk, each a function that returns both sides.

Every function takes `Exits` and computes; that the exits are calibrated, and by which definition,
is up to the caller. So the same function shows where a statement holds and where it does not.
"""

import numpy as np

from offramp.theory.exits import Exits
from offramp.theory.groupings import Grouping, group_mean
from offramp.theory.predictors import Definition, calibration_violation
from offramp.theory.risks import (
    Loss,
    bayes_risk,
    excess_risk,
    group_entropy,
    group_excess_risk,
    mutual_information,
)
from offramp.theory.sides import Sides
from offramp.theory.worlds import Array

__all__ = [
    "anytime",
    "anytime_at_every_point",
    "anytime_needs_refinement",
    "excess_risk_is_information",
    "exits_are_identical",
    "exits_differ",
    "refinement_reduces_excess_risk",
    "strictly_anytime",
    "swap_keeps_calibration",
    "zero_one_risk_is_controlled",
]


def exits_are_identical(exits: Exits) -> Sides:
    """Every later exit says what the first one says ("trivial"; Proposition 3.2).

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> exits_are_identical(Exits.calibrated(world, [[0, 1], [0, 1]])).holds
        array(True)
    """
    return Sides(*_first_and_later(exits), "==")


def exits_differ(exits: Exits) -> Sides:
    """Some later exit says something else than the first one (Proposition 3.3).

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> exits_differ(Exits.calibrated(world, [[0, 0], [0, 0]])).holds
        array(False)
    """
    return Sides(*_first_and_later(exits), "!=")


def swap_keeps_calibration(exits: Exits, definition: Definition) -> Sides:
    """Exit 1, made by swapping two points of exit 0, is calibrated (proof of Proposition 3.3).

    Args:
        exits: Their first two exits share a grouping.
        definition: Of calibration.

    Returns:
        The violation of exit 1, and zero.

    Example:
        >>> from offramp.theory.generate import Setting, random_exits
        >>> exits = random_exits(seed=0, setting=Setting("mean", "swap"))
        >>> swap_keeps_calibration(exits, "mean").holds
        array(True)
    """
    grouping = None if definition == "confidence" else exits.grouping.exit(1)
    swapped = exits.predictors[..., 1, :, :]
    violation = calibration_violation(exits.world, swapped, grouping, definition)
    return Sides(np.asarray(violation)[..., None], np.asarray(0), "==")


def excess_risk_is_information(exits: Exits) -> Sides:
    """Excess risk over a group = H[y|group] - E H[y|x] = I[y, x | group] (Proposition 3.6).

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> excess_risk_is_information(Exits.calibrated(world, [[0, 0], [0, 1]])).holds
        array(True)
    """
    world, grouping = exits.world.per_exit(), exits.grouping
    excess = group_excess_risk(world, exits.predictors, grouping)
    noise = np.broadcast_to(bayes_risk(world), excess.shape)
    lost = group_entropy(world, grouping) - group_mean(world.p_x, grouping, noise)
    right = np.concatenate([lost, mutual_information(world, grouping)], axis=-2)
    return Sides(
        _flat(exits, np.concatenate([excess, excess], axis=-2)), _flat(exits, right), "=="
    )


def refinement_reduces_excess_risk(exits: Exits) -> Sides:
    """What an exit loses against a later one is I[y, later group | group] (Theorem 3.7).

    Both sides are means over the groups of the earlier exit, for every pair of exits.

    Example:
        >>> from offramp.theory.generate import Setting, random_exits
        >>> [
        ...     bool(refinement_reduces_excess_risk(random_exits(0, Setting("exact", kind))).holds)
        ...     for kind in ("chain", "any")
        ... ]
        [True, False]
    """
    left, right = [], []
    for early, late in _pairs(exits):
        before, after = _excess_pair(exits, early, late, "log")
        left.append(before - after)
        given, about = exits.grouping.exit(early), exits.grouping.exit(late)
        right.append(mutual_information(exits.world, given, about))
    return Sides(np.concatenate(left, axis=-1), np.concatenate(right, axis=-1), "==")


def anytime(exits: Exits, loss: Loss = "log") -> Sides:
    """The next exit's excess risk is not higher, over every group of the exit before.

    The group-conditional anytime property that Theorem 3.7 gives.

    Example:
        >>> from offramp.theory.counterexamples import growing_excess_risk
        >>> anytime(growing_excess_risk()).holds
        array(False)
    """
    pairs = [_excess_pair(exits, m, m + 1, loss) for m in range(exits.num_exits - 1)]
    return _next_not_above(pairs)


def anytime_at_every_point(exits: Exits, loss: Loss = "log") -> Sides:
    """The next exit's excess risk is not higher at any point (Definition 3.5, made weak).

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([1 / 3] * 3, [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
        >>> chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1]])
        >>> anytime(chain).holds, anytime_at_every_point(chain).holds
        (array(True), array(False))
    """
    excess = excess_risk(exits.world.per_exit(), exits.predictors, loss)  # [..., M, N]
    return Sides(_flat(exits, excess[..., 1:, :]), _flat(exits, excess[..., :-1, :]), "<=")


def strictly_anytime(exits: Exits, loss: Loss = "log") -> Sides:
    """The next exit's mean excess risk is strictly lower.

    Example:
        >>> from offramp.theory.worlds import World
        >>> alike = World([0.5, 0.5], [[0.3, 0.7], [0.3, 0.7]])
        >>> strictly_anytime(Exits.calibrated(alike, [[0, 0], [0, 1]])).holds
        array(False)
    """
    world = exits.world.per_exit()
    mean = world.mean(excess_risk(world, exits.predictors, loss))  # [..., M]
    return Sides(mean[..., 1:], mean[..., :-1], "<")


def anytime_needs_refinement(exits: Exits) -> Sides:
    """Where excess risk falls over every group, and strictly on average, groupings refine.

    Returns:
        Whether it falls, and whether they refine, as 0 or 1.

    Example:
        >>> from offramp.theory.worlds import World
        >>> world = World([1 / 3] * 3, [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
        >>> anytime_needs_refinement(Exits.calibrated(world, [[0, 1, 0], [0, 1, 1]])).holds
        array(False)
    """
    falls = anytime(exits).holds & strictly_anytime(exits).holds
    return Sides(falls[..., None] * 1.0, exits.is_chain[..., None] * 1.0, "<=")


def zero_one_risk_is_controlled(exits: Exits) -> Sides:
    """0-1 excess risk at confidence c is E[max P(y|x)] - c (Lemma 3.9).

    Both sides are means over the points that share a largest probability.

    Example:
        >>> from offramp.theory.generate import Setting, random_exits
        >>> exits = random_exits(seed=0, setting=Setting("confidence", "any"))
        >>> zero_one_risk_is_controlled(exits).holds
        array(True)
    """
    world = exits.world.per_exit()
    levels = Grouping.levels(exits.predictors)
    left = group_excess_risk(world, exits.predictors, levels, "zero-one")
    best = 1 - bayes_risk(world, "zero-one")
    top = exits.predictors.max(-1)
    right = group_mean(world.p_x, levels, np.broadcast_to(best, top.shape)) - top
    return Sides(_flat(exits, left), _flat(exits, right), "==")


def _first_and_later(exits: Exits) -> tuple[Array, Array]:
    later = exits.predictors[..., 1:, :, :]
    first = np.broadcast_to(exits.predictors[..., :1, :, :], later.shape)
    return _flat(exits, later), _flat(exits, first)


def _excess_pair(exits: Exits, early: int, late: int, loss: Loss) -> tuple[Array, Array]:
    """Excess risk of two exits over the groups of the earlier one, `[..., N]` each."""
    grouping = exits.grouping.exit(early)
    before, after = (
        group_excess_risk(exits.world, exits.predictors[..., m, :, :], grouping, loss)
        for m in (early, late)
    )
    return before, after


def _next_not_above(pairs: list[tuple[Array, Array]]) -> Sides:
    left = np.concatenate([after for _, after in pairs], axis=-1)
    return Sides(left, np.concatenate([before for before, _ in pairs], axis=-1), "<=")


def _pairs(exits: Exits) -> list[tuple[int, int]]:
    count = exits.num_exits
    return [(early, late) for early in range(count) for late in range(early + 1, count)]


def _flat(exits: Exits, values: Array) -> Array:
    """All but the dimensions of the worlds as one: `[..., n]`."""
    worlds: tuple[int, ...] = exits.world.p_x.shape[:-1]
    return values.reshape(*worlds, -1)
