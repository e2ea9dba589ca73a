"""The paper's statements on calibration and risk, each a function that returns a `Relation`.

Every function takes `Exits` and computes both sides; whether the exits are calibrated, and by
which definition, is up to the caller. The same function thus shows where a statement holds and
where it fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import WorldError
from offramp.theory.calibration import (
    Definition,
    Exits,
    as_text,
    calibrated,
    calibration_violation,
)
from offramp.theory.risks import (
    Loss,
    Reading,
    bayes_risk,
    entropy,
    excess_risk,
    mutual_information,
    stopping_probability,
)
from offramp.theory.worlds import (
    Array,
    Grouping,
    World,
    as_floats,
    check_choice,
    group_mean,
    modal_class,
)

TOLERANCE = 1e-9
Operator = Literal["==", "<=", "<", "!="]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Relation:
    """The two sides of a statement, and how they should compare.

    Args:
        left: `[..., n]`: n comparisons per world.
        right: `[..., n]`.
        operator: `==`, `<=` and `<` have to hold in every comparison, `!=` in at least one.

    Raises:
        ConfigError: An unknown operator.
        WorldError: There is nothing to compare, so the statement would be true of nothing.

    Example:
        >>> relation = Relation(np.array([0.5, 0.25]), np.array([0.5, 0.125]), "<=")
        >>> float(relation.deviation), bool(relation.holds)
        (0.125, False)
        >>> print(relation)
        0.25 <= 0.125 is false
    """

    left: Array
    right: Array
    operator: Operator

    def __post_init__(self) -> None:
        check_choice("operator", self.operator, OPERATORS)
        if 0 in np.broadcast_shapes(np.shape(self.left), np.shape(self.right))[-1:]:
            raise WorldError("a statement that compares exits needs at least two of them, got one")

    @property
    def gap(self) -> Floats:
        """Left minus right, `[..., n]`."""
        with np.errstate(invalid="ignore"):
            # Subtracted before the conversion to floats, so Fractions lose nothing.
            return as_floats(np.asarray(self.left - self.right))

    @property
    def deviation(self) -> Floats:
        """By how much the statement is violated, `[...]`; 1 or 0 for `<` and `!=`."""
        gap = self.gap
        if self.operator == "==":
            return np.asarray(abs(gap).max(-1))
        if self.operator == "<=":
            return np.asarray(np.maximum(gap, 0).max(-1))
        if self.operator == "<":
            return np.asarray((gap >= -TOLERANCE).any(-1), dtype=np.float64)
        return np.asarray((abs(gap) <= TOLERANCE).all(-1), dtype=np.float64)

    @property
    def holds(self) -> Bools:
        """Whether the statement is true to 1e-9, bool `[...]`."""
        return np.asarray(self.deviation <= TOLERANCE)

    def __str__(self) -> str:
        """Both sides, in a single world, where the gap is largest."""
        gap = self.gap
        place = int((abs(gap) if self.operator in ("==", "!=") else gap).argmax())
        left, right = (
            as_text(np.broadcast_to(side, gap.shape)[place]) for side in (self.left, self.right)
        )
        return f"{left} {self.operator} {right} is {'true' if self.holds else 'false'}"


def later_exits_match_first(exits: Exits, operator: Operator = "==") -> Relation:
    """Every later exit predicts what the first one predicts ("trivial"; Proposition 3.2).

    Args:
        exits: At least two.
        operator: With `!=`: some later exit predicts something else (Proposition 3.3).

    Example:
        >>> world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> exits = Exits.calibrated(world, [[0, 1], [0, 1]])
        >>> later_exits_match_first(exits).holds, later_exits_match_first(exits, "!=").holds
        (array(True), array(False))
    """
    later = exits.predictors[..., 1:, :, :]
    first = np.broadcast_to(exits.predictors[..., :1, :, :], later.shape)
    return Relation(_flat(exits, later), _flat(exits, first), operator)


def swap_keeps_calibration(exits: Exits, definition: Definition) -> Relation:
    """Exit 1, made by swapping two points of exit 0, is calibrated (proof of Proposition 3.3).

    Args:
        exits: The first two share a grouping.
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
    return Relation(np.asarray(violation)[..., None], np.asarray(0), "==")


