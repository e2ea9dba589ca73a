"""The choice of a policy: what it looks at, what it never sees, and what it says."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from typer.testing import CliRunner

from offramp import (
    Corrector,
    Costs,
    Ledger,
    Method,
    Policy,
    advise,
    auto,
    compare,
    evaluate,
    synthetic,
)
from offramp.advice import Auto
from offramp.advice.advise import COLUMNS
from offramp.advice.auto import choose_exits
from offramp.advice.rating import CrossFit, at_most, hits_at, hits_on, pick, pool
from offramp.batch_times import BatchTimes
from offramp.cli.app import app
from offramp.errors import BudgetError, ConfigError, CostWarning, SplitError
from offramp.ledger.chunks import folds
from offramp.methods import find_methods
from offramp.registry import METHODS

FEW = ["baseline", "baseline:smooth", "patience"]


@pytest.fixture(scope="module")
def ledgers():
    """Heads cost next to nothing, so that all exits are kept."""
    made = synthetic.ledgers(seed=0, samples=800, exits=5, classes=10, structure=False)
    return {split: with_heads(ledger, 0.0) for split, ledger in made.items()}


def with_heads(ledger, cost):
    """The same ledger with heads of another cost."""
    costs = Costs(stages=(1e6,) * ledger.num_exits, heads=(cost,) * ledger.num_exits)
    parts = {"split": ledger.split, "sample_ids": ledger.sample_ids, "network": ledger.network}
    return Ledger(ledger.logits, ledger.labels, costs, **parts)


@pytest.fixture(scope="module")
def plan(ledgers):
    return auto(ledgers["held_out"], ledgers["val"], [0.4, 0.7], FEW)


def test_a_plan_maps_budgets_to_policies_within_them(plan, ledgers):
    assert list(plan) == [0.4, 0.7]
    assert len(plan) == 2
    for budget, policy in plan.items():
        assert isinstance(policy, Policy)
        assert policy.points.budgets[policy.selected] <= budget + 1e-9
        outcome = evaluate(policy, plan.view(ledgers["test"]))
        assert outcome.mean_cost == pytest.approx(budget, abs=0.05)


def test_the_best_by_cross_validation_is_chosen_and_the_reason_says_by_how_much(plan):
    for budget in plan:
        ranked = sorted(plan.accuracies, key=lambda name: -plan.accuracies[name][budget])
        assert ranked[0] == "baseline:smooth"  # whose thresholds win by far in this world
        assert "Baseline, smooth" in plan.why[budget]
        gain = 100 * (
            plan.accuracies["baseline:smooth"][budget] - plan.accuracies["baseline"][budget]
        )
        assert f"{gain:+.2f} [+" in plan.why[budget]
        assert "cannot be told" not in plan.why[budget]
        assert "the best other: Baseline, geometric" in plan.why[budget]


def hits_with(**ranges):
    """Hits of methods on 1,000 samples: at each budget, those from one number to another."""
    numbers = np.arange(1000)[:, None]
    spans = {name: np.array(span) for name, span in ranges.items()}
    return {
        name: ((numbers >= span[:, 0]) & (numbers < span[:, 1])).astype(float)
        for name, span in spans.items()
    }


def test_a_lucky_figure_at_one_budget_does_not_decide():
    """505 against 500 right answers, not of the same samples, is within the standard error."""
    hits = hits_with(
        lucky=[(0, 505), (0, 500), (0, 500)], steady=[(100, 600), (100, 650), (100, 650)]
    )
    assert {pick(hits, number) for number in range(3)} == {"steady"}


def test_a_clear_lead_at_one_budget_decides_there():
    hits = hits_with(cheap=[(0, 600), (0, 500), (0, 500)], steady=[(100, 600), (0, 580), (0, 580)])
    assert [pick(hits, number) for number in range(3)] == ["cheap", "steady", "steady"]


def test_where_time_counts_ties_go_to_the_quicker_decision():
    quick, slow = np.zeros((100, 1)), np.zeros((100, 1))
    quick[:50], slow[1:51] = 1, 1  # equally good
    hits, seconds = {"quick": quick, "slow": slow}, {"quick": 1e-5, "slow": 6e-5}
    assert pick(hits, 0) == "slow"
    assert pick(hits, 0, seconds) == "quick"
    slow[51:53] = 1  # better by its own figure, though not clearly
    assert pick(hits, 0, seconds) == "slow"
    quick[:90] = 1  # clearly better
    assert pick(hits, 0, seconds) == "quick"


def in_seconds(splits, seconds):
    """The same ledgers with exits that take so long each."""
    stages = (seconds,) * splits["val"].num_exits
    costs = Costs(stages, (0.0,) * len(stages), unit="seconds")
    return {name: ledger.with_costs(costs) for name, ledger in splits.items()}


def test_auto_warns_where_decisions_take_longer_than_what_they_save(splits):
    slow = in_seconds(splits, 0.01)
    assert "decisions" not in auto(slow["held_out"], slow["val"], [0.5]).why[0.5]
    fast = in_seconds(splits, 1e-6)
    with pytest.warns(CostWarning, match=r"decide about many items in step"):
        auto(fast["held_out"], fast["val"], [0.5])


def test_every_sample_of_held_out_and_val_is_counted_once(ledgers):
    (method,) = find_methods(["baseline:smooth"], 10)
    pooled = pool(ledgers["held_out"], ledgers["val"])
    hits = CrossFit.of(method, pooled).hits([0.1, 0.5, 1.0])
    assert hits.shape == (1600, 3)
    assert not hits[:, 0].any()  # the first exit alone costs more
    assert ((hits >= 0) & (hits <= 1)).all()
    assert hits[:, 1].mean() < hits[:, 2].mean()


def test_samples_that_thresholds_are_tuned_on_are_not_those_that_are_counted(ledgers):
    """Labels of the other half may change what a half is answered with, its own never do."""
    (method,) = find_methods(["baseline:smooth"], 10)
    val = ledgers["val"]
    policy = method.policy().fit(ledgers["held_out"])
    before = hits_on(policy.replay(val, "val"), "smooth", [0.5])
    fold = next(folds(len(val), 2))[1]
    labels = val.labels.copy()
    labels[fold] = (labels[fold] + 1) % 10
    other = Ledger(val.logits, labels, val.cost_model, split="val", network=val.network)
    after = hits_on(policy.replay(other, "val"), "smooth", [0.5])
    predictions = val.logits.argmax(2)[fold]
    never = (predictions != labels[fold][:, None]).all(1)
    assert not after[fold][never].any()
    always = (predictions == val.labels[fold][:, None]).all(1)
    assert before[fold][always].all()


def test_samples_of_a_group_are_one_witness(ledgers):
    val = ledgers["val"]
    policy = Policy(METHODS["baseline"].scorer).fit(ledgers["held_out"])
    replay = policy.replay(val, "val")
    groups = np.arange(len(val)) // 4
    hits = hits_on(replace(replay, groups=groups), "geometric", [0.5])
    assert hits.shape == (200, 1)  # so that `pick` counts 200 and not 800


@pytest.fixture(scope="module")
def uneven():
    """Few groups of many samples, one of which has scores far below the others."""
    made, rng = (
        synthetic.ledgers(seed=0, samples=600, exits=4, classes=10),
        np.random.default_rng(0),
    )
    costs = Costs(stages=(0.2, 0.2, 0.3, 0.3), heads=(0.0,) * 4, unit="relative")
    groups = np.sort(rng.integers(6, size=600))
    return {
        name: Ledger(
            ledger.logits * np.where(groups + 6 * (name == "val") == 0, 0.01, 1.0)[:, None, None],
            ledger.labels,
            costs,
            split=name,
            network="uneven",
            groups=[f"{name} {number}" for number in groups],
        )
        for name, ledger in made.items()
    }


@pytest.mark.parametrize("name", ["break-even", "baseline:shared"])
def test_no_fold_is_credited_with_a_point_above_the_budget(uneven, name):
    """The least that a policy costs is that of its cheapest point, not the first exit's price."""
    (method,) = find_methods([name], 10)
    pooled = pool(uneven["held_out"], uneven["val"])
    crossed = CrossFit.of(method, pooled)
    first = crossed.replay.by_group(1.0 * crossed.replay.correct)[:, 0].mean()
    at_first, below = crossed.hits([0.2, 0.19]).mean(axis=0)
    assert at_first == pytest.approx(first, abs=1e-3)
    assert below == 0


