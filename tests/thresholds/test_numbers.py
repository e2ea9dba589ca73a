"""Numbers that stay as they are from version to version, on samples that a formula makes."""

import pytest
import torch

from offramp.registry import THRESHOLDS
from offramp.thresholds import exits_taken, geometric
from offramp.thresholds.geometric import geometric_sweep, shared_sweep
from offramp.thresholds.smooth import calibrated_chances, smooth_sweep
from offramp.thresholds.tuning import ScoredSamples, not_flattered, tune_points

COSTS = torch.tensor([0.1, 0.4, 0.7, 1.0], dtype=torch.float64)
INF = float("inf")


@pytest.fixture(scope="module")
def waves():
    """Scores `[24, 4]`, and which of them are right."""
    number = torch.arange(96, dtype=torch.float64).view(24, 4)
    scores = (number * 1.7).sin() + 0.3 * torch.arange(4)
    return scores.float(), (number * 2.3 + 1).sin() < scores - 0.2


EXPECTED = {
    smooth_sweep: [
        [-INF, -INF, -INF],
        [0.02034663, 0.32741627, 0.57989837],
        [0.70552024, 0.97532725, 1.10826862],
        [0.89718392, 1.17215598, 1.46356064],
        [INF, INF, INF],
    ],
    geometric_sweep: [
        [-INF, INF, INF],
        [-0.04065955, 0.32741627, 1.39547497],
        [0.70552024, 0.97532725, 1.31293476],
        [0.95496079, 1.17215598, 1.31293476],
        [INF, INF, INF],
    ],
    shared_sweep: [[end] * 3 for end in (-INF, 0.08125174, 0.83407734, 1.12164241, INF)],
}


@pytest.mark.parametrize("sweep", EXPECTED, ids=lambda sweep: sweep.__name__)
def test_a_sweep_gives_the_same_thresholds_as_ever(sweep, waves):
    found = sweep(*waves, COSTS, 5)
    assert found.dtype == torch.float64
    assert found[:, :-1].tolist() == [pytest.approx(row, abs=1e-7) for row in EXPECTED[sweep]]
    assert (found[:, -1] == -INF).all()


def test_smooth_thresholds_know_what_each_sample_costs(waves):
    number, costs = torch.arange(0.0, 96, 4, dtype=torch.float64), COSTS.repeat(24, 1)
    costs[:, 1] += 0.25 * number.cos()
    costs[:, 3] += (0.7 * number).sin().abs()
    found = smooth_sweep(*waves, costs, 5)[1:-1, :-1].tolist()
    assert found == [
        pytest.approx([0.51159804, 0.77630609, 0.87465063], abs=1e-7),
        pytest.approx([0.83693343, 1.12164241, 1.31293476], abs=1e-7),
        pytest.approx([0.89718392, 1.17215598, 1.46356064], abs=1e-7),
    ]


def test_shared_thresholds_are_cut_between_the_scores_of_all_exits_but_the_last():
    scores = torch.tensor([[0.0, 3.0, 9.0], [0.0, 1.0, 9.0]])
    found = shared_sweep(scores, scores > 0, torch.tensor([0.2, 0.5, 1.0]), points=6)
    # All at exit 0; then from 0.5 on both at exit 1; from 0.75 on only the first one.
    assert found[:, 0].tolist() == [-INF, -INF, 0.5, 0.5, 2.0, INF]


def test_calibrated_chances_are_the_same_as_ever(waves):
    scores, correct = waves
    found = calibrated_chances(scores.sigmoid(), correct)
    assert found[0].tolist() == pytest.approx([0.50574097, 0.8944041, 0.64328583, 0.489745])
    certain = calibrated_chances(torch.tensor([[0.0], [1.0], [1.0]]), torch.ones(3, 1) > 0)
    assert certain.isfinite().all()


def test_operating_points_are_the_same_as_ever_and_give_back_what_they_gained(waves):
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
    scores, correct = (part.repeat_interleave(2, dim=0) for part in waves)
    costs = COSTS.expand(48, 4).contiguous()
    groups = torch.arange(24).repeat_interleave(2)
    val = ScoredSamples(scores, correct, costs, scores.sigmoid(), groups)
    not_flattered(tune_points(val, 0.5, "smooth", 5), val, "smooth")
    assert [len(part) for part, _, _ in given] == [48, 24, 24]
    for part, right, paid in given:
        assert torch.equal(part[::2], part[1::2])
        assert right.is_floating_point()  # chances, and not what is right
        assert paid.shape == part.shape


def test_a_single_exit_has_one_point_and_nothing_to_choose():
    val = ScoredSamples(torch.zeros(5, 1), torch.ones(5, 1) > 0, COSTS[-1:])
    points = tune_points(val, 1.0, "smooth", 7)
    assert (points.thresholds.shape, points.budgets.tolist()) == ((1, 1), [1.0])


def test_whole_numbers_are_scores_too():
    scores = torch.tensor([[3, 0], [1, 0]])
    assert exits_taken(scores, torch.tensor([2.0, 0.0])).tolist() == [0, 1]


def test_an_infinite_q_sends_all_to_the_last_exit_and_a_tiny_one_to_the_first():
    scores = torch.rand(6, 3)
    assert exits_taken(scores, geometric(scores, INF)).tolist() == [2] * 6
    assert exits_taken(scores, geometric(scores, 5e-324)).tolist() == [0] * 6


def test_an_accuracy_is_reached_at_the_least_cost_and_a_budget_by_the_best_of_equal_costs():
    scores = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.7, 0.0], [0.6, 0.0]])
    correct = torch.tensor([[True, True], [False, True], [True, False], [False, True]])
    costs, thresholds = torch.tensor([0.5, 1.0]), torch.tensor([[0.65], [0.75], [0.85], [0.7]])
    thresholds = torch.cat([thresholds, torch.full((4, 1), -INF)], dim=1).double()
    points = ScoredSamples(scores, correct, costs).points_of(thresholds, full_accuracy=0.75)
    assert points.budgets.tolist() == [0.625, 0.625, 0.75, 0.875]
    assert points.accuracies.tolist() == [0.75, 0.75, 0.5, 0.75]
    assert points.thresholds[:, 0].tolist() == pytest.approx([0.65, 0.7, 0.75, 0.85])
    assert (points.for_budget(0.7), points.for_budget(0.8), points.for_budget(1)) == (0, 2, 3)
    assert (points.nearest(0.1), points.for_accuracy(0.0), points.for_accuracy(0.5)) == (0, 0, 0)
    dearer = points.priced(torch.tensor([0.9, 0.6, 0.7, 0.5], dtype=torch.float64))
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
    scores = torch.tensor([column, [0.0] * 4]).T
    assert geometric(scores, 1.0).tolist() == [threshold, -INF]


def test_costs_may_be_whole_numbers(waves):
    whole = smooth_sweep(*waves, torch.tensor([1, 4, 7, 10]), 5)
    assert torch.equal(whole, smooth_sweep(*waves, 10 * COSTS, 5))
