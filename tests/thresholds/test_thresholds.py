import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offramp.errors import BudgetError, ConfigError, LedgerError
from offramp.thresholds import exits_taken, geometric, rounded_up, stops
from offramp.thresholds.geometric import geometric_sweep, shared_sweep, shares_of
from offramp.thresholds.tuning import ScoredSamples, measure, tune_points

FLOATS = st.floats(-10, 10, width=32)
FEW_VALUES = st.integers(0, 3).map(float)  # many ties
COSTS = np.array([0.1, 0.4, 0.7, 1.0])
INF = np.inf


def uniform(samples, exits, seed=0):
    return np.random.default_rng(seed).random((samples, exits))


def scores_of(elements, samples=25, exits=4):
    return hnp.arrays("float32", (samples, exits), elements=elements)


def exit_by_loop(row, thresholds):
    for m, (score, threshold) in enumerate(zip(row, thresholds, strict=True)):
        if m == len(row) - 1 or float(score) >= float(threshold):
            return m
    raise AssertionError


@given(scores_of(FLOATS), hnp.arrays("float64", (3, 4), elements=st.floats(-10, 10)))
def test_stop_rule_is_the_first_exit_whose_score_reaches_its_threshold(scores, points):
    found = exits_taken(scores, points)
    for point, exits in zip(points, found, strict=True):
        assert exits.tolist() == [exit_by_loop(row, point) for row in scores]
        assert np.array_equal(exits_taken(scores, point), exits)


def test_tensors_stop_where_arrays_do():
    torch = pytest.importorskip("torch")
    scores, thresholds = uniform(20, 4), np.array([0.7, 0.8, INF, 0.0])
    found = exits_taken(torch.tensor(scores), torch.tensor(thresholds))
    assert torch.equal(found, torch.tensor(exits_taken(scores, thresholds)))
    limits = rounded_up(torch.tensor(thresholds), torch.float32)
    assert limits.numpy().tolist() == rounded_up(thresholds, np.float32).tolist()
    assert stops(torch.tensor(scores[0]), limits).tolist() == (scores[0] >= thresholds).tolist()


def test_infinite_thresholds_close_and_open_exits():
    scores = np.array([[5.0, -5.0, 0.0]])
    assert exits_taken(scores, [INF, INF, INF]).tolist() == [2]
    assert exits_taken(scores, [-INF, 0.0, 0.0]).tolist() == [0]


def test_nan_scores_go_on_to_the_last_exit():
    assert exits_taken(np.full((1, 3), np.nan), [-INF] * 3).tolist() == [2]


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(LedgerError, match=r"\[N, M\] and `thresholds` \[M\] or \[P, M\]"):
        exits_taken(np.zeros((3, 2)), np.zeros(3))


@given(st.floats(-1e30, 1e30), st.floats(allow_nan=False, width=32))
def test_thresholds_in_float32_decide_as_in_float64(threshold, score):
    limit = rounded_up(np.float64(threshold), np.float32)
    assert stops(np.float32(score), limit) == (score >= threshold)


def test_neighbouring_float32_scores_are_told_apart():
    low, high = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    scores = np.array([[low, 0], [high, 0]])
    thresholds = geometric(scores, q=1.0)
    assert float(low) < thresholds[0] < float(high)
    assert exits_taken(scores, thresholds).tolist() == [1, 0]


def test_thresholds_have_the_type_of_the_scores_they_are_compared_with():
    exact = np.array([0.1, INF, -INF])
    assert rounded_up(exact, np.float32).dtype == np.float32
    assert rounded_up(exact, np.float64).tolist() == exact.tolist()


def test_neighbouring_float64_scores_are_told_apart():
    low = np.float64(1.0)
    scores = np.array([[low, 0.0], [np.nextafter(low, 2), 0.0]])
    assert exits_taken(scores, geometric(scores, q=1.0)).tolist() == [1, 0]


def test_shares_are_proportional_to_powers_of_q():
    scores = uniform(7000, 3)
    exits = exits_taken(scores, geometric(scores, q=2.0))
    assert np.bincount(exits).tolist() == [1000, 2000, 4000]


