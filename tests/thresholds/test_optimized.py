"""Optimised thresholds: what they maximise, what they never exceed, and what guards them."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offramp import Policy, compare, synthetic, thresholds
from offramp.errors import BudgetError, ConfigError, LedgerError
from offramp.methods import METHODS, Method
from offramp.replay import replay
from offramp.scorers import MaxProbability
from offramp.thresholds import exits_taken, geometric, optimize
from offramp.thresholds.geometric import geometric_sweep, shared_sweep
from offramp.thresholds.optimized import SortedSamples, _Search, optimized_sweep
from offramp.thresholds.tuning import measure, tune_points

COSTS = torch.tensor([0.1, 0.4, 1.0], dtype=torch.float64)


def worlds(elements, samples=12, exits=3):
    scores = hnp.arrays("float32", (samples, exits), elements=elements).map(torch.tensor)
    correct = hnp.arrays("bool", (samples, exits)).map(torch.tensor)
    return st.tuples(scores, correct)


FLOATS = st.floats(-10, 10, width=32)
TIED = st.integers(0, 3).map(float)
WORLDS = worlds(FLOATS) | worlds(TIED)


def result(scores, correct, costs, found):
    means, accuracies, _ = measure(exits_taken(scores, found[None]), correct, costs)
    return accuracies.item(), means.item()


def all_thresholds(scores):
    """Every set of thresholds that decides differently."""
    columns = []
    for column in scores[:, :-1].T.double():
        columns.append([*column.unique().tolist(), torch.inf])
    return torch.tensor([(*cuts, -torch.inf) for cuts in product(*columns)], dtype=torch.float64)


def by_force(scores, correct, costs):
    """Accuracy and mean cost of every set of thresholds."""
    means, accuracies, _ = measure(exits_taken(scores, all_thresholds(scores)), correct, costs)
    return accuracies, means


@given(WORLDS, st.floats(0, 2))
def test_no_single_cut_can_be_moved_to_a_better_value_at_a_price(world, price):
    scores, correct = world
    found = optimize(scores, correct, COSTS, price=price, smoothing=0)
    accuracy, cost = result(scores, correct, COSTS, found)
    for m, column in enumerate(scores[:, :-1].T.double()):
        for other in [*column.unique().tolist(), torch.inf]:
            moved = found.clone()
            moved[m] = other
            right, spent = result(scores, correct, COSTS, moved)
            assert right - price * spent <= accuracy - price * cost + 1e-9


@given(WORLDS, st.floats(0, 2))
def test_the_value_at_a_price_is_not_below_that_of_any_geometric_start(world, price):
    scores, correct = world
    accuracy, cost = result(
        scores, correct, COSTS, optimize(scores, correct, COSTS, price=price, smoothing=0)
    )
    starts = geometric_sweep(scores, correct, COSTS, 33)
    means, accuracies, _ = measure(exits_taken(scores, starts), correct, COSTS)
    assert (accuracies - price * means).max() <= accuracy - price * cost + 1e-9


@given(WORLDS, st.floats(0.1, 1.0))
def test_the_cost_on_its_own_samples_never_exceeds_the_budget(world, budget):
    scores, correct = world
    for smoothing in (0, 0.3):
        found = optimize(scores, correct, COSTS, budget=budget, smoothing=smoothing)
        assert result(scores, correct, COSTS, found)[1] <= budget + 1e-9


def test_for_small_worlds_the_best_thresholds_are_mostly_found():
    found, possible = [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        scores = torch.rand(14, 3, generator=generator)
        correct = torch.rand(14, 3, generator=generator) < torch.tensor([0.4, 0.6, 0.8])
        accuracies, means = by_force(scores, correct, COSTS)
        possible.append(accuracies[means <= 0.5 + 1e-9].max().item())
        best = optimize(scores, correct, COSTS, budget=0.5, smoothing=0)
        found.append(result(scores, correct, COSTS, best)[0])
    gaps = np.array(possible) - np.array(found)
    assert (gaps > -1e-9).all()
    assert (gaps < 1e-9).mean() > 0.8
    assert gaps.mean() < 0.01


def test_more_budget_never_means_less_accuracy_on_val(splits):
    found = trace_of(splits["val"])
    budgets, accuracies = sweep_of(found, smoothing=0)
    assert (accuracies[budgets.argsort()].diff() > -1e-9).all()


def trace_of(ledger):
    found = replay(Policy(MaxProbability()).answer, MaxProbability(), ledger)
    return found.scores, found.correct, ledger.costs / ledger.reference_cost


def sweep_of(found, smoothing):
    scores, correct, costs = found
    search = _Search.of(scores, correct, costs, smoothing)
    budgets = np.linspace(float(costs[0]), float(costs[-1]), 41)
    points = search.thresholds(search.within(search.corners(6), budgets))
    means, accuracies, _ = measure(exits_taken(scores, points), correct, costs)
    return means, accuracies


def test_optimised_points_beat_geometric_ones_on_their_own_samples(splits):
    scores, correct, costs = trace_of(splits["val"])
    best = tune_points(scores, correct, costs, 0.9, "optimized")
    plain = tune_points(scores, correct, costs, 0.9, "geometric")
    for budget in (0.3, 0.5, 0.7):
        ours, theirs = best.for_budget(budget), plain.for_budget(budget)
        assert best.accuracies[ours] > plain.accuracies[theirs]


def test_optimised_points_cover_the_range_in_which_compute_buys_accuracy(splits):
    scores, correct, costs = trace_of(splits["val"])
    points = tune_points(scores, correct, costs, 0.9, "optimized")
    assert points.budgets[0] == pytest.approx(float(costs[0]))
    assert points.accuracies[-1] >= correct[:, -1].double().mean() - 0.005
    assert points.budgets.diff().max() < 0.1


def test_a_useless_last_exit_is_not_paid_for():
    scores = torch.rand(400, 3)
    correct = torch.stack([scores[:, 0] > 0.6, scores[:, 0] > 0.1, scores[:, 0] > 0.3], dim=1)
    found = optimize(scores, correct, COSTS, budget=1.0, smoothing=0)
    accuracy, cost = result(scores, correct, COSTS, found)
    assert accuracy == pytest.approx(correct[:, 1].double().mean().item())
    assert cost < 0.39


def test_a_free_lunch_is_taken_and_a_price_too_high_is_not_paid():
    scores = torch.tensor([[2.0, 0], [1, 0], [0, 0]])
    correct = torch.tensor([[True, True], [False, True], [False, True]])
    costs = torch.tensor([0.5, 1.0])
    assert result(scores, correct, costs, optimize(scores, correct, costs, price=0.0))[0] == 1
    dear = optimize(scores, correct, costs, price=3.0, smoothing=0)
    assert exits_taken(scores, dear).tolist() == [0, 0, 0]


def test_smoothing_keeps_a_lucky_handful_from_placing_a_cut():
    """Going on is always a bit better here, and scores say nothing; only noise opens exit 0."""
    generator = torch.Generator().manual_seed(0)
    costs, chance = torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.55])
    opened = {0.0: 0.0, 0.1: 0.0}
    for _ in range(60):
        scores = torch.rand(300, 2, generator=generator)
        correct = torch.rand(300, 2, generator=generator) < chance
        for smoothing in opened:
            found = optimize(scores, correct, costs, price=0.0, smoothing=smoothing)
            opened[smoothing] += min(max(1 - float(found[0]), 0.0), 1.0) / 60  # share that stops
    assert opened[0.1] < opened[0.0] - 0.02


@given(WORLDS)
def test_moves_say_what_changing_one_cut_gives(world):
    scores, correct = world
    table = SortedSamples.of(scores, correct, COSTS)
    cuts = table.cuts_of(exits_taken(scores, geometric(scores, torch.tensor([0.7, 1.5]))))
    for m, right, spent in table.moves(cuts):
        for cut in np.flatnonzero(table.allowed[m]):
            moved = cuts.copy()
            moved[:, m] = cut
            accuracy, cost = table.measure(moved)
            assert right[:, cut] == pytest.approx(accuracy)
            assert spent[:, cut] == pytest.approx(cost)


@given(WORLDS)
def test_thresholds_of_cuts_decide_as_the_cuts(world):
    scores, correct = world
    search = _Search.of(scores, correct, COSTS, 0)
    cuts = search.corners(3)
    assert np.array_equal(
        exits_taken(scores, search.thresholds(cuts)).numpy(), search.table.exits_of(cuts)
    )


def test_permuting_samples_changes_no_threshold(splits):
    scores, correct, costs = trace_of(splits["val"])
    order = torch.randperm(len(scores))
    one = optimize(scores, correct, costs, budget=0.5)
    assert torch.equal(optimize(scores[order], correct[order], costs, budget=0.5), one)


def test_a_policy_tunes_by_name_and_keeps_its_budget(splits):
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"], "optimized")
    point = policy.at(budget=0.5).selected
    assert policy.points.budgets[point] <= 0.5 + 1e-9
    assert policy.points.budgets[point] > 0.45


def test_methods_can_ask_for_optimised_thresholds():
    ledgers = synthetic.ledgers(seed=0, samples=1500, structure=False)
    best = Method("best", "Optimised", thresholds="optimized")
    table = compare(*ledgers.values(), methods=["baseline", best], seeds=1, resamples=200)
    assert table["best"].settings["thresholds"] == "optimized"
    assert table["best"].differences["baseline"]["accuracy@0.5"].low > 0


def test_impossible_requests_are_refused():
    scores, correct = torch.rand(10, 3), torch.rand(10, 3) > 0.5
    with pytest.raises(ConfigError, match="either `budget` or `price`"):
        optimize(scores, correct, COSTS)
    with pytest.raises(ConfigError, match="either `budget` or `price`"):
        optimize(scores, correct, COSTS, budget=0.5, price=1.0)
    with pytest.raises(ConfigError, match="`price` must not be negative, got -1"):
        optimize(scores, correct, COSTS, price=-1.0)
    with pytest.raises(BudgetError, match=r"at least 0\.1, the cost of exit 0, got 0\.05"):
        optimize(scores, correct, COSTS, budget=0.05)
    with pytest.raises(LedgerError, match=r"`costs` \[M\] or \[N, M\], got \[10, 3\]"):
        optimize(scores, correct[:, :2], COSTS, budget=0.5)
    with pytest.raises(LedgerError, match="finite at every exit but the last"):
        optimize(scores.log() * torch.inf, correct, COSTS, budget=0.5)
    with pytest.raises(ConfigError, match=r"share of the samples in \[0, 1\), got 1"):
        optimize(scores, correct, COSTS, budget=0.5, smoothing=1)


def test_the_registry_knows_all_ways():
    assert list(thresholds.THRESHOLD_METHODS) == [
        *("geometric", "optimized", "smooth", "shared", "assigned"),
    ]
    assert METHODS["baseline"].thresholds == "geometric"
    assert optimized_sweep(torch.rand(50, 3), torch.rand(50, 3) > 0.5, COSTS, 5).shape[1] == 3


@given(WORLDS)
def test_a_shared_threshold_is_the_dearest_within_each_cost(world):
    scores, correct = world
    found = shared_sweep(scores, correct, COSTS, 7)
    assert (found[:, 0] == found[:, 1]).all()
    means, _, _ = measure(exits_taken(scores, found), correct, COSTS)
    values = scores[:, :2].double().unique()
    every = torch.cat([values, torch.tensor([torch.inf], dtype=torch.float64)])
    spread = torch.stack([every, every, torch.full_like(every, -torch.inf)], dim=1)
    possible, _, _ = measure(exits_taken(scores, spread), correct, COSTS)
    for wanted, mean in zip(torch.linspace(0.1, 1.0, 7).tolist(), means.tolist(), strict=True):
        best = possible[possible <= wanted + 1e-6].max().item()
        assert mean == pytest.approx(best)
