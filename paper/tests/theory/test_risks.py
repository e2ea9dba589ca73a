"""Risks, information and stopping probabilities, against sums written out."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.errors import ConfigError
from offramp.targets import stop_target
from offramp_paper.theory import (
    Exits,
    Grouping,
    World,
    bayes_risk,
    calibrated,
    conditional_risk,
    entropy,
    excess_risk,
    frontier,
    group_mean,
    mutual_information,
    random_exits,
    stopping_probability,
)
from offramp_paper.theory.risks import READINGS
from offramp_paper.theory.worlds import WorldError

seeds = st.integers(0, 100_000)


def random_world(seed, points=4, classes=3):
    rng = np.random.default_rng(seed)
    world = World(rng.dirichlet(np.ones(points)), rng.dirichlet(np.ones(classes), points))
    return world, rng.dirichlet(np.ones(classes), (3, points)), rng


@given(seeds)
def test_excess_risk_is_the_divergence_from_the_truth(seed):
    world, predictors, _ = random_world(seed)
    found = excess_risk(world, predictors[0])
    for x in range(4):
        p, f = world.p_y_given_x[x], predictors[0, x]
        assert found[x] == pytest.approx(float((p * np.log(p / f)).sum()), abs=1e-12)
    assert (found >= -1e-12).all()


@given(seeds)
def test_zero_one_excess_is_what_the_best_class_would_add(seed):
    world, predictors, _ = random_world(seed)
    found = excess_risk(world, predictors[0], "zero-one")
    for x in range(4):
        p = world.p_y_given_x[x]
        assert found[x] == pytest.approx(p.max() - p[predictors[0, x].argmax()])


def test_a_class_that_occurs_and_has_no_probability_costs_infinitely_much():
    world = World([0.5, 0.5], [[0.5, 0.5], [1.0, 0.0]])
    certain = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert conditional_risk(world, certain).tolist() == [np.inf, 0.0]
    means = group_mean(world.p_x, Grouping([0, 1]), excess_risk(world, certain))
    assert means.tolist() == [np.inf, 0.0]


def test_the_bayes_log_risk_is_the_entropy():
    world, _, _ = random_world(3)
    np.testing.assert_allclose(bayes_risk(world), entropy(world.p_y_given_x))


@given(seeds)
def test_mutual_information_is_that_of_the_joint_table(seed):
    world, _, rng = random_world(seed)
    given_, about = Grouping(rng.integers(0, 2, 4)), Grouping(rng.integers(0, 3, 4))
    found = mutual_information(world, given_, about)
    for group in given_.groups:
        weight = sum(world.p_x[x] for x in group)
        joint = {}
        for x in group:
            for y in range(3):
                key = (about.labels[x], y)
                share = world.p_x[x] / weight * world.p_y_given_x[x, y]
                joint[key] = joint.get(key, 0) + share
        rows, columns = {}, {}
        for (u, y), share in joint.items():
            rows[u], columns[y] = rows.get(u, 0) + share, columns.get(y, 0) + share
        expected = sum(
            share * math.log(share / (rows[u] * columns[y])) for (u, y), share in joint.items()
        )
        assert found[group] == pytest.approx(expected, abs=1e-12)


@given(seeds)
def test_the_chain_rule_of_information_holds(seed):
    world, _, rng = random_world(seed)
    coarse = Grouping(rng.integers(0, 2, 4))
    fine = coarse.join(Grouping(rng.integers(0, 2, 4)))
    whole = world.mean(mutual_information(world, coarse))
    parts = mutual_information(world, coarse, fine) + mutual_information(world, fine)
    assert whole == pytest.approx(world.mean(parts), abs=1e-12)


def test_group_entropy_is_that_of_the_mixed_classes():
    world = World([0.25, 0.75], [[1.0, 0.0], [0.0, 1.0]])
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy(calibrated(world, Grouping([0, 0]))) == pytest.approx([expected] * 2)


def test_an_unknown_loss_and_an_unknown_reading_are_named():
    world, predictors, _ = random_world(0)
    with pytest.raises(ConfigError, match="`loss` must be one of log, zero-one, got 'brier'"):
        excess_risk(world, predictors[0], "brier")
    with pytest.raises(ConfigError, match="one of product, sampled, argmax, got 'mode'"):
        stopping_probability(world, predictors, "mode")
    with pytest.raises(WorldError, match=r"\[M, 4, 3\], got \[4, 3\]"):
        stopping_probability(world, predictors[0])


def test_a_predictor_may_be_nested_lists_and_must_fit_its_world():
    coin = World([1.0], [[0.5, 0.5]])
    assert excess_risk(coin, [[0.5, 0.5]]).tolist() == [0.0]
    for bad, message in (
        ([[0.5, 0.3, 0.2]], r"must have shape \[1, 2\], got \[1, 3\]"),
        ([[0.5, 0.6]], "`predictor` must sum to 1"),
    ):
        with pytest.raises(WorldError, match=message):
            excess_risk(coin, bad)


@pytest.mark.parametrize("reading", READINGS)
@given(seed=seeds)
def test_stopping_probability_is_the_sum_over_all_outcomes(seed, reading, by_hand):
    world, predictors, _ = random_world(seed, points=2)
    found = stopping_probability(world, predictors, reading)
    for m in range(3):
        for x in range(2):
            expected = by_hand.stop(world, predictors, m, x, reading)
            assert found[m, x] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("reading", READINGS)
def test_rational_worlds_give_rational_stopping_probabilities(reading, by_hand):
    third = Fraction(1, 3)
    world = World([Fraction(1)], [[2 * third, third]])
    predictors = np.array([[[third, 2 * third]], [[2 * third, third]]])
    found = stopping_probability(world, predictors, reading)
    for m in range(2):
        assert found[m, 0] == by_hand.stop(world, predictors, m, 0, reading)
        assert isinstance(found[m, 0], Fraction)


@given(seeds)
def test_the_argmax_reading_is_the_mean_of_the_stop_target(seed):
    """P(stop|x) is the expectation of the library's own target over the labels."""
    world, predictors, _ = random_world(seed)
    predictions = predictors.argmax(-1).T  # [N, M]
    found = stopping_probability(world, predictors, "argmax")
    expected = np.zeros_like(found)
    for label in range(3):
        target = stop_target(predictions, np.full(4, label))
        expected += (target * world.p_y_given_x[:, label, None]).T
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_ties_go_to_the_first_class_in_floats_and_fractions_alike():
    floats = np.array([[[1 / 3, 1 / 3, 1 - 2 / 3]]])
    third = Fraction(1, 3)
    exact = np.array([[[third, third, third]]])
    world = World([1.0], [[0.2, 0.3, 0.5]])
    rational = World([Fraction(1)], [[Fraction(1, 5), Fraction(3, 10), Fraction(1, 2)]])
    one = excess_risk(world, floats[0], "zero-one")
    two = excess_risk(rational, exact[0], "zero-one")
    assert one[0] == pytest.approx(0.3)
    assert two[0] == Fraction(3, 10)


