"""One registry of methods, and one way from each of them to policies."""

from dataclasses import dataclass

import numpy as np
import pytest

from offramp import Corrector, MaxProbability, Method, compare, evaluate
from offramp.advice import Auto
from offramp.errors import BudgetError, ConfigError, FileFormatError
from offramp.files import write_sealed
from offramp.methods import find_methods, ready, register
from offramp.plan import Plan
from offramp.registry import METHODS

FEW = Auto(candidates=("baseline", "baseline:smooth"))


@pytest.fixture
def plain():
    return Method("plain", "Plain", MaxProbability())


@pytest.fixture
def few_candidates(monkeypatch):
    monkeypatch.setitem(METHODS, "auto", FEW)


def test_every_registered_method_has_its_own_name():
    assert all(method.name == name for name, method in METHODS.items())
    assert isinstance(METHODS["auto"], Auto)


def test_auto_is_compared_by_name_like_any_other(splits, few_candidates):
    table = compare(**splits, methods=["baseline", "auto"], budgets=[0.5], resamples=20)
    assert [method.name for method in table.methods] == ["baseline", "auto"]
    assert table["auto"].settings["chosen"]["0.5"] in FEW.candidates
    assert table["auto"].settings["candidates"] == list(FEW.candidates)


def test_one_name_need_not_be_a_list(splits):
    (method,) = compare(**splits, methods="baseline", budgets=[0.5], resamples=20).methods
    assert method.name == "baseline"


def test_plans_have_a_policy_for_every_budget_and_one_seed_each(splits):
    method = Method("small", "Small", Corrector(epochs=1, hidden=4))
    plans = method.plans(splits["held_out"], splits["val"], [0.4, 0.7], seeds=2)
    assert len(plans) == 2
    assert all(list(plan) == [0.4, 0.7] for plan in plans)
    cheap, costly = (evaluate(plans[0][budget], splits["test"]).mean_cost for budget in plans[0])
    assert cheap < costly
    first, second = (plan[0.4].scorer.output_biases_ for plan in plans)
    assert not np.array_equal(first, second)


def test_a_fit_that_is_not_random_makes_one_plan(splits, plain):
    assert len(plain.plans(splits["held_out"], splits["val"], [0.5], seeds=3)) == 1


def test_a_budget_out_of_reach_gets_the_cheapest_point(splits, plain):
    (plan,) = plain.plans(splits["held_out"], splits["val"], [0.001], seeds=1)
    assert plan[0.001].selected == 0
    with pytest.raises(BudgetError, match=r"this plan is for the budgets 0.001, got 0.5"):
        _ = plan[0.5]


def test_methods_that_differ_in_their_thresholds_only_share_a_fit(splits, monkeypatch):
    fitted = []

    @dataclass
    class Counted(MaxProbability):
        def fit(self, history, labels, costs):
            fitted.append(len(labels))
            return self

    mine = Method("mine", "Mine", Counted())
    methods = [mine, mine.with_thresholds("smooth")]
    table = compare(**splits, methods=methods, budgets=[0.5], resamples=20)
    assert [method.label for method in table.methods] == ["Mine", "Mine, smooth"]
    assert len(fitted) == 1
    one, two = (table.plans[method.name][0][0.5] for method in methods)
    assert not np.array_equal(one.thresholds, two.thresholds)


def test_a_comparison_hands_out_the_policies_that_it_measured(splits):
    table = compare(**splits, methods=["baseline"], budgets=[0.5], resamples=20)
    (plan,) = table.plans["baseline"]
    assert isinstance(plan, Plan)
    reached = plan[0.5].replay(splits["test"]).curve.at(0.5).accuracy
    assert reached == table["baseline"].accuracy(0.5)
    assert "plans" not in table.to_json()
    assert type(table).from_json(table.to_json()).plans == {}


def test_a_saved_plan_decides_as_before(splits, tmp_path):
    (plan,) = FEW.plans(splits["held_out"], splits["val"], [0.4, 0.7], seeds=1)
    again = Plan.load(plan.save(tmp_path / "plan"))
    assert (again.exits, again.methods, again.why) == (plan.exits, plan.methods, plan.why)
    assert again.accuracies == plan.accuracies
    test = plan.view(splits["test"])
    for budget, policy in plan.items():
        assert np.array_equal(again[budget].decide(test), policy.decide(test))
    write_sealed(tmp_path / "plan" / "plan.json", {"format": "offramp-plan", "version": 1})
    with pytest.raises(FileFormatError, match=r"is not a complete plan: `.*` is missing"):
        Plan.load(tmp_path / "plan")


def test_a_registered_method_is_found_by_name_and_cannot_be_replaced(monkeypatch, plain):
    monkeypatch.delitem(METHODS, "plain", raising=False)
    register(plain)
    try:
        assert find_methods("plain", 10) == [plain]
        register(plain)  # the same one again is no trouble
        with pytest.raises(ConfigError, match="there is a method 'plain' already"):
            register(Method("plain", "Another", Corrector()))
    finally:
        METHODS.pop("plain")


def test_auto_takes_no_thresholds():
    with pytest.raises(ConfigError, match="'auto' chooses thresholds too; name it without"):
        find_methods(["auto:geometric"], 10)
    assert ready(METHODS["auto"]) is METHODS["auto"]