def excess_risk_is_information(exits: Exits) -> Relation:
    """Excess risk over a group = H[y|group] - E H[y|x] = I[y, x | group] (Proposition 3.6).

    Example:
        >>> world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> excess_risk_is_information(Exits.calibrated(world, [[0, 0], [0, 1]])).holds
        array(True)
    """
    world, grouping = exits.world.per_exit(), exits.grouping
    excess = group_mean(world.p_x, grouping, _excess(exits, "log"))
    noise = np.broadcast_to(bayes_risk(world), excess.shape)
    lost = entropy(calibrated(world, grouping)) - group_mean(world.p_x, grouping, noise)
    left = np.concatenate([excess, excess], axis=-2)
    right = np.concatenate([lost, mutual_information(world, grouping)], axis=-2)
    return Relation(_flat(exits, left), _flat(exits, right), "==")


def refinement_reduces_excess_risk(exits: Exits) -> Relation:
    """The excess risk that a later exit saves is I[y, later group | group] (Theorem 3.7).

    Both sides are means over the groups of the earlier exit, for every pair of exits.

    Example:
        >>> from offramp.theory.generate import Setting, random_exits
        >>> [
        ...     bool(refinement_reduces_excess_risk(random_exits(1, Setting("exact", kind))).holds)
        ...     for kind in ("chain", "any")
        ... ]
        [True, False]
    """
    world, excess = exits.world, _excess(exits, "log")
    saved, information = [], []
    for early, late in combinations(range(exits.num_exits), 2):
        given, about = exits.grouping.exit(early), exits.grouping.exit(late)
        # One mean per exit: infinite minus infinite has to stay undefined.
        before, after = (
            group_mean(world.p_x, given, excess[..., index, :]) for index in (early, late)
        )
        saved.append(before - after)
        information.append(mutual_information(world, given, about))
    return Relation(_joined(exits, saved), _joined(exits, information), "==")


def anytime(exits: Exits, loss: Loss = "log", pointwise: bool = False) -> Relation:
    """The next exit's excess risk is not higher, over every group of the exit before.

    Args:
        exits: At least two.
        loss: Log or 0-1 loss.
        pointwise: At every single point (Definition 3.5, made weak) instead of over groups, which
            is what Theorem 3.7 gives.

    Example:
        >>> world = World([1 / 3] * 3, [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
        >>> chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1]])
        >>> anytime(chain).holds, anytime(chain, pointwise=True).holds
        (array(True), array(False))
    """
    here, after = _neighbours(exits, _excess(exits, loss), pointwise)
    return Relation(after, here, "<=")


def strictly_anytime(exits: Exits, loss: Loss = "log") -> Relation:
    """The next exit's mean excess risk is strictly lower.

    Example:
        >>> alike = World([0.5, 0.5], [[0.3, 0.7], [0.3, 0.7]])
        >>> strictly_anytime(Exits.calibrated(alike, [[0, 0], [0, 1]])).holds
        array(False)
    """
    mean = exits.world.per_exit().mean(_excess(exits, loss))  # [..., M]
    return Relation(mean[..., 1:], mean[..., :-1], "<")


def anytime_needs_refinement(exits: Exits) -> Relation:
    """If excess risk falls over every group, and strictly on average, the groupings refine.

    Returns:
        Whether it falls, and whether they refine, as 0 or 1.

    Example:
        >>> world = World([1 / 3] * 3, [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
        >>> anytime_needs_refinement(Exits.calibrated(world, [[0, 1, 0], [0, 1, 1]])).holds
        array(False)
    """
    return _implies(anytime(exits).holds & strictly_anytime(exits).holds, exits.is_chain)


def zero_one_risk_is_controlled(exits: Exits) -> Relation:
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
    left = group_mean(world.p_x, levels, _excess(exits, "zero-one"))
    best = 1 - bayes_risk(world, "zero-one")
    top = exits.predictors.max(-1)
    right = group_mean(world.p_x, levels, np.broadcast_to(best, top.shape)) - top
    return Relation(_flat(exits, left), _flat(exits, right), "==")


