"""What mixes of cascades of two models reach."""

import json
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog

from offramp import Costs, Ledger, compare
from offramp.evaluation import pair_envelope
from offramp.evaluation.references import references
from offramp.evaluation.results import Comparison
from offramp.report.files import tidy_csv
from offramp.report.tables import comparison_tables


def three_models(samples, seed, split="test"):
    """Answers of three models, with few distinct confidences and what each call cost."""
    rng = np.random.default_rng(seed)
    correct = rng.random((samples, 3)) < [0.4, 0.6, 0.8]
    confidence = rng.integers(1, 7, (samples, 3)) / 8 + 0.1 * correct
    prices = rng.integers(1, 4, (samples, 3)) * [1, 3, 10]
    costs = Costs.of_members(prices, "dollars")
    known = {"confidence": confidence, "correct": correct, "costs": costs}
    return Ledger.from_answers(**known, split=split, network="three"), confidence, prices


def by_trying(ledger, confidence, prices, budget):
    """The best mix of all two-model cascades by linear programming."""
    right, points = ledger.labels, []
    for first, second in combinations(range(3), 2):
        for limit in [*np.unique(confidence[:, first]), 2.0]:
            stop = confidence[:, first] >= limit
            paid = prices[:, first] + np.where(stop, 0, prices[:, second])
            points.append((paid.mean(), np.where(stop, right[:, first], right[:, second]).mean()))
    points += list(zip(prices.mean(axis=0), right.mean(axis=0), strict=True))
    costs, accuracies = np.array(points).T
    budget = budget * prices[:, 2].mean()
    ones = np.ones((1, len(costs)))
    found = linprog(-accuracies, A_ub=costs[None], b_ub=[budget], A_eq=ones, b_eq=[1])
    return -found.fun


@pytest.mark.parametrize("seed", range(3))
def test_no_mix_of_two_model_cascades_is_above_the_envelope(seed):
    ledger, confidence, prices = three_models(40, seed)
    envelope = pair_envelope([ledger], ledger)
    for budget in (0.2, 0.4, 0.55, 0.8, 1.0):
        mix = envelope.at(budget)
        assert mix.accuracy == pytest.approx(by_trying(ledger, confidence, prices, budget))
        assert mix.cost <= budget + 1e-9


def test_corners_are_measured_on_samples_that_did_not_choose_them():
    val, *_ = three_models(60, 0, "val")
    test, confidence, prices = three_models(50, 1)
    envelope = pair_envelope([val], test)
    for number, corner in enumerate(envelope.corners):
        first, last = corner.stages[0], corner.stages[-1]
        stop = np.log(confidence / (1 - confidence))[:, first] >= corner.threshold
        paid = prices[:, first] + np.where(stop | (first == last), 0, prices[:, last])
        expected = paid / prices[:, 2].mean()
        assert envelope.costs[:, number] == pytest.approx(expected)
    mix = envelope.at(0.5)
    low, high = (envelope.corners.index(c) for c in _neighbours(envelope, 0.5))
    hits = envelope.right.mean(axis=0)
    assert mix.accuracy == pytest.approx((1 - mix.share) * hits[low] + mix.share * hits[high])


def _neighbours(envelope, budget):
    spent = envelope.costs.mean(axis=0)
    order = spent.argsort()
    place = np.searchsorted(spent[order], budget)
    return [envelope.corners[order[n]] for n in (place - 1, place)]


def test_a_mix_is_a_model_alone_where_nothing_else_pays():
    confidence = np.full((20, 2), 0.5)  # the same for all, which no threshold parts
    correct = np.array([[True, True], [False, True]] * 10)
    ledger = Ledger.from_answers(
        confidence=confidence,
        correct=correct,
        costs=Costs.of_members([1.0, 4.0], "dollars"),
        split="test",
    )
    mix = pair_envelope([ledger], ledger).at(0.625)
    assert mix.pairs == ((0,), (1,))
    assert (mix.share, mix.accuracy) == pytest.approx((0.5, 0.75))
    assert pair_envelope([ledger], ledger).at(0.1).cost == pytest.approx(0.25)  # none is cheaper


def test_a_comparison_of_cascades_shows_the_mix_and_the_differences_to_it(splits):
    prices = Costs.of_members([1.0, 2.0, 3.0, 6.0, 10.0], "dollars")
    cascade = {name: ledger.with_costs(prices) for name, ledger in splits.items()}
    table = compare(**cascade, methods=["baseline"], budgets=[0.3, 0.5], seeds=1, resamples=50)
    envelope = pair_envelope([cascade["held_out"], cascade["val"]], cascade["test"])
    assert table.references.pair_mixes == [envelope.at(0.3), envelope.at(0.5)]
    gap = table["baseline"].differences["pair-mix"]["accuracy@0.5"]
    assert gap.value == pytest.approx(table["baseline"].accuracy(0.5) - envelope.at(0.5).accuracy)
    assert gap.low < gap.value < gap.high
    tables = {each.name: each for each in comparison_tables(table)}
    assert "Difference to the mix of two-model cascades" in tables["versus-pair-mix"].title
    row = next(r for r in tables["methods"].rows if r[0].text == "Mix of two-model cascades")
    assert row[3].text == f"{100 * envelope.at(0.5).accuracy:.2f}"
    assert "pair-mix,,accuracy@0.5" in tidy_csv(table)
    values = json.loads(json.dumps(table.to_json()))
    assert Comparison.from_json(values).references == table.references
    del values["references"]["pair_mixes"]  # as older files are
    assert Comparison.from_json(values).references.pair_mixes == []


def test_no_rule_of_a_cascade_is_above_the_oracle_which_asks_one_model():
    ledger, _, prices = three_models(40, 3)
    right, shares = ledger.labels, prices / prices[:, 2].mean()
    rows = references(ledger, ledger, [0.2, 0.4, 0.9])
    for found, budget in zip(rows.oracle, [0.2, 0.4, 0.9], strict=True):
        # Which of the three models each sample asks, as a linear program with whole solutions.
        flat = -right.astype(float).flatten() / 40
        once = np.kron(np.eye(40), np.ones(3))
        best = linprog(
            flat, A_ub=shares.flatten()[None] / 40, b_ub=[found.cost], A_eq=once, b_eq=[1] * 40
        )
        assert -best.fun - 1 / 40 <= found.accuracy <= -best.fun + 1e-9
        assert found.accuracy >= pair_envelope([ledger], ledger).at(budget).accuracy - 1 / 40
    cheaper = references(ledger.keep_exits([0, 2]), ledger.keep_exits([0, 2]), [0.4]).oracle[0]
    assert cheaper.accuracy <= rows.oracle[1].accuracy


def test_networks_with_exits_are_no_cascades(splits):
    table = compare(**splits, methods=["baseline"], budgets=[0.5], seeds=1, resamples=10)
    assert table.references.pair_mixes == []
    assert "pair-mix" not in table["baseline"].differences
    assert "pair-mix" not in tidy_csv(table)
