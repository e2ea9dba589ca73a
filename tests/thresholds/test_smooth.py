"""Smooth thresholds: for any score, from a few hundred samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp import MaxProbability, Policy
from offramp.arrays import sigmoid
from offramp.errors import LedgerError
from offramp.registry import THRESHOLDS
from offramp.thresholds import exits_taken
from offramp.thresholds.smooth import calibrated_chances, smooth_sweep
from offramp.thresholds.tuning import measure, tune_points
from offramp.zoo import cifar100

COSTS = np.array([0.1, 0.4, 0.7, 1.0])


def world(samples, seed=0):
    """Scores are log-odds of being right here; the later an exit, the more it gets right."""
    rng = np.random.default_rng(seed)
    ease, own = rng.normal(size=(samples, 1)), rng.normal(size=(samples, 4))
    scores = (ease + 0.5 * own + np.arange(4) - 1.5).astype(np.float32)
    return scores, rng.random((samples, 4)) < sigmoid(scores)


def value(thresholds, scores, correct, price=0.4):
    """The best accuracy - price x cost that a row reaches."""
    cost, accuracy, _ = measure(exits_taken(scores, thresholds), correct, COSTS)
    return float((accuracy - price * cost).max())


def test_there_is_a_point_for_every_cost():
    scores, correct = world(500)
    thresholds = smooth_sweep(scores, correct, COSTS, 51)
    cost, _, _ = measure(exits_taken(scores, thresholds), correct, COSTS)
    assert cost.min() == pytest.approx(0.1) and cost.max() == pytest.approx(1.0)
    assert np.diff(np.sort(cost)).max() < 0.05


@pytest.mark.real
def test_from_few_samples_they_are_better_than_geometric_ones_on_new_ones(real_splits):
    shipped = real_splits
    policy = Policy(MaxProbability()).fit_seeds(shipped["held_out"], [0])[0]
    val, test = policy.replay(shipped["val"], "val"), policy.replay(shipped["test"])
    found = dict.fromkeys(("geometric", "smooth"), 0.0)
    for start in range(0, 1500, 150):
        few = val.take(np.arange(start, start + 150))
        for name in found:
            points = tune_points(few.scored, 0.0, name, 101)
            curve = replace(test, thresholds=points.thresholds).curve
            found[name] += sum(curve.at(budget).accuracy for budget in (0.25, 0.5, 0.75)) / 30
    assert found["smooth"] > found["geometric"] + 0.003


def test_chances_of_being_right_serve_instead_of_labels():
    new, (scores, correct) = world(20_000, seed=99), world(300)
    hard = value(smooth_sweep(scores, correct, COSTS, 101), *new)
    soft = value(smooth_sweep(scores, sigmoid(scores), COSTS, 101), *new)
    assert soft > hard - 0.002


@given(st.integers(0, 1000), st.integers(0, 3))
def test_tied_scores_stay_together(seed, decimals):
    scores, correct = world(60, seed)
    thresholds = smooth_sweep(scores.round(decimals), correct, COSTS, 21)
    for exit_index in range(3):
        column = scores[:, exit_index].round(decimals).astype(np.float64)
        assert not np.isin(thresholds[:, exit_index], column).any()
    assert not np.isnan(thresholds).any()


@pytest.mark.parametrize("slope", [0.3, 1.0, 4.0])
def test_chances_that_are_too_sure_or_not_sure_enough_are_calibrated(slope):
    scores, correct = world(4000)
    found = calibrated_chances(sigmoid(slope * scores), correct)
    assert np.allclose(found, sigmoid(scores.astype(np.float64)), atol=0.05)


def test_a_policy_takes_the_chances_that_its_last_exit_gives(monkeypatch):
    given_to = []
    monkeypatch.setitem(
        THRESHOLDS,
        "smooth",
        lambda scores, correct, costs, points: (
            given_to.append(correct) or smooth_sweep(scores, correct, costs, points)
        ),
    )
    shipped = cifar100()
    policy = Policy(MaxProbability()).fit(shipped["held_out"])
    policy.tune(shipped["val"].take(np.arange(200)), "smooth")
    assert given_to[0].dtype == np.float64 and len(given_to[0]) == 200
    assert 0.48 < policy.points.budgets[policy.at(budget=0.5).selected] <= 0.5


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(LedgerError, match=r"`costs` .*, got \[5, 4\], \[5, 3\] and \[4\]"):
        smooth_sweep(np.zeros((5, 4)), np.zeros((5, 3)), COSTS, 5)
