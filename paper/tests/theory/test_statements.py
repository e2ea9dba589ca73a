"""What the paper proves holds in every random world, and its assumptions are needed."""

from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offramp.errors import ConfigError
from offramp_paper import theory
from offramp_paper.theory import (
    Exits,
    Grouping,
    Relation,
    Setting,
    World,
    calibration_violation,
    random_exits,
    statements,
)
from offramp_paper.theory.claims import CLAIMS
from offramp_paper.theory.generate import Draw
from offramp_paper.theory.plots import largest_excess
from offramp_paper.theory.risks import READINGS
from offramp_paper.theory.statements import confidence_reaches_bound, has_rival, worsened
from offramp_paper.theory.worlds import WorldError

sizes = st.tuples(st.integers(1, 5), st.integers(2, 4), st.integers(2, 4))
seeds = st.integers(0, 100_000)


@given(seeds, sizes)
def test_what_is_proved_for_exact_calibration_with_refinement_holds(seed, size):
    exits = random_exits(seed, Setting("exact", "chain"), size)
    assert statements.excess_risk_is_information(exits).holds
    assert statements.refinement_reduces_excess_risk(exits).holds
    assert statements.zero_one_risk_is_controlled(exits).holds
    for loss in ("log", "zero-one"):
        assert statements.anytime(exits, loss).holds
    for reading in READINGS:
        assert statements.monotone_stopping(exits, reading).holds


@given(seeds, sizes)
def test_stopping_is_monotone_between_any_two_exits_of_a_chain(seed, size):
    """Not only between neighbours: the means over coarser groups follow from the finer ones."""
    exits = random_exits(seed, Setting("exact", "chain"), size)
    for reading in READINGS:
        stops = theory.stopping_probability(exits.world, exits.predictors, reading)
        for early in range(exits.num_exits):
            grouping = exits.grouping.exit(early)
            means = [theory.group_mean(exits.world.p_x, grouping, row) for row in stops[early:]]
            assert all((later >= means[0] - 1e-9).all() for later in means)


@given(seeds, sizes)
def test_the_last_exit_always_stops_in_every_reading(seed, size):
    exits = random_exits(seed, Setting("mean", "any"), size)
    for reading in READINGS:
        stops = theory.stopping_probability(exits.world, exits.predictors, reading)
        np.testing.assert_allclose(stops[-1], 1)
        assert (stops <= 1 + 1e-12).all()


@given(seeds, sizes)
def test_confidence_calibration_fixes_the_zero_one_risk(seed, size):
    exits = random_exits(seed, Setting("confidence", "any"), size)
    assert statements.zero_one_risk_is_controlled(exits).holds
    for predictor in exits.predictors:
        assert calibration_violation(exits.world, predictor, definition="confidence") <= 1e-9


@given(seeds, st.tuples(st.integers(1, 5), st.integers(3, 5), st.just(2)))
def test_confidence_calibration_does_not_fix_the_log_risk(seed, size):
    """The worsened predictor has the same 0-1 risk, is as calibrated, and its log loss grows."""
    exits = random_exits(seed, Setting("confidence", "any"), size)
    assume(confidence_reaches_bound(exits) and has_rival(exits))
    losses = []
    for epsilon in (1e-8, 1e-16, 1e-32):
        worse = worsened(exits, epsilon)
        assert calibration_violation(exits.world, worse, definition="confidence") <= 1e-9
        before, after = (
            theory.excess_risk(exits.world, predicted, "zero-one")
            for predicted in (exits.predictors[0], worse)
        )
        np.testing.assert_array_equal(before, after)
        losses.append(theory.excess_risk(exits.world, worse)[0])
    # The rival has 1/20 at least, and each step takes log(1e8) from it, or more.
    assert (np.diff(losses) > 0.05 * np.log(1e8) - 1e-6).all()


def test_with_two_classes_exits_of_one_confidence_grouping_can_differ(by_hand):
    """At a coin flip either answer is right as often."""
    half, three = Fraction(1, 2), Fraction(3, 4)
    world = World([half, half], [[1, 0], [half, half]])
    first, second = [three, 1 - three], [1 - three, three]
    exits = Exits(world, Grouping([[0, 0]] * 2), np.array([[first, first], [first, second]]))
    for m in range(2):
        assert by_hand.violation(exits, m, "confidence") == 0
        assert Grouping.levels(exits.predictors[m]) == Grouping([0, 0])
    assert statements.later_exits_match_first(exits, "!=").holds


def test_a_class_is_worsened_at_the_expense_of_two_others():
    coin = Exits.calibrated(World([1.0], [[0.6, 0.4]]), [[0]])
    with pytest.raises(WorldError, match="at least 3 classes, got 2"):
        worsened(coin, 0.1)


