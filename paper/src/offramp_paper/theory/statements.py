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

from offramp_paper.theory.calibration import (
    Definition,
    Exits,
    as_text,
    calibrated,
    calibration_violation,
)
from offramp_paper.theory.risks import (
    Loss,
    Reading,
    bayes_risk,
    entropy,
    excess_risk,
    mutual_information,
    stopping_probability,
)
from offramp_paper.theory.worlds import (
    Array,
    Grouping,
    World,
    WorldError,
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

    With `!=`: some later exit predicts something else (Proposition 3.3).
    """
    later = exits.predictors[..., 1:, :, :]
    first = np.broadcast_to(exits.predictors[..., :1, :, :], later.shape)
    return Relation(_flat(exits, later), _flat(exits, first), operator)


def swap_keeps_calibration(exits: Exits, definition: Definition) -> Relation:
    """Exit 1, made by swapping two points of exit 0, is calibrated (proof of Proposition 3.3)."""
    grouping = None if definition == "confidence" else exits.grouping.exit(1)
    swapped = exits.predictors[..., 1, :, :]
    violation = calibration_violation(exits.world, swapped, grouping, definition)
    return Relation(np.asarray(violation)[..., None], np.asarray(0), "==")


def excess_risk_is_information(exits: Exits) -> Relation:
    """Excess risk over a group = H[y|group] - E H[y|x] = I[y, x | group] (Proposition 3.6)."""
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

    Theorem 3.7 gives this; pointwise, it is Definition 3.5 made weak.
    """
    here, after = _neighbours(exits, _excess(exits, loss), pointwise)
    return Relation(after, here, "<=")


def strictly_anytime(exits: Exits, loss: Loss = "log") -> Relation:
    """The next exit's mean excess risk is strictly lower."""
    mean = exits.world.per_exit().mean(_excess(exits, loss))  # [..., M]
    return Relation(mean[..., 1:], mean[..., :-1], "<")


def anytime_needs_refinement(exits: Exits) -> Relation:
    """If excess risk falls over every group, and strictly on average, the groupings refine."""
    return _implies(anytime(exits).holds & strictly_anytime(exits).holds, exits.is_chain)


def zero_one_risk_is_controlled(exits: Exits) -> Relation:
    """0-1 excess risk at confidence c is E[max P(y|x)] - c (Lemma 3.9).

    Both sides are means over the points that share a largest probability.
    """
    world = exits.world.per_exit()
    levels = Grouping.levels(exits.predictors)
    left = group_mean(world.p_x, levels, _excess(exits, "zero-one"))
    best = 1 - bayes_risk(world, "zero-one")
    top = exits.predictors.max(-1)
    right = group_mean(world.p_x, levels, np.broadcast_to(best, top.shape)) - top
    return Relation(_flat(exits, left), _flat(exits, right), "==")


def monotone_stopping(exits: Exits, reading: Reading, pointwise: bool = False) -> Relation:
    """Stopping is at least as probable at the next exit, over every group (Prop. 4.1) or point."""
    stops = stopping_probability(exits.world, exits.predictors, reading)
    return Relation(*_neighbours(exits, stops, pointwise), "<=")


def monotone_needs_refinement(exits: Exits, reading: Reading) -> Relation:
    """If stopping becomes more probable over every group, strictly on average, they refine.

    The last exit always stops, so the step to it means nothing; both sides leave it out.
    """
    stops = stopping_probability(exits.world, exits.predictors, reading)[..., :-1, :]
    mean = as_floats(exits.world.per_exit().mean(stops))  # [..., M-1]
    rises = (mean[..., 1:] > mean[..., :-1] + TOLERANCE).all(-1)
    labels, predictors = exits.grouping.labels[..., :-1, :], exits.predictors[..., :-1, :, :]
    refine = Exits(exits.world, Grouping(labels), predictors).is_chain
    return _implies(monotone_stopping(exits, reading).holds & rises, refine)


def product_at_most_joint(exits: Exits, reverse: bool = False) -> Relation:
    """The product over exits is not above (`reverse`: below) the joint probability."""
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
    """Below c = 1/(K-1), excess risk at a point is at most -log(1 - (K-1) c)."""
    floor = 1 - (exits.world.num_classes - 1) * _confidence(exits)
    excess = excess_risk(exits.world, exits.predictors[..., 0, :, :])[..., :1]
    return Relation(excess, -np.log(floor)[..., None], "<=")


def worsened(exits: Exits, epsilon: Any) -> Array:  # noqa: ANN401 - a number, or an array
    """Exit 0 with as little as possible for a class that occurs at point 0, `[..., N, K]`.

    The proof of Proposition 3.8: that class (the most probable one except the predicted one) is
    set to epsilon, and the other classes share the rest. None of them may exceed the largest
    probability, so below c = 1/(K-1) the class keeps what they cannot take.
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