def test_a_policy_that_is_never_cheap_is_not_rated_at_what_it_cannot_cost(uneven):
    policy = Policy(METHODS["baseline"].scorer).fit(uneven["held_out"])
    never_first = np.array([[np.inf, -np.inf, 0.0, -np.inf]])  # costs 0.4, and exit 0 would 0.2
    replay = replace(policy.replay(uneven["val"], "val"), thresholds=never_first)
    assert not hits_at(replay, [0.25]).any()
    assert hits_at(replay, [0.4]).mean() == pytest.approx(replay.correct[:, 1].mean())


def test_copies_do_not_see_the_labels_of_the_samples_that_they_are_for(ledgers):
    (method,) = find_methods(["eefp-logistic"], 10)
    pooled = pool(ledgers["held_out"].take(range(200)), ledgers["val"].take(range(200)))
    crossed = CrossFit.of(method, pooled)
    fold = crossed.folds[0]
    labels = pooled.labels.copy()
    labels[fold] = (labels[fold] + 1) % 10
    parts = {"split": "held_out", "sample_ids": pooled.sample_ids, "network": pooled.network}
    other = CrossFit.of(method, Ledger(pooled.logits, labels, pooled.cost_model, **parts))
    assert len(crossed.folds) == 4
    assert sorted(np.concatenate(crossed.folds).tolist()) == list(range(400))
    assert np.array_equal(crossed.replay.scores[fold], other.replay.scores[fold])
    rest = crossed.folds[1]
    assert not np.array_equal(crossed.replay.scores[rest], other.replay.scores[rest])