@pytest.mark.parametrize("tiny", [Fraction(1, 10), Fraction(1, 10**6), Fraction(1, 10**40)])
def test_the_worsened_predictor_stays_calibrated_exactly_and_gets_as_bad_as_one_likes(tiny):
    """At c = 1/2 = 1/(K-1) with three classes, where there is just enough room."""
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    world = World([Fraction(1)], [[half, quarter, quarter]])
    exits = Exits(world, Grouping([[0]]), world.p_y_given_x[None])
    assert confidence_reaches_bound(exits)
    worse = worsened(exits, tiny)
    assert worse[0].tolist() == [half, tiny, half - tiny]
    assert calibration_violation(world, worse, definition="confidence") == 0
    expected = -0.25 * (np.log(float(4 * tiny)) + np.log(float(4 * (half - tiny))))
    assert theory.excess_risk(world, worse)[0] == pytest.approx(expected)


def test_below_the_floor_no_class_can_be_left_without():
    world = World([Fraction(1)], [[Fraction(2, 5), Fraction(3, 10), Fraction(3, 10)]])
    exits = Exits(world, Grouping([[0]]), world.p_y_given_x[None])
    assert not confidence_reaches_bound(exits)
    worse = worsened(exits, Fraction(1, 10**40))
    assert sorted(worse[0].tolist()) == [Fraction(1, 5), Fraction(2, 5), Fraction(2, 5)]


@pytest.mark.parametrize("classes", [3, 4, 7])
def test_the_largest_excess_depends_on_epsilon_from_the_floor_on_only(classes):
    edge = 1 / (classes - 1)
    below = [largest_excess(edge - 0.01, classes, epsilon) for epsilon in (1e-9, 1e-90)]
    above = [largest_excess(edge + 0.01, classes, epsilon) for epsilon in (1e-9, 1e-90)]
    assert below[0] == below[1] <= -np.log(1 - (classes - 1) * (edge - 0.01))
    assert above[1] > 5 * above[0]


def test_the_product_misses_the_joint_probability_in_both_directions(by_hand):
    """All exits are compared with one label, so being wrong together is not independent."""
    half = Fraction(1, 2)
    world = World([Fraction(1)], [[half, half]])
    alike = np.array([[[Fraction(1), Fraction(0)]]] * 2)
    opposite = np.array([[[Fraction(1), Fraction(0)]], [[Fraction(0), Fraction(1)]]])
    for predictors, joint in ((alike, 1), (opposite, half)):
        exits = Exits(world, Grouping([[0], [0]]), predictors)
        assert by_hand.stops(exits, 0, "sampled") == [joint]
        assert by_hand.stops(exits, 0, "product") == [Fraction(3, 4)]
    for predictors, reverse in ((alike, True), (opposite, False)):
        exits = Exits(world, Grouping([[0], [0]]), predictors)
        assert not statements.product_at_most_joint(exits, reverse).holds


def test_calibrated_exits_that_do_not_refine_get_worse_with_depth(by_hand):
    exits = theory.growing_excess_risk()
    for m in range(2):
        assert by_hand.violation(exits, m, "exact") == 0
    assert not by_hand.refines(exits, 1, 0)
    assert not by_hand.refines(exits, 0, 1)
    means = [sum(by_hand.excesses(exits, m, "log")) / 3 for m in range(2)]
    assert means[0] == 0
    assert means[1] == pytest.approx(2 / 3 * np.log(2))


def test_a_network_calibrated_at_every_exit_can_be_the_worse_one(by_hand):
    pair = theory.calibrated_but_worse()
    for m in range(2):
        assert by_hand.violation(pair.calibrated, m, "exact") == 0
    assert by_hand.violation(pair.overconfident, 0, "exact") > 0
    assert by_hand.is_chain(pair.calibrated)
    fronts = {}
    for name in ("calibrated", "overconfident"):
        exits = getattr(pair, name)
        for m in range(2):  # they predict the same
            for one, two in zip(exits.predictors[m], pair.calibrated.predictors[m], strict=True):
                assert by_hand.first_largest(one) == by_hand.first_largest(two)
        fronts[name] = theory.frontier(exits, exits.predictors.max(-1), pair.costs)
    assert fronts["calibrated"] == [(1, Fraction(3, 5)), (2, Fraction(4, 5))]
    assert fronts["overconfident"] == [(1, Fraction(3, 5)), (Fraction(8, 5), Fraction(4, 5))]


def whole_draws(size):
    """Small integers that `exits_from` turns into worlds."""
    points, classes, exits = size

    def numbers(least, *shape):
        count = int(np.prod(shape))
        lists = st.lists(st.integers(least, 3), min_size=count, max_size=count)
        return lists.map(lambda values: np.array(values).reshape(shape))

    return st.builds(
        Draw,
        points=numbers(1, points).map(lambda a: a.astype(float)),
        classes=numbers(0, points, classes).map(lambda a: a.astype(float)),
        groups=numbers(0, exits, points).map(lambda a: a % points),
        picks=numbers(0, exits, points).map(lambda a: a % classes),
        noise=numbers(0, exits, points, classes).map(lambda a: a.astype(float)),
    )


