"""The paper's statements on calibration and risk, each a function that returns both sides.

Every function takes `Exits` and computes; that the exits are calibrated, and by which definition,
is up to the caller. So the same function shows where a statement holds and where it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError, WorldError
from offramp.theory.exits import Exits, Reading, stopping_probability
from offramp.theory.predictors import Definition, calibration_violation
from offramp.theory.risks import (
    Loss,
    bayes_risk,
    excess_risk,
    group_entropy,
    group_excess_risk,
    mutual_information,
)
from offramp.theory.worlds import Array, Grouping, as_floats, group_mean

TOLERANCE = 1e-9
_NOTHING = "a statement that compares exits needs two of them at least, got one"
Relation = Literal["==", "<=", "<", "!="]
RELATIONS: tuple[Relation, ...] = get_args(Relation)


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of a statement, at all the places where it is made.

    Args:
        left: `[..., n]`: n places per world.
        right: `[..., n]`.
        relation: `==`, `<=` and `<` at every place; `!=` at one place at least.

    Raises:
        ConfigError: An unknown relation.
        WorldError: There is no place: nothing is said, which would always be true.

    Example:
        >>> sides = Sides(np.array([0.5, 0.25]), np.array([0.5, 0.125]), "<=")
        >>> float(sides.deviation), bool(sides.holds)
        (0.125, False)
    """

    left: Array
    right: Array
    relation: Relation

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ConfigError(
                f"`relation` must be one of {', '.join(RELATIONS)}, got {self.relation!r}"
            )
        if 0 in np.broadcast_shapes(np.shape(self.left), np.shape(self.right))[-1:]:
            raise WorldError(_NOTHING)

    @classmethod
    def over(cls, steps: Sequence[tuple[Array, Array]], relation: Relation) -> "Sides":
        """The sides of several steps from exit to exit, `[..., N]` each, as one."""
        if not steps:
            raise WorldError(_NOTHING)
        left, right = (np.concatenate(side, axis=-1) for side in zip(*steps, strict=True))
        return cls(left, right, relation)

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
        return int((abs(gap) if self.relation in ("==", "!=") else gap).argmax())


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
        ...     bool(refinement_reduces_excess_risk(random_exits(1, Setting("exact", kind))).holds)
        ...     for kind in ("chain", "any")
        ... ]
        [True, False]
    """
    steps = []
    for early, late in combinations(range(exits.num_exits), 2):
        before, after = _excess_pair(exits, early, late, "log")
        given, about = exits.grouping.exit(early), exits.grouping.exit(late)
        steps.append((before - after, mutual_information(exits.world, given, about)))
    return Sides.over(steps, "==")


def anytime(exits: Exits, loss: Loss = "log") -> Sides:
    """The next exit's excess risk is not higher, over every group of the exit before.

    The group-conditional anytime property that Theorem 3.7 gives.

    Example:
        >>> from offramp.theory.counterexamples import growing_excess_risk
        >>> anytime(growing_excess_risk()).holds
        array(False)
    """
    pairs = [_excess_pair(exits, m, m + 1, loss) for m in range(exits.num_exits - 1)]
    return Sides.over([(after, before) for before, after in pairs], "<=")


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


def _flat(exits: Exits, values: Array) -> Array:
    """All but the dimensions of the worlds as one: `[..., n]`."""
    worlds: tuple[int, ...] = exits.world.p_x.shape[:-1]
    return values.reshape(*worlds, -1)


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
    steps = []
    for m in range(exits.num_exits - 1):
        grouping = exits.grouping.exit(m)
        here, there = (group_mean(exits.world.p_x, grouping, stops[..., e, :]) for e in (m, m + 1))
        steps.append((here, there))
    return Sides.over(steps, "<=")


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
        >>> import numpy as np
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
        >>> import numpy as np
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
