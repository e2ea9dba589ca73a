"""Random worlds fit their setting, checked with loops, and the smallest ones are smallest."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.errors import ConfigError
from offramp_paper import theory
from offramp_paper.theory import Exits, Setting, World, random_exits
from offramp_paper.theory.calibration import DEFINITIONS
from offramp_paper.theory.generate import STRUCTURES, Draw, Size, exits_from
from offramp_paper.theory.risks import READINGS

every_setting = pytest.mark.parametrize(
    "setting",
    list(itertools.starmap(Setting, itertools.product(DEFINITIONS, STRUCTURES))),
    ids=str,
)


def some_exits(setting, seed):
    """A few worlds of a setting."""
    free = Draw.random(np.random.default_rng(seed), 40, Size(4, 3, 3))
    exits, valid = exits_from(free, setting)
    return [exits.take(index) for index in np.flatnonzero(valid)[:4]]


@every_setting
def test_drawn_exits_are_calibrated_by_their_definition(setting, by_hand):
    found = [*some_exits(setting, 0), *some_exits(Setting(setting.definition, "any"), 1)]
    assert found
    for exits in found:
        count = 1 if "swap" in setting.structure else exits.num_exits
        for m in range(count):
            if setting.definition == "confidence":
                violation = theory.calibration_violation(
                    exits.world, exits.predictors[m], definition="confidence"
                )
                assert violation <= 1e-9
            else:
                assert by_hand.violation(exits, m, setting.definition) <= 1e-9


@every_setting
def test_drawn_groupings_have_their_structure(setting, by_hand):
    for exits in some_exits(setting, 2):
        groups = [by_hand.exit_groups(exits, m) for m in range(exits.num_exits)]
        if "chain" in setting.structure:
            assert by_hand.is_chain(exits)
        if setting.structure == "strict chain":
            assert len(groups[0]) < len(groups[1]) < len(groups[2])
        if setting.structure == "one":
            assert groups[0] == groups[1] == groups[2]
        if setting.structure == "points" and setting.definition != "confidence":
            assert groups[0] == [[x] for x in range(4)]
        if "swap" in setting.structure:
            assert groups[0][0][:2] == [0, 1]
            np.testing.assert_array_equal(exits.predictors[1, 0], exits.predictors[0, 1])
            np.testing.assert_array_equal(exits.predictors[1, 2:], exits.predictors[0, 2:])


@every_setting
def test_floats_and_fractions_build_the_same_exits(setting):
    free = Draw.random(np.random.default_rng(7), 60, Size(3, 3, 2), largest=4)
    exits, valid = exits_from(free, setting)
    for index in np.flatnonzero(valid)[:3]:
        exact, fits = exits_from(free.take(int(index)).rational(), setting)
        assert fits
        assert all(type(value) is Fraction for value in exact.predictors.flat)
        np.testing.assert_allclose(exact.predictors.astype(float), exits.predictors[index])
        assert theory.Grouping(exits.grouping.labels[index]) == exact.grouping


def test_the_same_seed_gives_the_same_world():
    one, two, other = random_exits(3), random_exits(3), random_exits(4)
    np.testing.assert_array_equal(one.predictors, two.predictors)
    assert not np.array_equal(one.predictors, other.predictors)


def test_random_chains_refine_in_steps_that_stop_short_of_single_points():
    """Otherwise the refinement theorem would only be tried with the truth as the later exit."""
    free = Draw.random(np.random.default_rng(0), 500, Size(6, 2, 4))
    exits, _ = exits_from(free, Setting("exact", "chain"))
    same = exits.grouping.same
    finer = (same[:, 1:] != same[:, :-1]).any((-2, -1))
    grouped = same[:, 1:].sum((-2, -1)) > 6
    assert (finer & grouped).any(-1).mean() > 0.5


def test_weights_that_are_all_zero_mean_uniform_ones():
    free = Draw(
        points=np.ones(2),
        classes=np.zeros((2, 3)),
        groups=np.zeros((2, 2), dtype=int),
        picks=np.zeros((2, 2), dtype=int),
        noise=np.zeros((2, 2, 3)),
    )
    for definition in DEFINITIONS:
        exits, valid = exits_from(free, Setting(definition, "one"))
        assert valid
        np.testing.assert_allclose(exits.predictors, 1 / 3)


def test_a_point_without_weight_fits_nothing_and_harms_no_neighbour():
    free = Draw.random(np.random.default_rng(0), 3, Size(3, 2, 2))
    free.points[1, 0] = 0
    exits, valid = exits_from(free, Setting("exact", "chain"))
    assert valid.tolist() == [True, False, True]
    alone, _ = exits_from(free.take(2), Setting("exact", "chain"))
    np.testing.assert_allclose(exits.predictors[2], alone.predictors)


def test_unknown_definitions_and_structures_are_named():
    with pytest.raises(ConfigError, match="one of exact, mean, confidence, got 'perfect'"):
        Setting("perfect", "any")
    with pytest.raises(ConfigError, match=r"one of any, chain, .*, uneven swap, got 'tree'"):
        Setting("exact", "tree")


WEIGHTS = [(a, b) for a in range(1, 4) for b in range(1, 4)]
QUARTERS = [Fraction(k, 4) for k in range(5)]


def all_two_point_worlds():
    """Two points, two classes, weights 1 to 3 and probabilities in quarters."""
    for (a, b), p, q in itertools.product(WEIGHTS, QUARTERS, QUARTERS):
        yield World([Fraction(a, a + b), Fraction(b, a + b)], [[p, 1 - p], [q, 1 - q]])


def test_no_chain_of_two_points_is_worse_at_a_point():
    """Why the smallest world of `anytime-pointwise` has three: the finer exit is the truth."""
    for world in all_two_point_worlds():
        chain = Exits.calibrated(world, [[0, 0], [0, 1]])
        assert theory.statements.anytime(chain, pointwise=True).holds


def test_no_chain_of_two_points_stops_less_at_a_point_when_the_classes_are_argmax():
    """Of three exits on two points, two neighbours are alike, so none can flip and return."""
    for world in all_two_point_worlds():
        for labels in ([[0, 0], [0, 0], [0, 1]], [[0, 0], [0, 1], [0, 1]]):
            chain = Exits.calibrated(world, labels)
            assert theory.statements.monotone_stopping(chain, "argmax", pointwise=True).holds


@pytest.mark.parametrize("reading", READINGS)
def test_two_exits_never_show_a_failure_of_monotone_stopping(reading):
    """The second one always stops. So the smallest counterexamples have three."""
    for seed in range(30):
        exits = random_exits(seed, Setting("mean", "any"), (3, 3, 2))
        assert theory.statements.monotone_stopping(exits, reading).holds


@given(st.lists(st.integers(1, 5), min_size=2, max_size=2))
def test_with_two_classes_and_one_point_confidence_calibration_leaves_no_choice(weights):
    """Why its smallest counterexamples have three classes: the confidence fixes both."""
    total = sum(weights)
    probs = [Fraction(weight, total) for weight in weights]
    world = World([Fraction(1)], [probs])
    many = [[Fraction(k, 60), 1 - Fraction(k, 60)] for k in range(61)]
    fine = [
        predicted
        for predicted in many
        if theory.calibration_violation(world, np.array([predicted]), definition="confidence") == 0
    ]
    assert [predicted for predicted in fine if max(predicted) != max(probs)] == []
    assert all(predicted == probs for predicted in fine)


def test_with_one_point_mean_calibration_is_exact_calibration():
    """Why its smallest counterexamples have two points."""
    for seed in range(20):
        exits = random_exits(seed, Setting("mean", "chain"), (1, 3, 3))
        expected = np.broadcast_to(exits.world.p_y_given_x, exits.predictors.shape)
        np.testing.assert_allclose(exits.predictors, expected)
