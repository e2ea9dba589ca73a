"""Worlds, groupings and predictors: what they accept, and what they compute."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.errors import ConfigError, OfframpError
from offramp_paper.theory import (
    Exits,
    Grouping,
    World,
    calibrated,
    calibration_violation,
    confidence_calibrated,
    group_mean,
    is_calibrated,
    mean_calibrated,
)
from offramp_paper.theory.worlds import WorldError, as_numbers, modal_class

HALF = Fraction(1, 2)
labels = st.lists(st.integers(0, 3), min_size=4, max_size=4).map(Grouping)


def coin_and_certain():
    """A coin flip, and a point whose class is certain."""
    return World([HALF, HALF], [[HALF, HALF], [1, 0]])


@pytest.mark.parametrize(
    ("p_x", "table", "message"),
    [
        ([0.5, 0.6], [[1, 0], [0, 1]], r"`p_x` must sum to 1, got 1\.1"),
        ([0.5, 0.5], [[1, 0], [0.5, 0.6]], r"`p_y_given_x` must sum to 1, got 1\.1"),
        ([1.0, 0.0], [[1, 0], [0, 1]], r"`p_x` must be positive everywhere, got 0\.0: leave out"),
        (
            [1.0],
            [[1, 0], [0, 1]],
            r"\[N\] and `p_y_given_x` shape \[N, K\], got \[1\] and \[2, 2\]",
        ),
        ([1.0], [[1.5, -0.5]], r"must hold probabilities of at least 0, got -0\.5"),
        ([1.0], [[float("nan"), 0.5]], "must hold probabilities"),
        ([Fraction(1, 3)] * 2, [[1, 0], [0, 1]], "`p_x` must sum to 1, got 2/3"),
    ],
)
def test_an_invalid_world_is_refused(p_x, table, message):
    with pytest.raises(WorldError, match=message):
        World(p_x, table)


def test_errors_of_worlds_are_errors_of_users():
    assert issubclass(WorldError, OfframpError)
    assert issubclass(WorldError, ValueError)


def test_one_fraction_makes_a_world_rational():
    world = World([HALF, HALF], [[0.5, 0.5], [1.0, 0.0]])
    p_y = world.mean(world.p_y_given_x)
    assert p_y.tolist() == [Fraction(3, 4), Fraction(1, 4)]
    assert all(type(value) is Fraction for value in p_y)


def test_floats_among_fractions_that_miss_one_by_rounding_are_explained():
    with pytest.raises(WorldError, match=r"0\.1 is not 1/10; write Fraction\(1, 10\)"):
        World([Fraction(1, 10), 0.9], [[1, 0], [0, 1]])


def test_means_of_several_exits_need_a_dimension_for_them():
    world = coin_and_certain()
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])  # three exits, two points
    assert world.per_exit().mean(values).tolist() == [1.5, 3.5, 5.5]
    with pytest.raises(WorldError, match=r"\[2\] or \[2, K\], got \[3, 2\]; .*per_exit\(\)\.mean"):
        world.mean(values)


def test_groupings_of_another_number_of_points_are_refused():
    world = coin_and_certain()
    with pytest.raises(WorldError, match="must have the world's 2 points, got 3"):
        calibrated(world, Grouping([0, 0, 1]))
    with pytest.raises(WorldError, match="must have the world's 2 points, got 3"):
        Exits.calibrated(world, [[0, 0, 1], [0, 1, 1]])
    with pytest.raises(WorldError, match="`labels` must have the same length at every exit"):
        Exits.calibrated(world, [[0, 1], [0]])


def test_groups_are_those_of_a_single_partition():
    several = Grouping([[0, 1], [0, 0]])
    with pytest.raises(WorldError, match=r"labels \[N\], got \[2, 2\]: select one"):
        several.groups  # noqa: B018
    assert several.exit(1).groups == [[0, 1]]


@pytest.mark.parametrize("bad", [[0.5, 1.0], [-1, 0], 3])
def test_labels_that_name_no_groups_are_refused(bad):
    with pytest.raises(WorldError, match="integers of at least 0"):
        Grouping(bad)


def test_groupings_of_different_points_do_not_compare():
    with pytest.raises(WorldError, match="have the same points, got 2 and 3"):
        Grouping([0, 0]).refines(Grouping([0, 0, 0]))


@given(labels, labels)
def test_join_is_the_coarsest_grouping_that_refines_both(one, two):
    both = one.join(two)
    assert both.refines(one)
    assert both.refines(two)
    assert both == two.join(one)
    # Two groups of the join that were merged would hide something from one of the two.
    for first in both.groups:
        for second in both.groups:
            if first != second:
                merged = both.labels.copy()
                merged[second] = merged[first[0]]
                merged = Grouping(merged)
                assert not (merged.refines(one) and merged.refines(two))


@given(labels, labels, labels)
def test_refinement_is_a_partial_order(one, two, three):
    assert one.refines(one)
    if one.refines(two) and two.refines(one):
        assert one == two
        assert hash(one) == hash(two)
    if one.refines(two) and two.refines(three):
        assert one.refines(three)


@given(labels)
def test_points_refine_everything_and_everything_refines_the_whole(grouping):
    assert Grouping([0, 1, 2, 3]).refines(grouping)
    assert grouping.refines(Grouping([0, 0, 0, 0]))


@given(labels)
def test_group_means_are_means_over_the_groups(grouping):
    p_x, values = np.array([0.1, 0.2, 0.3, 0.4]), np.array([3.0, 1.0, 4.0, 1.5])
    found = group_mean(p_x, grouping, values)
    for group in grouping.groups:
        mean = sum(p_x[x] * values[x] for x in group) / sum(p_x[x] for x in group)
        assert found[group] == pytest.approx(mean)


def test_an_infinite_value_counts_for_its_own_group_only():
    means = group_mean(np.full(3, 1 / 3), Grouping([0, 0, 1]), np.array([np.inf, 1.0, 2.0]))
    assert means.tolist() == [np.inf, np.inf, 2.0]


def test_the_exact_definition_allows_one_predictor_only():
    world, whole = coin_and_certain(), Grouping([0, 0])
    predictor = calibrated(world, whole)
    assert predictor.tolist() == [[Fraction(3, 4), Fraction(1, 4)]] * 2
    moved = predictor.copy()
    moved[0] = [Fraction(2, 3), Fraction(1, 3)]
    assert calibration_violation(world, moved, whole) == Fraction(1, 12)
    assert not is_calibrated(world, moved, whole)


def test_a_mean_calibrated_predictor_varies_and_is_right_on_average():
    world, whole = coin_and_certain(), Grouping([0, 0])
    noise = np.array([[Fraction(3, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4)]])
    predictor = mean_calibrated(world, whole, noise)
    assert predictor[0].tolist() != predictor[1].tolist()
    assert is_calibrated(world, predictor, whole, "mean")
    assert not is_calibrated(world, predictor, whole, "exact")


def test_a_confidence_calibrated_predictor_may_answer_a_worse_class():
    third = Fraction(1, 10)
    world = World([Fraction(1)], [[5 * third, 4 * third, third]])
    ones = np.array([[Fraction(1)] * 3])
    predictor = confidence_calibrated(world, Grouping([0]), np.array([1]), ones)
    assert predictor[0].max() == predictor[0, 1] == Fraction(2, 5)
    assert calibration_violation(world, predictor, definition="confidence") == 0


def test_an_accuracy_that_no_confidence_can_be_falls_back_to_the_best_class():
    world = World([1.0], [[0.7, 0.2, 0.1]])
    predictor = confidence_calibrated(world, Grouping([0]), np.array([2]), np.ones((1, 3)))
    assert predictor[0].argmax() == 0
    assert predictor[0, 0] == pytest.approx(0.7)


@given(st.integers(0, 10_000), st.sampled_from(["exact", "mean"]))
def test_violation_is_the_largest_difference_at_any_point(seed, definition):
    rng = np.random.default_rng(seed)
    world = World(rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(3), 4))
    predictor, grouping = rng.dirichlet(np.ones(3), 4), Grouping(rng.integers(0, 3, 4))
    worst = 0.0
    for group in grouping.groups:
        weight = sum(world.p_x[x] for x in group)
        for y in range(3):
            true = sum(world.p_x[x] * world.p_y_given_x[x, y] for x in group) / weight
            mean = sum(world.p_x[x] * predictor[x, y] for x in group) / weight
            predicted = [mean] if definition == "mean" else [predictor[x, y] for x in group]
            worst = max([worst, *(abs(value - true) for value in predicted)])
    found = calibration_violation(world, predictor, grouping, definition)
    assert found == pytest.approx(worst)


def test_unknown_definitions_and_wrong_groupings_are_named():
    world = coin_and_certain()
    with pytest.raises(ConfigError, match="one of exact, mean, confidence, got 'canonical'"):
        calibration_violation(world, world.p_y_given_x, Grouping([0, 1]), "canonical")
    with pytest.raises(ConfigError, match="'confidence' groups by the predictor itself"):
        calibration_violation(world, world.p_y_given_x, Grouping([0, 1]), "confidence")
    with pytest.raises(ConfigError, match="'mean' needs a grouping"):
        calibration_violation(world, world.p_y_given_x, definition="mean")
    with pytest.raises(WorldError, match=r"must have shape \[2, 2\], got \[3, 2\]"):
        calibration_violation(world, np.full((3, 2), 0.5), Grouping([0, 1]))


def test_exits_that_do_not_fit_their_world_are_refused():
    world = coin_and_certain()
    with pytest.raises(WorldError, match=r"labels \[M, 2\] and predictors \[M, 2, 2\], got"):
        Exits(world, Grouping([0, 1]), world.p_y_given_x)
    with pytest.raises(WorldError, match="`predictors` must sum to 1"):
        Exits(world, Grouping([[0, 1]]), np.full((1, 2, 2), 0.4))


def test_worlds_side_by_side_give_what_each_gives_alone():
    rng = np.random.default_rng(0)
    p_x, table = rng.dirichlet(np.ones(3), 5), rng.dirichlet(np.ones(2), (5, 3))
    groups = rng.integers(0, 3, (5, 3))
    together = calibrated(World(p_x, table), Grouping(groups))
    for index in range(5):
        alone = calibrated(World(p_x[index], table[index]), Grouping(groups[index]))
        np.testing.assert_allclose(together[index], alone)


def test_numbers_are_floats_unless_one_of_them_is_a_fraction():
    assert as_numbers([1, 2]).dtype == np.float64
    mixed = as_numbers([Fraction(1, 3), 1])
    assert all(isinstance(value, Fraction) for value in mixed)


def test_a_tie_up_to_rounding_goes_to_the_first_class():
    assert modal_class(np.array([[0.2, 0.4, 0.4 + 1e-16]])).tolist() == [1]