@given(scores_of(FLOATS), st.floats(0.05, 20))
def test_thresholds_lie_strictly_between_the_scores_of_those_still_there(scores, q):
    thresholds = geometric(scores, q)
    exits = exits_taken(scores, thresholds)
    for m in range(3):
        there = scores[exits >= m, m]
        assert not (there == thresholds[m]).any()


@given(scores_of(FLOATS, samples=40), st.floats(0.05, 20))
def test_shares_are_met_as_far_as_ties_allow(scores, q):
    exits = exits_taken(scores, geometric(scores, q))
    wanted = (shares_of(np.log([q]), 4)[0].cumsum() * 40).round()
    for m in range(3):
        gone = int((exits <= m).sum())
        # Off by at most half of the largest tied group among those that reached the exit.
        there = scores[exits >= m, m]
        largest = int(np.unique(there, return_counts=True)[1].max()) if len(there) else 0
        before = int((exits < m).sum())
        assert abs(gone - max(float(wanted[m]), before)) <= largest / 2


@given(scores_of(FEW_VALUES, samples=30), st.floats(0.05, 20))
def test_ties_take_the_nearer_cut(scores, q):
    thresholds = geometric(scores, q)
    exits = exits_taken(scores, thresholds)
    wanted = (shares_of(np.log([q]), 4)[0].cumsum() * 30).round()
    for m in range(3):
        there = scores[exits >= m, m]
        goal = int(wanted[m]) - int((exits < m).sum())
        goal = min(max(goal, 0), len(there))
        cuts = [int((there >= value).sum()) for value in np.unique(there)] + [0]
        taken = int((exits == m).sum())
        assert abs(taken - goal) == min(abs(cut - goal) for cut in cuts)


def test_constant_scores_do_not_sweep_everyone_out():
    scores = np.zeros((100, 3))
    exits = exits_taken(scores, geometric(scores, q=1.0))
    # A third is wanted at exit 0: nobody is nearer than everybody. Then two thirds: everybody.
    assert np.bincount(exits, minlength=3).tolist() == [0, 100, 0]


@given(scores_of(FLOATS), st.floats(0.1, 10), st.integers(0, 2))
def test_an_increasing_map_of_one_exits_scores_changes_no_decision(scores, q, exit_index):
    moved = scores.astype(np.float64)
    # By ranks: a formula would round some distinct scores to one.
    ranks = np.unique(moved[:, exit_index], return_inverse=True)[1]
    moved[:, exit_index] = 1.7**ranks - 5
    before = exits_taken(scores, geometric(scores, q))
    assert np.array_equal(exits_taken(moved, geometric(moved, q)), before)