@pytest.mark.parametrize(
    ("name", "definition", "variant"),
    [
        ("anytime-pointwise", "exact", "log loss"),
        ("canonical", "confidence", ""),
    ],
)
def test_hypothesis_finds_a_world_of_the_same_size_and_none_smaller(name, definition, variant):
    """An independent search and shrinker agrees with ours on where a claim first breaks."""
    (claim,) = [
        c
        for c in CLAIMS
        if (c.name, c.setting.definition, c.variant) == (name, definition, variant)
    ]
    ours = theory.check(claim, worlds=50).example
    size = (ours.world.num_points, ours.world.num_classes, ours.num_exits)

    def breaks(free):
        _, relation, valid = claim.test(free)
        return bool(valid) and np.isfinite(relation.gap).all() and relation.deviation > 1e-6

    settings = hypothesis.settings(max_examples=1000, database=None, deadline=None)
    found = hypothesis.find(whole_draws(size), breaks, settings=settings)
    _, relation, valid = claim.test(found.rational())
    assert valid
    assert relation.deviation > 1e-6
    for axis in range(3):
        smaller = list(size)
        smaller[axis] -= 1
        if smaller[axis] < claim.least[axis]:
            continue
        fewer = hypothesis.settings(max_examples=60, database=None, deadline=None)
        with pytest.raises(hypothesis.errors.NoSuchExample):
            hypothesis.find(whole_draws(tuple(smaller)), breaks, settings=fewer)


@pytest.mark.parametrize(
    ("left", "operator", "right", "deviation"),
    [
        ([1.0, 2.0], "==", [1.0, 2.0], 0.0),
        ([1.0, 2.0], "==", [1.0, 2.5], 0.5),
        ([1.0, 2.0], "<=", [1.5, 2.5], 0.0),
        ([1.0, 2.0], "<=", [0.25, 2.5], 0.75),
        ([1.0, 2.0], "<", [1.5, 2.5], 0.0),
        ([1.0, 2.0], "<", [1.5, 2.0], 1.0),
        ([1.0, 2.0], "!=", [1.0, 2.5], 0.0),
        ([1.0, 2.0], "!=", [1.0, 2.0], 1.0),
    ],
)
def test_deviation_measures_by_how_much_a_relation_is_violated(left, operator, right, deviation):
    relation = Relation(np.array(left), np.array(right), operator)
    assert relation.deviation == deviation
    assert relation.holds == (deviation == 0)


def test_rounding_is_not_held_against_a_statement_and_more_is():
    for gap, holds in ((1e-12, True), (1e-8, False)):
        assert Relation(np.array([1 + gap]), np.array([1.0]), "==").holds == holds
        assert Relation(np.array([1 + gap]), np.array([1.0]), "<=").holds == holds


def test_worlds_side_by_side_have_a_deviation_each():
    relation = Relation(
        np.array([[1.0, 2.0], [3.0, 3.0]]), np.array([[1.0, 1.0], [3.0, 3.0]]), "<="
    )
    assert relation.deviation.tolist() == [1.0, 0.0]
    assert relation.holds.tolist() == [False, True]


def test_fractions_lose_nothing_before_they_are_compared():
    tiny = Fraction(1, 10**30)
    one, more = np.array([Fraction(1)]), np.array([1 + tiny])
    assert Relation(more, one, "==").gap[0] == 1e-30


def test_an_undefined_side_does_not_hold():
    assert not Relation(np.array([np.nan]), np.array([0.0]), "==").holds
    assert not Relation(np.array([np.inf]), np.array([0.0]), "<=").holds


def test_an_unknown_operator_is_named():
    with pytest.raises(ConfigError, match="one of ==, <=, <, !=, got '>='"):
        Relation(np.array([1.0]), np.array([2.0]), ">=")


@pytest.mark.parametrize(
    "statement",
    [
        statements.later_exits_match_first,
        lambda exits: statements.later_exits_match_first(exits, "!="),
        statements.refinement_reduces_excess_risk,
        statements.anytime,
        lambda exits: statements.anytime(exits, pointwise=True),
        statements.strictly_anytime,
        lambda exits: statements.monotone_stopping(exits, "argmax"),
        lambda exits: statements.monotone_stopping(exits, "argmax", pointwise=True),
    ],
)
def test_a_single_exit_makes_no_statement_about_exits_true(statement):
    alone = Exits.calibrated(World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]), [[0, 0]])
    with pytest.raises(WorldError, match="needs at least two of them, got one"):
        statement(alone)