def test_what_is_chosen_is_fitted_on_all_samples_and_meets_its_budget_on_others(ledgers):
    held_out, val = (ledgers[name].take(range(400)) for name in ("held_out", "val"))
    plan = auto(held_out, val, [0.5], ["eefp-logistic"])
    assert [(use.step, use.samples) for use in plan[0.5].uses] == [("fit", 800), ("tune", 800)]
    (method,) = find_methods(["eefp-logistic"], 10)
    (apart,) = method.plans(held_out, val, [0.5], seeds=1)
    expected = evaluate(apart[0.5], ledgers["test"]).mean_cost
    assert evaluate(plan[0.5], ledgers["test"]).mean_cost == pytest.approx(expected, abs=0.02)
    assert plan[0.5].confidence is not None
    with pytest.raises(SplitError, match="already used to fit"):
        plan[0.5].tune(val)


def coarse(splits):
    """Logits that take a few values only, so that confidences are tied."""
    return {
        name: Ledger(
            np.sign(ledger.logits) * (np.abs(ledger.logits) > 6),
            ledger.labels,
            ledger.cost_model,
            split=name,
            sample_ids=ledger.sample_ids,
            network="coarse",
        )
        for name, ledger in splits.items()
    }


@pytest.mark.parametrize("method", ["eefp-logistic", "break-even", "baseline:smooth"])
def test_the_cost_that_is_stated_is_that_of_the_policy_that_is_saved(ledgers, method):
    """Also where confidences are tied, and copies put a threshold between equal ones."""
    splits = coarse(ledgers)
    plan = auto(splits["held_out"], splits["val"], [0.3, 0.5], [method])
    pooled = pool(splits["held_out"], splits["val"])
    for policy in plan.values():
        stated = policy.points.budgets[policy.selected]
        spent = policy.replay(pooled, "val", allow_split="held_out").costs.mean()
        assert stated == pytest.approx(spent, abs=1e-9)
        assert evaluate(policy, splits["test"]).mean_cost == pytest.approx(stated, abs=0.03)


