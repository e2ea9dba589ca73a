"""Thresholds by hand, and on samples that a formula makes; `test_pinned.py` holds more of them."""

from dataclasses import replace

import numpy as np
import pytest

from offramp.arrays import sigmoid
from offramp.registry import THRESHOLDS
from offramp.thresholds import exits_taken, geometric
from offramp.thresholds.geometric import shared_sweep
from offramp.thresholds.smooth import calibrated_chances, smooth_sweep
from offramp.thresholds.tuning import ScoredSamples, not_flattered, tune_points, worth_their_cost

COSTS = np.array([0.1, 0.4, 0.7, 1.0])
INF = float("inf")


@pytest.fixture(scope="module")
def waves():
    """Scores `[24, 4]`, and which of them are right."""
    number = np.arange(96.0).reshape(24, 4)
    scores = np.sin(number * 1.7) + 0.3 * np.arange(4)
    return scores.astype(np.float32), np.sin(number * 2.3 + 1) < scores - 0.2


def test_shared_thresholds_are_cut_between_the_scores_of_all_exits_but_the_last():
    scores = np.array([[0.0, 3.0, 9.0], [0.0, 1.0, 9.0]])
    found = shared_sweep(scores, scores > 0, np.array([0.2, 0.5, 1.0]), points=6)
    # All at exit 0; then from 0.5 on both at exit 1; from 0.75 on only the first one.
    assert found[:, 0].tolist() == [-INF, -INF, 0.5, 0.5, 2.0, INF]


def test_calibrated_chances(waves):
    scores, correct = waves
    found = calibrated_chances(sigmoid(scores), correct)
    assert found[0].tolist() == pytest.approx([0.50574097, 0.8944041, 0.64328583, 0.489745])
    certain = calibrated_chances([[0.0], [1.0], [1.0]], [[True]] * 3)
    assert np.isfinite(certain).all()


def test_operating_points_give_back_what_they_gained(waves):
    val = ScoredSamples(*waves, COSTS)
    points = tune_points(val, 0.5, "smooth", 5)
    assert points.budgets.tolist() == pytest.approx([0.1, 0.3125, 0.525, 0.7625, 1.0])
    assert (24 * points.accuracies).tolist() == pytest.approx([13, 21, 23, 21, 17])
    assert (24 * points.shares[1]).tolist() == pytest.approx([12, 7, 5, 0])
    honest = not_flattered(points, val, "smooth").accuracies
    assert honest.tolist() == pytest.approx([13 / 24, 0.74166667, 0.81597222, 0.81597222, 17 / 24])
    assert (points.full_accuracy, len(points)) == (0.5, 5)


def test_halves_of_val_keep_groups_whole_and_their_chances(waves, monkeypatch):
    given = []

    def spy(scores, correct, costs, points):
        given.append((scores, correct, costs))
        return smooth_sweep(scores, correct, costs, points)

    monkeypatch.setitem(THRESHOLDS, "smooth", spy)
    scores, correct = (np.repeat(part, 2, axis=0) for part in waves)
    costs, groups = np.tile(COSTS, (48, 1)), np.repeat(np.arange(24), 2)
    val = ScoredSamples(scores, correct, costs, sigmoid(scores), groups)
    not_flattered(tune_points(val, 0.5, "smooth", 5), val, "smooth")
    assert [len(part) for part, _, _ in given] == [48, 24, 24]
    for part, right, paid in given:
        assert np.array_equal(part[::2], part[1::2])
        assert right.dtype == np.float64  # chances, and not what is right
        assert paid.shape == part.shape


def test_a_single_exit_has_one_point_and_nothing_to_choose():
    val = ScoredSamples(np.zeros((5, 1)), np.ones((5, 1)) > 0, COSTS[-1:])
    points = tune_points(val, 1.0, "smooth", 7)
    assert (points.thresholds.shape, points.budgets.tolist()) == ((1, 1), [1.0])


def test_whole_numbers_are_scores_too():
    assert exits_taken([[3, 0], [1, 0]], [2.0, 0.0]).tolist() == [0, 1]


def test_an_infinite_q_sends_all_to_the_last_exit_and_a_tiny_one_to_the_first():
    scores = np.random.default_rng(0).random((6, 3))
    assert exits_taken(scores, geometric(scores, INF)).tolist() == [2] * 6
    assert exits_taken(scores, geometric(scores, 5e-324)).tolist() == [0] * 6