@given(scores_of(FLOATS), st.floats(0.1, 10), st.randoms())
def test_permuting_samples_permutes_decisions(scores, q, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    thresholds = geometric(scores, q)
    assert np.array_equal(geometric(scores[order], q), thresholds)
    assert np.array_equal(
        exits_taken(scores[order], thresholds), exits_taken(scores, thresholds)[order]
    )


@given(scores_of(FEW_VALUES | FLOATS))
def test_many_q_at_once_are_those_one_by_one(scores):
    q = np.array([0.1, 1.0, 5.0])
    for one, thresholds in zip(q, geometric(scores, q), strict=True):
        assert np.array_equal(geometric(scores, float(one)), thresholds)


def test_extreme_q_send_everyone_to_the_first_or_last_exit():
    scores = uniform(50, 4)
    assert (exits_taken(scores, geometric(scores, 1e-300)) == 0).all()
    assert (exits_taken(scores, geometric(scores, 1e300)) == 3).all()


@pytest.mark.parametrize("q", [0.0, -1.0])
def test_impossible_q_is_refused(q):
    with pytest.raises(ConfigError, match="`q` must be positive"):
        geometric(uniform(5, 2), q)


def test_sweep_covers_the_whole_range_evenly():
    scores = uniform(5000, 4)
    thresholds = geometric_sweep(scores, scores > 0.5, COSTS, 201)
    means, _, _ = measure(exits_taken(scores, thresholds), scores > 0.5, COSTS)
    assert means[0] == pytest.approx(0.1)
    assert means[-1] == pytest.approx(1.0)
    assert np.diff(np.sort(means)).max() < 0.01


def test_measure_counts_what_a_loop_counts():
    scores, correct = uniform(40, 4), uniform(40, 4, seed=1) > 0.4
    points = uniform(5, 4, seed=2)
    exits = exits_taken(scores, points)
    means, accuracies, shares = measure(exits, correct, COSTS)
    for p in range(5):
        taken = exits[p]
        assert means[p] == pytest.approx(COSTS[taken].mean())
        assert accuracies[p] == pytest.approx(correct[range(40), taken].mean())
        assert shares[p].tolist() == pytest.approx((np.bincount(taken, minlength=4) / 40).tolist())


def points_of(accuracy_at_last=0.9):
    scores = uniform(1000, 4)
    correct = uniform(1000, 4, seed=1) < np.array([0.3, 0.5, 0.7, accuracy_at_last])
    full = float(correct[:, -1].mean())
    return tune_points(ScoredSamples(scores, correct, COSTS), full, "geometric")


@given(st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_cost_grows_with_the_budget_and_never_exceeds_it(one, two):
    points = points_of()
    low, high = sorted([one, two])
    first, second = (points.budgets[points.for_budget(b)] for b in (low, high))
    assert first <= second
    assert first <= low + 1e-9
    assert second <= high + 1e-9


@pytest.mark.parametrize("budget", [0.05, 0.0999])
def test_a_budget_below_the_first_exit_says_what_is_possible(budget):
    with pytest.raises(BudgetError, match=rf"must lie in \[0\.1000, 1\] .* got {budget}"):
        points_of().for_budget(budget)


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.5, float("nan")])
def test_a_budget_that_is_no_share_is_refused(budget):
    with pytest.raises(BudgetError, match=r"share of the network without exits in \(0, 1\]"):
        points_of().for_budget(budget)


def test_the_stated_smallest_budget_is_possible():
    points = points_of()
    with pytest.raises(BudgetError) as error:
        points.for_budget(0.01)
    smallest = float(str(error.value).split("[")[1].split(",")[0])
    assert points.budgets[points.for_budget(smallest)] <= smallest


def test_the_cheapest_point_within_an_accuracy_is_chosen():
    points = points_of()
    index = points.for_accuracy(0.05)
    good = points.accuracies >= points.full_accuracy - 0.05 - 1e-9
    assert points.budgets[index] == points.budgets[good].min()


def test_an_accuracy_out_of_reach_says_what_is_possible():
    scores, correct = uniform(100, 4), np.zeros((100, 4), dtype=bool)
    points = tune_points(ScoredSamples(scores, correct, COSTS), 0.8, "geometric")
    with pytest.raises(BudgetError, match=r"`max_drop` must be at least 0\.8000"):
        points.for_accuracy(0.1)
    with pytest.raises(BudgetError, match=r"lie in \[0, 1\), got 1"):
        points.for_accuracy(1)


def test_unknown_methods_and_too_few_points_are_refused():
    scores = uniform(10, 4)
    val = ScoredSamples(scores, scores > 0.5, COSTS)
    with pytest.raises(ConfigError, match=r"geometric, smooth, shared.*, got 'best'"):
        tune_points(val, 0.5, method="best")
    with pytest.raises(ConfigError, match=r"`points` must be .*at least 2"):
        tune_points(val, 0.5, points=1)


@given(scores_of(FLOATS, exits=3) | scores_of(FEW_VALUES, exits=3))
def test_a_shared_threshold_is_the_costliest_within_each_budget(scores):
    costs, right = COSTS[[0, 1, 3]], scores > 0
    found = shared_sweep(scores, right, costs, 7)
    assert (found[:, 0] == found[:, 1]).all()
    means, _, _ = measure(exits_taken(scores, found), right, costs)
    every = np.append(np.unique(scores[:, :2]).astype(np.float64), INF)
    spread = np.stack([every, every, np.full_like(every, -INF)], axis=1)
    possible, _, _ = measure(exits_taken(scores, spread), right, costs)
    for wanted, mean in zip(np.linspace(0.1, 1.0, 7), means, strict=True):
        best = possible[possible <= wanted + 1e-6].max()
        assert mean == pytest.approx(best)