def test_auto_spends_what_it_was_given():
    """On average over worlds, where every exit adds something."""
    gaps = []
    for size in (150, 400):
        for seed in range(4):
            made = synthetic.ledgers(seed=seed, samples=2000, exits=5, structure=False)
            held_out, val = (made[name].take(range(size)) for name in ("held_out", "val"))
            plan = auto(held_out, val, [0.4, 0.6], ["eefp-logistic"])
            gaps += [plan[b].replay(made["test"]).costs.mean() - b for b in plan]
    assert abs(np.mean(gaps)) < 0.005


def test_auto_says_what_it_does_not_spend_since_later_exits_are_worse():
    made = synthetic.ledgers(seed=3, samples=2000, relapse=0.6)
    few = [made[name].take(range(400)) for name in ("held_out", "val")]
    plan = auto(*few, [0.5, 0.9], FEW)
    assert "more makes answers worse" in plan.why[0.9]
    assert "more makes answers worse" not in plan.why[0.5]
    half, most = (plan[b].replay(plan.view(made["test"])) for b in (0.5, 0.9))
    assert most.right.mean() > half.right.mean() - 0.01
    assert most.costs.mean() < 0.8


def test_a_method_is_not_credited_with_what_lies_between_points_that_are_far_apart(ledgers):
    policy = Policy(METHODS["baseline"].scorer).fit(ledgers["held_out"])
    ends = np.array([[-np.inf] * 5, [np.inf] * 5])
    replay = replace(policy.replay(ledgers["val"], "val"), thresholds=ends)
    assert np.array_equal(hits_at(replay, [0.9])[:, 0], replay.correct[:, 0])


def test_splits_that_share_samples_are_not_pooled(ledgers):
    with pytest.raises(SplitError, match="already used to fit"):
        auto(ledgers["held_out"], ledgers["held_out"].as_split("val"), [0.5], FEW)


def test_a_gain_that_may_be_luck_is_called_that():
    splits = synthetic.ledgers(seed=0, samples=60, exits=4)
    plan = auto(splits["held_out"], splits["val"], [0.7], ["baseline", "margin"])
    luck = "from which it cannot be told with so few samples"
    assert (plan.methods[0.7] == "baseline") != (luck in plan.why[0.7])


def test_auto_takes_part_in_a_comparison_as_what_it_chooses(ledgers):
    table = compare(
        **ledgers,
        methods=[*FEW, Auto(candidates=tuple(FEW))],
        budgets=[0.4, 0.7],
        seeds=2,
        resamples=50,
    )
    row, same = table["auto"], table["baseline:smooth"]
    assert row.settings["chosen"] == {"0.4": "baseline:smooth", "0.7": "baseline:smooth"}
    for column in ("ece", "eefp"):  # thresholds are from twice as many samples
        assert row.figures[column].value == pytest.approx(same.figures[column].value, nan_ok=True)
    assert row.differences["baseline"]["accuracy@0.4"].low > 0


def test_a_comparison_of_auto_measures_each_budget_with_its_own_policy(ledgers, monkeypatch):
    """Whatever was chosen for a budget is what the figure at that budget shows."""
    names = ["baseline", "patience:smooth"]
    # The function of the same name hides the module.
    module = import_module("offramp.advice.auto")
    monkeypatch.setattr(module, "pick", lambda hits, number, seconds: names[number])
    table = compare(
        **ledgers,
        methods=[*names, Auto(candidates=tuple(names))],
        budgets=[0.4, 0.7],
        seeds=1,
        resamples=50,
    )
    for name, key in zip(names, ("accuracy@0.4", "accuracy@0.7"), strict=True):
        expected = table[name].figures[key].value  # but for twice the samples for thresholds
        assert table["auto"].figures[key].value == pytest.approx(expected, abs=0.02)
    assert table["auto"].exits[0].eefp == pytest.approx(table[names[1]].exits[0].eefp, nan_ok=True)