def test_a_relation_is_shown_where_its_sides_differ():
    shown = str(Relation(np.array([0.2, 0.5]), np.array([0.5, 0.5]), "!="))
    assert shown == "0.2 != 0.5 is true"


def test_a_relation_is_shown_where_it_is_violated_most():
    shown = str(Relation(np.array([0.1, 0.9, 0.5]), np.array([0.2, 0.3, 0.4]), "<="))
    assert shown == "0.9 <= 0.3 is false"
    exact = Relation(np.array([Fraction(1, 3)]), np.array([Fraction(1, 2)]), "<=")
    assert str(exact) == "1/3 <= 1/2 is true"


def test_later_exits_match_the_first_where_the_groups_are_the_same():
    world = World([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
    exits = Exits.calibrated(world, [[0, 1], [0, 1]])
    assert statements.later_exits_match_first(exits).holds
    assert not statements.later_exits_match_first(exits, "!=").holds


def test_a_swap_keeps_calibration_of_the_mean():
    exits = random_exits(seed=0, setting=Setting("mean", "swap"))
    assert statements.swap_keeps_calibration(exits, "mean").holds


@pytest.mark.parametrize(("kind", "holds"), [("chain", True), ("any", False)])
def test_only_a_refinement_reduces_the_excess_risk_by_information(kind, holds):
    exits = random_exits(1, Setting("exact", kind))
    assert statements.refinement_reduces_excess_risk(exits).holds == holds


def test_a_chain_is_anytime_over_groups_but_not_at_every_point():
    world = World([1 / 3] * 3, [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1]])
    assert statements.anytime(chain).holds
    assert not statements.anytime(chain, pointwise=True).holds


def test_a_split_of_points_that_are_alike_saves_no_risk():
    alike = World([0.5, 0.5], [[0.3, 0.7], [0.3, 0.7]])
    assert not statements.strictly_anytime(Exits.calibrated(alike, [[0, 0], [0, 1]])).holds


def test_risk_can_fall_without_refinement():
    world = World([1 / 3] * 3, [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    exits = Exits.calibrated(world, [[0, 1, 0], [0, 1, 1]])
    assert not statements.anytime_needs_refinement(exits).holds


def test_confidence_calibration_controls_the_zero_one_risk():
    exits = random_exits(seed=0, setting=Setting("confidence", "any"))
    assert statements.zero_one_risk_is_controlled(exits).holds


def test_stopping_is_monotone_over_groups_but_not_at_every_point():
    world = World([0.2, 0.4, 0.4], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    chain = Exits.calibrated(world, [[0, 0, 0], [0, 1, 1], [0, 1, 2]])
    assert statements.monotone_stopping(chain, "argmax").holds
    assert not statements.monotone_stopping(chain, "argmax", pointwise=True).holds


def test_stopping_can_become_more_probable_without_refinement():
    coins = World([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    coarser = Exits.calibrated(coins, [[0, 1], [0, 0], [0, 0]])
    assert not statements.monotone_needs_refinement(coarser, "sampled").holds


@pytest.mark.parametrize(("second", "reverse"), [([0.0, 1.0], False), ([1.0, 0.0], True)])
def test_the_product_over_exits_can_lie_on_either_side_of_the_joint(second, reverse):
    coin, one_group = World([1.0], [[0.5, 0.5]]), Grouping([[0], [0]])
    exits = Exits(coin, one_group, np.array([[[1.0, 0.0]], [second]]))
    assert not statements.product_at_most_joint(exits, reverse).holds


@pytest.mark.parametrize(("top", "holds"), [(0.6, True), (0.4, False)])
def test_log_loss_is_unbounded_above_the_bound_of_confidence_only(top, holds):
    world = World([1.0], [[top, 0.3, 0.7 - top]])
    assert statements.log_loss_is_unbounded(Exits.calibrated(world, [[0]])).holds == holds


def test_excess_risk_is_bounded_at_a_low_confidence():
    world = World([1.0], [[0.4, 0.0, 0.6]])
    exits = Exits(world, Grouping([[0]]), np.array([[[0.4, 0.4, 0.2]]]))
    assert statements.excess_is_bounded(exits).holds


def test_the_worst_predictor_takes_from_the_rival_class():
    exits = Exits.calibrated(World([1.0], [[0.6, 0.3, 0.1]]), [[0]])
    assert worsened(exits, epsilon=0.001) == pytest.approx(np.array([[0.6, 0.001, 0.399]]))


def test_the_worst_excess_at_a_point_jumps_with_the_confidence():
    """At 0.4, the other classes can take 0.4 each, so the rival keeps a floor of 0.2."""
    worst = [largest_excess(top, classes=3, epsilon=1e-9) for top in (0.4, 0.6)]
    assert worst == pytest.approx([0.035, 3.684], abs=5e-4)