@given(seeds)
def test_the_frontier_is_what_no_thresholds_beat(seed):
    exits = random_exits(seed, size=(3, 2, 2))
    rng = np.random.default_rng(seed)
    scores, costs = rng.random((2, 3)), [1.0, 3.0]
    best = frontier(exits, scores, costs)
    right = 1 - conditional_risk(exits.world.per_exit(), exits.predictors, "zero-one")
    for threshold in [*scores[0], np.inf]:
        late = scores[0] < threshold
        cost = float((exits.world.p_x * np.where(late, 3.0, 1.0)).sum())
        accuracy = float((exits.world.p_x * np.where(late, right[1], right[0])).sum())
        beaten = [p for p in best if p.cost <= cost + 1e-12 and p.accuracy >= accuracy - 1e-12]
        assert beaten
    assert best == sorted(best)
    assert best[0].cost == pytest.approx(1)


def test_a_frontier_needs_scores_and_costs_of_its_exits():
    exits = random_exits(0, size=(3, 2, 2))
    with pytest.raises(WorldError, match=r"\[2, 3\] and `costs` \[2\], got \[3, 2\] and \[1\]"):
        frontier(exits, np.zeros((3, 2)), [1])


def test_exits_of_a_batch_are_those_of_its_worlds():
    exits = random_exits(5)
    batch = Exits(
        World(exits.world.p_x[None], exits.world.p_y_given_x[None]),
        Grouping(exits.grouping.labels[None]),
        exits.predictors[None],
    )
    assert batch.is_chain.shape == (1,)
    np.testing.assert_array_equal(batch.take(0).predictors, exits.predictors)