def test_auto_with_dropped_exits_is_compared_with_them(ledgers):
    dear = {split: with_heads(ledger, 3e5) for split, ledger in ledgers.items()}
    few = Auto(candidates=("baseline:smooth",))
    table = compare(**dear, methods=["baseline:smooth", few], budgets=[0.6], seeds=1, resamples=50)
    better = table["auto"].figures["accuracy@0.6"].value
    assert better > table["baseline:smooth"].figures["accuracy@0.6"].value
    assert len(table["auto"].settings["exits"]) < 5


def test_cross_validated_accuracy_is_what_test_shows(plan, ledgers):
    """Estimated on folds that thresholds were not chosen on, so it is not too good to be true."""
    for budget, policy in plan.items():
        expected = plan.accuracies["baseline:smooth"][budget]
        assert evaluate(policy, ledgers["test"]).accuracy == pytest.approx(expected, abs=0.04)


def test_test_is_never_touched_and_uses_are_recorded(plan, ledgers):
    for policy in plan.values():
        assert [(use.step, use.split) for use in policy.uses] == [
            ("fit", "held_out and val"),
            ("tune", "held_out and val"),
        ]


def test_policies_of_one_plan_do_not_share_their_points(ledgers):
    plan = auto(ledgers["held_out"], ledgers["val"], [0.4, 0.7], ["baseline"])
    assert plan[0.4].selected != plan[0.7].selected
    assert plan[0.4].at(budget=0.7).selected == plan[0.7].selected
    assert "best other" not in plan.why[0.4]


def test_a_budget_that_was_not_asked_for_is_refused(plan):
    with pytest.raises(BudgetError, match=r"for the budgets 0\.4, 0\.7, got 0\.5"):
        plan[0.5]


def test_impossible_budgets_are_refused(ledgers):
    with pytest.raises(ConfigError, match="must be distinct"):
        auto(ledgers["held_out"], ledgers["val"], [0.5, 0.5], FEW)
    with pytest.raises(BudgetError, match=r"must lie in \[0\.2"):
        auto(ledgers["held_out"], ledgers["val"], [0.05], ["baseline"])


def test_heads_that_cost_too_much_are_dropped(ledgers):
    dear = {split: with_heads(ledger, 3e5) for split, ledger in ledgers.items()}
    plan = auto(dear["held_out"], dear["val"], [0.6], ["baseline:smooth"])
    assert len(plan.exits) < 5
    assert plan.exits[-1] == 4
    kept = evaluate(plan[0.6], plan.view(dear["test"]))
    (method,) = find_methods(["baseline:smooth"], 10)
    every = method.policy().fit(dear["held_out"]).tune(dear["val"], "smooth").at(budget=0.6)
    assert kept.accuracy > evaluate(every, dear["test"]).accuracy


def test_exits_without_head_costs_are_all_kept(ledgers):
    def never(exits):
        raise AssertionError("nothing is to be rated")

    assert choose_exits(ledgers["val"], never) == [0, 1, 2, 3, 4]


def test_exits_are_dropped_while_that_helps_and_the_last_stays():
    costs = Costs(stages=(1, 1, 1, 1), heads=(1, 1, 1, 1))
    ledger = Ledger(np.zeros((4, 4, 2)), [0, 1, 0, 1], costs, split="val")
    assert choose_exits(ledger, lambda exits: -len(exits)) == [2, 3]
    assert choose_exits(ledger, lambda exits: -abs(len(exits) - 3)) == [1, 2, 3]
    assert choose_exits(ledger, lambda exits: 0.0) == [0, 1, 2, 3]


def test_exits_that_pay_are_called_worth_it(ledgers):
    advice = advise(**ledgers, budgets=[0.5], methods=FEW, resamples=200)
    assert advice.verdict == "exits"
    assert advice.text.startswith("Early exits are worth it: +")
    (row,) = advice.budgets
    assert row.over_mix.low > 0
    assert row.mix.cost == pytest.approx(row.cost)
    assert row.accuracy - row.mix.accuracy == pytest.approx(row.over_mix.value)
    assert f"for {row.cost:.0%} of the compute." in advice.text, "the cost, not the budget"
    head, line = str(advice).splitlines()[-2:]
    assert head.split() == " ".join(COLUMNS).split()
    shown = f"50% {100 * row.accuracy:.2f} {row.cost:.1%} {100 * row.over_mix.value:+.2f}".split()
    assert line.split()[:2] == shown[:2]
    assert line.split()[3] == shown[3]
    assert line.endswith(row.chosen)