def test_an_accuracy_is_reached_at_the_least_cost_and_a_budget_by_the_best_of_equal_costs():
    scores = np.array([[0.9, 0.0], [0.8, 0.0], [0.7, 0.0], [0.6, 0.0]])
    correct = np.array([[True, True], [False, True], [True, False], [False, True]])
    costs = np.array([0.5, 1.0])
    thresholds = np.array([[0.65, -INF], [0.75, -INF], [0.85, -INF], [0.7, -INF]])
    points = ScoredSamples(scores, correct, costs).points_of(thresholds, full_accuracy=0.75)
    assert points.budgets.tolist() == [0.625, 0.625, 0.75, 0.875]
    assert points.accuracies.tolist() == [0.75, 0.75, 0.5, 0.75]
    assert points.thresholds[:, 0].tolist() == pytest.approx([0.65, 0.7, 0.75, 0.85])
    assert (points.for_budget(0.7), points.for_budget(0.8), points.for_budget(1)) == (0, 2, 3)
    assert (points.nearest(0.1), points.for_accuracy(0.0), points.for_accuracy(0.5)) == (0, 0, 0)
    dearer = points.priced(np.array([0.9, 0.6, 0.7, 0.5]))
    assert dearer.thresholds[:, 0].tolist() == pytest.approx([0.85, 0.7, 0.75, 0.65])
    assert dearer.accuracies.tolist() == [0.75, 0.75, 0.5, 0.75]
    assert dearer.for_accuracy(0.0) == 0
    better = ScoredSamples(scores, correct, costs).points_of(thresholds[[1, 2]], 1.0)
    assert (better.for_accuracy(0.25), better.for_accuracy(0.5)) == (1, 0)


@pytest.mark.parametrize(
    ("column", "threshold"),
    [
        ([3.0, 2, 2, 2], 2.5),  # of one, two and four samples, one is as near as can be
        ([3.0, 2, 2, 1], 2.5),  # one and three are as near: the fewer go
        ([3.0, 3, 3, 1], 2.0),
        ([4.0, 3, 2, 1], 2.5),
        ([2.0, 2, 2, 2], INF),
    ],
)
def test_half_of_four_samples_or_what_ties_leave_of_it(column, threshold):
    scores = np.array([column, [0.0] * 4]).T
    assert geometric(scores, 1.0).tolist() == [threshold, -INF]


def test_costs_may_be_whole_numbers(waves):
    whole = smooth_sweep(*waves, np.array([1, 4, 7, 10]), 5)
    assert np.array_equal(whole, smooth_sweep(*waves, 10 * COSTS, 5))


def test_a_point_goes_where_a_cheaper_one_is_clearly_better_on_the_same_samples():
    """Of 100 samples, the last exit loses so many that the first gets right, and gains others."""
    one_each = np.array([[-1.0, -1.0], [1.0, -1.0]])

    def kept(lost, gained, groups=None):
        correct = np.zeros((100, 2), dtype=bool)
        correct[:lost, 0] = correct[50 : 50 + gained, 1] = True
        val = ScoredSamples(np.zeros((100, 2)), correct, np.array([0.5, 1.0]), groups=groups)
        return len(worth_their_cost(val.points_of(one_each, 0.0), val))

    assert [kept(lost, 0) for lost in (0, 2, 4, 8)] == [2, 2, 2, 1]
    assert [kept(20, gained) for gained in (20, 15, 10, 5)] == [2, 2, 2, 1]
    assert kept(0, 20) == 2
    assert kept(8, 0, groups=np.arange(100) // 50) == 2  # two groups prove nothing
    assert kept(8, 0, groups=2 * np.arange(100)) == 1  # of some of the groups
    unlabelled = ScoredSamples(np.zeros((9, 2)), None, np.array([0.5, 1.0]))
    assert len(worth_their_cost(unlabelled.points_of(one_each, 0.0), unlabelled)) == 2


def test_the_last_exit_is_no_source_of_chances_where_an_earlier_one_is_clearly_better():
    rng = np.random.default_rng(0)
    scores, chances = rng.normal(size=(2, 400, 3))
    costs, chances = np.array([0.2, 0.6, 1.0]), 1 / (1 + np.exp(-chances))
    for accuracy, same in ((0.5, True), (0.9, False)):
        correct = rng.random((400, 3)) < [0.3, accuracy, 0.5]
        known = ScoredSamples(scores, correct, costs, chances)
        by_labels = replace(known, chances=None).choose("smooth", 11)
        assert np.array_equal(known.choose("smooth", 11), by_labels) != same