def monotone_stopping(exits: Exits, reading: Reading, pointwise: bool = False) -> Relation:
    """Stopping is at least as probable at the next exit, over every group (Prop. 4.1).

    Args:
        exits: At least two; the groups are those of the earlier exit.
        reading: Of the stopping probability.
        pointwise: At every single point instead.

    Example:
        >>> world = World([0.2, 0.4, 0.4], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1], [0, 1, 2]])
        >>> [bool(monotone_stopping(chain, "argmax", pointwise).holds) for pointwise in (0, 1)]
        [True, False]
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)
    return Relation(*_neighbours(exits, stops, pointwise), "<=")


def monotone_needs_refinement(exits: Exits, reading: Reading) -> Relation:
    """If stopping becomes more probable over every group, strictly on average, they refine.

    The last exit always stops, so the step to it means nothing; both sides leave it out.

    Returns:
        Whether stopping is monotone, and whether the groupings refine, as 0 or 1.

    Example:
        >>> coins = World([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
        >>> coarser = Exits.calibrated(coins, [[0, 1], [0, 0], [0, 0]])
        >>> monotone_needs_refinement(coarser, "sampled").holds
        array(False)
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)[..., :-1, :]
    mean = as_floats(exits.world.per_exit().mean(stops))  # [..., M-1]
    rises = (mean[..., 1:] > mean[..., :-1] + TOLERANCE).all(-1)
    labels, predictors = exits.grouping.labels[..., :-1, :], exits.predictors[..., :-1, :, :]
    refine = Exits(exits.world, Grouping(labels), predictors).is_chain
    return _implies(monotone_stopping(exits, reading).holds & rises, refine)


def product_at_most_joint(exits: Exits, reverse: bool = False) -> Relation:
    """The product over exits is not above the joint probability that it stands for.

    Args:
        exits: Any.
        reverse: The product is not below it.

    Example:
        >>> coin, one_group = World([1.0], [[0.5, 0.5]]), Grouping([[0], [0]])
        >>> alike = Exits(coin, one_group, np.array([[[1.0, 0.0]], [[1.0, 0.0]]]))
        >>> opposite = Exits(coin, one_group, np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> product_at_most_joint(opposite).holds, product_at_most_joint(alike, reverse=True).holds
        (array(False), array(False))
    """
    product, joint = (
        _flat(exits, stopping_probability(exits.world, exits.predictors, reading))
        for reading in ("product", "sampled")
    )
    return Relation(joint, product, "<=") if reverse else Relation(product, joint, "<=")


TIE = 1e-12  # rounding error allowed when comparing with 1/(K-1) in floats
BOUND = 20.0  # nats: an excess risk that counts as arbitrarily large
RIVAL = 0.05  # a rarer class needs an epsilon that floats cannot hold


def log_loss_is_unbounded(exits: Exits) -> Relation:
    """Confidence calibration allows a log-loss excess risk above any bound (Proposition 3.8).

    Tried with 20 nats at point 0, where another class has a probability of at least 1/20, so
    floats can hold epsilon. The largest probability and its class do not change, so the predictor
    stays calibrated.

    Returns:
        The bound, and the excess risk of the worst predictor.

    Example:
        >>> for top in (0.6, 0.4):
        ...     world = World([1.0], [[top, 0.3, 0.7 - top]])
        ...     print(log_loss_is_unbounded(Exits.calibrated(world, [[0]])).holds)
        True
        False
    """
    probs = as_floats(exits.world.p_y_given_x)[..., 0, :]
    # Excess >= -share log(epsilon) - H, so this epsilon is small enough.
    with np.errstate(divide="ignore"):
        epsilon = np.exp(-(BOUND + entropy(probs) + 1) / _rival(exits)[1])
    floats = World(as_floats(exits.world.p_x), as_floats(exits.world.p_y_given_x))
    worst = worsened(Exits(floats, exits.grouping, as_floats(exits.predictors)), epsilon)
    excess = np.asarray(excess_risk(floats, worst)[..., 0])
    return Relation(np.full((*excess.shape, 1), BOUND), excess[..., None], "<=")


def excess_is_bounded(exits: Exits) -> Relation:
    """Below c = 1/(K-1), excess risk at a point is at most -log(1 - (K-1) c).

    Example:
        >>> exits = Exits(
        ...     World([1.0], [[0.4, 0.0, 0.6]]), Grouping([[0]]), np.array([[[0.4, 0.4, 0.2]]])
        ... )
        >>> excess_is_bounded(exits).holds
        array(True)
    """
    floor = 1 - (exits.world.num_classes - 1) * _confidence(exits)
    excess = excess_risk(exits.world, exits.predictors[..., 0, :, :])[..., :1]
    return Relation(excess, -np.log(floor)[..., None], "<=")


def worsened(exits: Exits, epsilon: Any) -> Array:  # noqa: ANN401 - a number, or an array
    """Exit 0 with as little as possible for a class that occurs at point 0, `[..., N, K]`.

    The proof of Proposition 3.8: that class (the most probable one except the predicted one) is
    set to epsilon, and the other classes share the rest. None of them may exceed the largest
    probability, so below c = 1/(K-1) the class keeps what they cannot take.

    Args:
        exits: K >= 3, with a confidence-calibrated exit 0.
        epsilon: `[...]`, above 0.

    Raises:
        WorldError: Fewer than three classes.

    Example:
        >>> world = World([1.0], [[0.6, 0.3, 0.1]])
        >>> exits = Exits.calibrated(world, [[0]])
        >>> worsened(exits, epsilon=0.001)
        array([[0.6  , 0.001, 0.399]])
    """
    predictor = exits.predictors[..., 0, :, :].copy()
    others = exits.world.num_classes - 2
    if others < 1:
        raise WorldError("worsening a class needs at least 3 classes, got 2")
    top = predictor[..., 0, :].max(-1)
    left_over = 1 - (others + 1) * top
    low = np.where(left_over < TIE, epsilon, left_over)
    index = np.arange(others + 2)
    row = np.where(
        index == _rival(exits)[0][..., None],
        np.asarray(low)[..., None],
        np.asarray((1 - top - low) / others)[..., None],
    )
    modal = np.asarray(modal_class(predictor)[..., 0])
    predictor[..., 0, :] = np.where(index == modal[..., None], np.asarray(top)[..., None], row)
    return predictor


def confidence_reaches_bound(exits: Exits) -> Bools:
    """Whether exit 0's confidence at point 0 is at least 1/(K-1): bool `[...]`.

    Below it, all classes but one cannot hold a probability of one together, since none may
    exceed c. Each of them thus has at least 1 - (K-1) c, and the log loss is bounded.
    """
    return np.asarray(_confidence(exits) * (exits.world.num_classes - 1) >= 1 - TIE)


def has_rival(exits: Exits) -> Bools:
    """Whether a class other than the predicted one has at least 1/20 at point 0: bool `[...]`."""
    return np.asarray(_rival(exits)[1] >= RIVAL)


def _confidence(exits: Exits) -> Floats:
    return np.asarray(as_floats(exits.predictors[..., 0, 0, :]).max(-1))


def _rival(exits: Exits) -> tuple[npt.NDArray[np.intp], Floats]:
    """The most probable class at point 0 except the one exit 0 predicts, and P(y|x): `[...]`."""
    modal = modal_class(exits.predictors)[..., 0, 0]
    probs = as_floats(exits.world.p_y_given_x)[..., 0, :]
    others = np.where(np.arange(exits.world.num_classes) != modal[..., None], probs, -1)
    return np.asarray(others.argmax(-1)), np.asarray(others.max(-1))


def _excess(exits: Exits, loss: Loss) -> Array:
    """`[..., M, N]`."""
    return excess_risk(exits.world.per_exit(), exits.predictors, loss)


def _neighbours(exits: Exits, values: Array, pointwise: bool) -> tuple[Array, Array]:
    """Values `[..., M, N]` at every exit but the last, and at the one after it, `[..., n]` each.

    Means over the groups of the earlier exit, unless `pointwise`.
    """
    here, after = values[..., :-1, :], values[..., 1:, :]
    if not pointwise:
        p_x, grouping = exits.world.p_x[..., None, :], Grouping(exits.grouping.labels[..., :-1, :])
        here, after = (group_mean(p_x, grouping, each) for each in (here, after))
    return _flat(exits, here), _flat(exits, after)


def _implies(premise: Bools, conclusion: Array) -> Relation:
    return Relation(premise[..., None] * 1.0, conclusion[..., None] * 1.0, "<=")


def _joined(exits: Exits, parts: Sequence[Array]) -> Array:
    """Arrays `[..., N]` one after the other; of no exits, none."""
    worlds = exits.world.p_x.shape[:-1]
    return np.concatenate([np.zeros((*worlds, 0)), *parts], axis=-1)


def _flat(exits: Exits, values: Array) -> Array:
    """All but the dimensions of the worlds as one: `[..., n]`."""
    worlds: tuple[int, ...] = exits.world.p_x.shape[:-1]
    return values.reshape(*worlds, -1)