def ledgers_where(right):
    """Every exit is right on its share of the samples, and says nothing of which."""
    made = {}
    for number, split in enumerate(("held_out", "val", "test")):
        rng = np.random.default_rng(number)
        labels = rng.integers(4, size=600)
        hit = rng.random((600, 1)) < np.array(right)  # nested: no exit adds to a later
        given = np.where(hit, labels[:, None], (labels[:, None] + 1) % 4)
        logits = 0.01 * rng.random((600, len(right), 4)) + 5.0 * np.eye(4)[given]
        costs = [0.3, 0.6, 1.0]
        made[split] = Ledger(logits, labels, costs, split=split, network="flat")
    return made


def test_a_fixed_exit_suffices_where_the_network_stops_learning():
    advice = advise(**ledgers_where([0.8, 0.8, 0.8]), budgets=[0.5], methods=FEW, resamples=200)
    assert advice.verdict == "fixed"
    assert "exit 0 alone costs 30%" in advice.text


@pytest.mark.parametrize(("samples", "verdict"), [(12, "unclear"), (600, "fixed")])
def test_a_fixed_exit_suffices_only_where_it_is_shown(samples, verdict):
    """It once did with 12 samples: -40 points [-110, +30]."""
    ledgers = ledgers_where([0.7, 0.7, 0.7])
    flip = np.random.default_rng(5).random(samples) < (0.3 if samples == 12 else 0.0)
    test = ledgers["test"].take(range(samples))
    logits = test.logits.copy()
    logits[flip, :2] = -logits[flip, :2]
    ledgers["test"] = Ledger(logits, test.labels, test.costs, split="test", network="flat")
    advice = advise(**ledgers, budgets=[0.5], methods=FEW, resamples=200)
    assert advice.verdict == verdict
    if verdict == "unclear":
        assert advice.text.startswith("12 test samples cannot tell: ")
    for row in advice.budgets:
        for gap in (row.over_mix, row.over_full):
            assert -1 <= gap.low <= gap.value <= gap.high <= 1


def test_a_last_exit_that_is_worse_is_named_with_where_to_cut():
    advice = advise(**ledgers_where([0.3, 0.9, 0.6]), budgets=[0.5], methods=FEW, resamples=50)
    (note,) = advice.notes
    assert note.startswith("On val, the last exit is less accurate than exit 1 by -")
    assert "cut the network there (ledger.keep_exits(range(2))), which saves 40% of it." in note
    assert note in str(advice)


def test_what_a_random_mix_reaches_is_no_gain():
    """Scores say nothing here: the policy is a mix, better than any exit within its budget."""
    advice = advise(**ledgers_where([0.3, 0.5, 0.9]), budgets=[0.8], methods=FEW, resamples=200)
    (row,) = advice.budgets
    assert row.accuracy > 0.6  # exit 1 alone has 50 %
    assert not row.over_mix.is_clear
    assert advice.verdict == "full"


def test_neither_is_said_where_only_the_last_exit_is_any_good():
    advice = advise(**ledgers_where([0.2, 0.3, 0.9]), budgets=[0.3], methods=FEW, resamples=200)
    assert advice.verdict == "full"
    assert advice.text.startswith("Neither")


def test_the_command_gives_a_verdict_and_saves_policies(ledgers, tmp_path):
    for split, ledger in ledgers.items():
        ledger.save(tmp_path / "ledgers" / split)
    call = ["advise", str(tmp_path / "ledgers"), "--budgets", "0.5", "--methods", "baseline"]
    result = CliRunner().invoke(app, [*call, "--out", str(tmp_path / "plan")])
    assert result.exit_code == 0, result.output
    assert "Early exits are worth it" in result.output
    assert "over the mix" in result.output
    found = json.loads(CliRunner().invoke(app, [*call, "--json"]).output)
    (row,) = found["budgets"]
    assert found["verdict"] == "exits"
    assert row["over_mix"]["low"] > 0
    assert 0 < row["accuracy"] < 1
    policy = Policy.load(tmp_path / "plan" / "policy-0.5")
    assert evaluate(policy, ledgers["test"]).mean_cost == pytest.approx(0.5, abs=0.05)


