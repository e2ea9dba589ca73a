"""What a page shows of a method is what the policy does."""

import json
from dataclasses import replace

import numpy as np
import pytest

from offramp import Corrector, MaxProbability, Method, Policy, compare, evaluate
from offramp.evaluation import Comparison
from offramp.evaluation.diagnostics import score_histograms
from offramp.files import plain, restore
from offramp.report.tables import comparison_tables
from offramp.scorers import Patience
from offramp.targets import hopeless

METHODS = [
    "baseline",
    Method("eefp", "EEFP (paper)", Corrector(k=3, epochs=2)),
    Method("patience", "Patience", Patience()),
]


@pytest.fixture(scope="module")
def table(splits):
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    return compare(*ledgers, methods=METHODS, seeds=2, resamples=20)


@pytest.fixture(scope="module")
def policy(splits):
    """As the comparison's baseline is made."""
    return Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"], "geometric")


@pytest.mark.parametrize("percent", [30, 50, 77, 100])
def test_at_every_budget_the_page_shows_what_the_policy_does(table, policy, splits, percent):
    points, place = table["baseline"].diagnostics.points, percent - 1
    outcome = evaluate(policy.at(budget=percent / 100), splits["test"])
    assert points.budgets[place] == percent / 100
    assert points.accuracies[place] == pytest.approx(outcome.accuracy)
    assert points.costs[place] == pytest.approx(outcome.mean_cost)
    assert points.shares[place] == pytest.approx(outcome.exit_shares)
    assert points.hopeless_costs[place] == pytest.approx(outcome.hopeless_cost)
    chosen = policy.at(budget=percent / 100).thresholds[:-1]
    np.testing.assert_array_equal(points.thresholds[place], chosen)


def test_below_its_range_a_method_is_shown_at_its_cheapest_point(table):
    points = table["eefp"].diagnostics.points
    assert points.points[0] == 0
    assert points.val_costs[0] > points.budgets[0]
    reached = points.budgets >= points.val_costs[0]
    assert (points.val_costs[reached] <= points.budgets[reached] + 1e-9).all()


def test_the_bins_of_the_reliability_diagram_add_up_to_the_ece(table):
    for name in ("baseline", "eefp"):
        method = table[name]
        bins = method.diagnostics.reliability
        gaps = np.nan_to_num(np.abs(bins.stated - bins.right)) * bins.counts
        assert gaps.sum(axis=1) / bins.counts.sum(axis=1) == pytest.approx(method.exits[0].ece)


def test_a_scorer_without_a_probability_has_a_diagram_at_the_last_exit_only(table):
    diagnostics = table["patience"].diagnostics
    assert diagnostics.points.stated is None
    assert diagnostics.reliability.counts[:-1].sum() == 0
    assert diagnostics.reliability.counts[-1].sum() == table.setting["samples"]["test"]


def test_histograms_hold_every_sample_once_on_its_side(table, splits):
    found = table["baseline"].diagnostics.histograms
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    targets = policy.replay(splits["test"]).stop_targets[:, :-1]
    np.testing.assert_array_equal(found.stop.sum(axis=1), targets.sum(axis=0))
    np.testing.assert_array_equal(found.go.sum(axis=1), (~targets).sum(axis=0))


def test_histograms_of_equal_scores_and_of_outliers_are_whole():
    same = score_histograms(np.ones((7, 1)), np.ones((7, 1), dtype=bool), bins=4)
    assert same.stop.sum() == 7
    scores = np.concatenate([np.linspace(0, 1, 999), [1e6]])[:, None]
    found = score_histograms(scores, scores > 0.5)
    assert found.edges[0, -1] < 1.01
    assert found.stop.sum() + found.go.sum() == 1000


def test_hopeless_samples_are_counted_on_test(table, splits):
    test = splits["test"]
    lost = hopeless(test.logits.argmax(2) == test.labels[:, None])
    assert table["eefp"].diagnostics.hopeless_count == int(lost.sum())


def test_the_oracle_curve_holds_the_oracle_of_the_table(table):
    curve = {cost: accuracy for accuracy, cost in table.references.oracle_curve}
    for budget, point in zip(table.budgets, table.references.oracle, strict=True):
        assert curve[budget] == pytest.approx(point.accuracy)
    assert list(curve.values()) == sorted(curve.values())


def test_a_comparison_survives_json(table):
    text = json.dumps(table.to_json(), allow_nan=False)  # valid for browsers, too
    again = Comparison.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text
    for name, values in vars(table["eefp"].curves[0]).items():
        found = getattr(again["eefp"].curves[0], name)
        np.testing.assert_array_equal(found, values)
        assert found.dtype == values.dtype
    assert (
        np.isposinf(again["baseline"].diagnostics.points.thresholds).any()
        == np.isposinf(table["baseline"].diagnostics.points.thresholds).any()
    )


def test_values_that_json_lacks_are_kept():
    values = np.array([1.0, np.nan, np.inf, -np.inf])
    assert plain(values) == [1.0, None, "inf", "-inf"]
    np.testing.assert_array_equal(restore(np.ndarray, plain(values)), values)


def test_histograms_part_the_samples_by_their_target():
    scores = np.linspace(0, 1, 10)[:, None]
    found = score_histograms(scores, scores > 0.45, bins=2)
    assert found.stop.tolist() == [[0, 5]]
    assert found.go.tolist() == [[5, 0]]


def test_exits_that_a_policy_leaves_out_keep_their_place(splits):
    ledgers = {name: ledger.keep_exits([0, 2, 4]) for name, ledger in splits.items()}
    method = METHODS[1]

    class Few(Method):
        """The same with exits 0, 2 and 4 only."""

        def plans(self, held_out, val, budgets, seeds, fits=None):
            kept = (each.keep_exits([0, 2, 4]) for each in (held_out, val))
            return [replace(p, exits=[0, 2, 4]) for p in super().plans(*kept, budgets, seeds)]

    few = Few("few", "Few", method.scorer)
    table = compare(**splits, methods=[few], budgets=[0.5], seeds=1, resamples=5)
    alone = compare(**ledgers, methods=[method], budgets=[0.5], seeds=1, resamples=5)
    every, some = table["few"], alone["eefp"]
    places = [0, 2, 4]
    for figure in ("accuracy", "ece", "eefp"):
        found = getattr(every.exits[0], figure)
        assert len(found) == 5 and np.isnan(found[[1, 3]]).all()
        np.testing.assert_array_equal(found[places], getattr(some.exits[0], figure))
    points, expected = every.diagnostics.points, some.diagnostics.points
    for name in ("shares", "sure", "gave_up"):
        np.testing.assert_array_equal(getattr(points, name)[:, places], getattr(expected, name))
        assert not getattr(points, name)[:, [1, 3]].any()
    np.testing.assert_array_equal(points.thresholds[:, [0, 2]], expected.thresholds)
    assert np.isposinf(points.thresholds[:, [1, 3]]).all()
    assert every.diagnostics.histograms.stop.shape[0] == 4
    assert not every.diagnostics.histograms.stop[[1, 3]].any()
    assert comparison_tables(table)[-1].rows[1][3].text == "-"  # which once did not exist
    assert "   2  " in str(evaluate(table.plans["few"][0][0.5], splits["test"]))