def test_the_comparing_command_takes_auto_as_a_row(ledgers, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "auto", Auto(candidates=tuple(FEW)))
    for split, ledger in ledgers.items():
        ledger.save(tmp_path / "ledgers" / split)
    call = ["compare", str(tmp_path / "ledgers"), "--methods", "baseline,auto"]
    result = CliRunner().invoke(app, [*call, "--resamples", "20", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "| Auto |" in (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8")


@pytest.mark.real
@pytest.mark.slow
def test_on_a_real_network_auto_gains_over_the_baseline(real_splits):
    advice = advise(
        *real_splits.values(),
        budgets=[0.25, 0.5],
        methods=["baseline", "eefp-no-history:smooth"],
    )
    assert advice.verdict == "exits"
    assert all("EEFP, no history" in row.why for row in advice.budgets)


def test_where_exits_do_not_pay_the_plan_is_the_full_network():
    splits = synthetic.ledgers(seed=0, samples=300, exits=4)
    # An early head takes as long as the network without exits, and stages more than that.
    dear = Costs((0.35,) * 4, (1.0, 1.0, 1.0, 0.05), reference=1.0, unit="seconds")
    timed = {name: ledger.with_costs(dear) for name, ledger in splits.items()}
    plan = auto(timed["held_out"], timed["val"], [0.5, 1.0], ["baseline"])
    for budget, policy in plan.items():
        assert policy.exits == (3,)
        assert "do not use exits on this machine" in plan.why[budget]
        outcome = evaluate(policy, timed["test"])
        assert (outcome.mean_cost, outcome.accuracy) == (1.0, outcome.full_accuracy)
    advice = advise(**timed, budgets=[0.5], methods=["baseline"])
    assert advice.text.startswith("Do not use exits on this machine at this batch size.")


def test_the_method_gives_the_plan_that_the_function_gives():
    """`fit --method auto` once refused a budget at which `auto` gave the full network."""
    splits = synthetic.ledgers(seed=0, samples=200, exits=4)
    dear = Costs((0.25,) * 4, (1.0, 1.0, 1.0, 0.0), reference=1.0, unit="seconds")
    timed = {name: ledger.with_costs(dear) for name, ledger in splits.items()}
    parts = timed["held_out"], timed["val"], [0.5]
    method = Auto(candidates=("baseline",))
    (plan,) = method.plans(*parts, seeds=1)
    found = auto(*parts, ["baseline"])
    assert plan.why == found.why
    assert plan.methods == found.methods == {0.5: "full-network"}
    assert plan[0.5].fingerprint() == found[0.5].fingerprint()
    plan.check_budgets()
    table = compare(**timed, methods=["baseline", method], budgets=[0.5], seeds=1, resamples=10)
    assert table["auto"].figures["accuracy@0.5"].cost == 1.0
    assert table["auto"].exits[0].accuracy[3] == table.references.full.accuracy


def test_fit_saves_the_full_network_where_auto_does(tmp_path):
    dear = Costs((0.25,) * 4, (1.0, 1.0, 1.0, 0.0), reference=1.0, unit="seconds")
    for split, ledger in synthetic.ledgers(seed=0, samples=100, exits=4).items():
        ledger.with_costs(dear).save(tmp_path / "ledgers" / split)
    saved = []
    for call in ("fit --method auto", "auto"):
        place = tmp_path / call.replace(" ", "")
        words = [*call.split(), str(tmp_path / "ledgers"), "--budget", "0.5", "--out", str(place)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        saved.append(Policy.load(place))
    assert saved[0].fingerprint() == saved[1].fingerprint()
    assert [policy.exits for policy in saved] == [(3,), (3,)]
    assert saved[0].confidence is not None


def test_a_policy_whose_fit_is_random_gets_a_confidence_from_the_method_too(ledgers):
    few = {name: ledger.take(range(200)) for name, ledger in ledgers.items()}
    random = Method("random", "Random", Corrector(k=2, epochs=1))
    plans = Auto(candidates=(random,)).plans(few["held_out"], few["val"], [0.4, 0.7], seeds=2)
    assert len(plans) == 2
    for plan in plans:
        assert plan[0.4].confidence is plan[0.7].confidence is not None
    assert plans[0][0.4].fingerprint() != plans[1][0.4].fingerprint()


def test_exits_whose_look_costs_more_than_it_saves_are_dropped():
    splits = synthetic.ledgers(seed=0, samples=300, exits=4)
    looks = (0.02, 0.6, 0.02, 0.0)
    costs = Costs((0.25,) * 4, looks, reference=1.0, unit="seconds")
    timed = {name: ledger.with_costs(costs) for name, ledger in splits.items()}
    plan = auto(timed["held_out"], timed["val"], [0.5, 0.7], ["baseline"])
    assert all(1 not in policy.exits and len(policy.exits) > 1 for policy in plan.values())


def test_a_plan_in_seconds_says_where_fixed_exits_are_as_good():
    splits = synthetic.ledgers(seed=0, samples=600, exits=4)

    def why(look):
        costs = Costs((0.25,) * 4, (look, look, look, 0.0), reference=1.0, unit="seconds")
        held_out, val = (splits[name].with_costs(costs) for name in ("held_out", "val"))
        return auto(held_out, val, [0.7], ["baseline"]).why[0.7]

    assert "no clear gain over fixed exits in the same time" in why(0.2)
    assert "no clear gain" not in why(0.0)


def test_decisions_that_look_back_are_charged_for_it():
    splits = synthetic.ledgers(seed=0, samples=300, exits=4)
    stages, heads = (0.25,) * 4, (0.01, 0.01, 0.01, 0.0)

    def chosen(look):
        parts = (np.array([part]).T for part in (stages, heads))
        times = BatchTimes(*parts, 1.0, np.array([[look, look, look, 0.0]]).T)
        held_out, val = (splits[name].with_costs(times) for name in ("held_out", "val"))
        return auto(held_out, val, [0.6])

    cheap, dear = chosen(0.01), chosen(0.2)
    looks_back = [cheap.accuracies[name][0.6] for name in ("eefp-logistic", "break-even")]
    assert min(looks_back) > max(dear.accuracies[n][0.6] for n in ("eefp-logistic", "break-even"))
    assert dear.methods[0.6] == "baseline:smooth"
    assert cheap.accuracies["baseline"] == dear.accuracies["baseline"]


def test_auto_uses_some_of_many_samples_and_whole_groups(monkeypatch):
    monkeypatch.setattr(import_module("offramp.advice.auto"), "ENOUGH", 200)
    splits = synthetic.ledgers(seed=0, samples=1000, exits=4)
    grouped = {
        name: Ledger(
            ledger.logits,
            ledger.labels,
            ledger.cost_model,
            split=name,
            network="grouped",
            groups=[f"{name}-{row // 4}" for row in range(len(ledger))],
        )
        for name, ledger in splits.items()
    }
    for ledgers in (splits, grouped):
        plan = auto(ledgers["held_out"], ledgers["val"], [0.5], ["baseline:smooth"])
        (policy,) = plan.distinct
        assert {use.samples for use in policy.uses} == {400}
        outcome = evaluate(policy.at(budget=0.5), ledgers["test"])
        assert outcome.mean_cost == pytest.approx(0.5, abs=0.05)


def test_samples_that_auto_left_out_are_as_good_as_new(monkeypatch):
    monkeypatch.setattr(import_module("offramp.advice.auto"), "ENOUGH", 200)
    splits = synthetic.ledgers(seed=0, samples=1000, exits=4)
    part = at_most(splits["val"], 200)
    again = at_most(splits["val"], 200)
    assert np.array_equal(part.sample_hashes(), again.sample_hashes()), "always the same ones"
    assert at_most(part, 200) is part
