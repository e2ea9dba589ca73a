import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from offramp import (
    Corrector,
    Ledger,
    MaxProbability,
    Method,
    Policy,
    Scorer,
    TemperatureScaling,
    compare,
    evaluate,
    synthetic,
)
from offramp.arrays import softmax
from offramp.errors import ConfigError, LedgerError, SplitError
from offramp.evaluation.bootstrap import Resamples, difference
from offramp.evaluation.references import best_mix, reachable_accuracies, references
from offramp.methods import find_methods
from offramp.metrics import ece, eefp
from offramp.progress import Progress
from offramp.registry import GROUPS
from offramp.scorers import Entropy, Margin


@pytest.fixture(scope="module")
def policy(splits):
    """As the comparison's baseline is made."""
    return Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"], "geometric")


@pytest.fixture(scope="module")
def table(splits):
    return compare(
        splits["held_out"],
        splits["val"],
        splits["test"],
        ["baseline", "temperature", "entropy", "eefp"],
        budgets=(0.1, 0.5),
        seeds=2,
        resamples=200,
    )


def test_outcome_is_what_a_loop_over_samples_finds(policy, splits):
    test, chosen = splits["test"], policy.at(budget=0.5)
    outcome = evaluate(chosen, test)
    exits = chosen.decide(test).tolist()
    costs = (test.costs / test.reference_cost).tolist()
    right = [int(test.logits[n, m].argmax()) == int(test.labels[n]) for n, m in enumerate(exits)]
    lost = ~(test.logits.argmax(axis=2) == test.labels[:, None]).any(axis=1)
    assert outcome.accuracy == pytest.approx(np.mean(right))
    assert outcome.mean_cost == pytest.approx(np.mean([costs[m] for m in exits]))
    assert outcome.exit_shares.tolist() == pytest.approx(np.bincount(exits, minlength=5) / 600)
    assert outcome.hopeless_share == pytest.approx(lost.mean())
    spent = [costs[m] for m, hopeless in zip(exits, lost, strict=True) if hopeless]
    assert outcome.hopeless_cost == pytest.approx(np.mean(spent))
    assert outcome.hopeless_accuracy == 0


def test_calibration_is_about_the_answer_and_prediction_about_the_stop_target(policy, splits):
    test = splits["test"]
    replay = policy.replay(test)
    outcome = evaluate(policy.at(budget=0.5), test)
    probs = softmax(test.logits).max(axis=2)
    for m in range(5):
        assert outcome.ece[m] == pytest.approx(ece(probs[:, m], replay.correct[:, m]), abs=1e-3)
    assert outcome.eefp[:-1] == pytest.approx(eefp(replay.scores, replay.stop_targets)[:-1])
    assert np.isnan(outcome.eefp[-1])


def test_scorers_without_a_probability_have_no_calibration_error(splits):
    policy = Policy(Entropy()).fit(splits["held_out"]).tune(splits["val"]).at(budget=0.5)
    outcome = evaluate(policy, splits["test"])
    assert np.isnan(outcome.ece[:-1]).all()
    assert not np.isnan(outcome.ece[-1])
    assert "None" not in str(outcome)
    json.dumps(outcome.to_json(), allow_nan=False)


def test_figures_come_from_test(policy, splits):
    with pytest.raises(SplitError, match="needs the split 'test'"):
        evaluate(policy.at(budget=0.5), splits["val"])
    evaluate(policy.at(budget=0.5), splits["val"], allow_split="val")


def test_a_policy_comes_before_its_ledger(policy, splits):
    with pytest.raises(ConfigError, match="in this order; the first was a LogitLedger"):
        evaluate(splits["test"], policy)


def test_printed_outcome_says_what_was_measured(policy, splits):
    outcome = evaluate(policy.at(budget=0.5), splits["test"])
    text = str(outcome)
    assert f"accuracy {outcome.accuracy:.2%}" in text
    assert len(text.splitlines()) == 4 + 5
    without = replace(outcome, hopeless_share=0.0, hopeless_cost=float("nan"))
    assert "hopeless samples: none" in str(without)


def test_a_budget_out_of_reach_gives_the_nearest_point_with_its_cost(table):
    figure = table["baseline"].figures["accuracy@0.1"]
    first = table["baseline"].curves[0]
    assert figure.cost == pytest.approx(float(first.costs[0]))
    assert figure.value == pytest.approx(float(first.accuracies[0]))
    assert table["baseline"].figures["accuracy@0.5"].cost is None


def test_references_by_hand(splits):
    val, test = splits["val"], splits["test"]
    rows = references(val, test, [0.25, 0.5, 1.0])
    accuracy = (test.logits.argmax(axis=2) == test.labels[:, None]).mean(axis=0)
    assert [row.accuracy for row in rows.fixed] == pytest.approx(accuracy.tolist())
    assert rows.fixed[2].cost == pytest.approx((3e6 + 1e4) / (5e6 + 1e4))
    assert rows.full.cost == 1.0
    assert rows.best_fixed[1].cost <= 0.5
    oracle = [point.accuracy for point in rows.oracle]
    assert oracle == sorted(oracle)
    assert oracle[-1] == pytest.approx(1 - rows.hopeless_share)
    for mix, best, budget in zip(rows.mixes, rows.best_fixed, [0.25, 0.5, 1.0], strict=True):
        low, high = (rows.fixed[index] for index in mix.exits)
        assert mix.cost == pytest.approx(low.cost + mix.share * (high.cost - low.cost))
        assert best.cost - 1e-9 <= mix.cost <= budget + 1e-9
        assert mix.accuracy == pytest.approx(
            low.accuracy + mix.share * (high.accuracy - low.accuracy)
        )


def test_what_is_reachable_lies_between_a_mix_and_the_oracle(splits):
    rows = references(splits["val"], splits["test"], [0.25, 0.5, 0.75])
    points = zip(rows.mixes, rows.reachable, rows.oracle, strict=True)
    assert all(mix.accuracy < seen.accuracy <= best.accuracy for mix, seen, best in points)
    assert all(
        point.cost <= budget
        for point, budget in zip(rows.reachable, [0.25, 0.5, 0.75], strict=True)
    )


def test_the_share_of_what_is_reachable_is_counted_from_the_baseline(table):
    place = table.budgets.index(0.5)
    reached, base = (table[name].accuracy(0.5) for name in ("eefp", "baseline"))
    possible = table.references.reachable[place].accuracy - base
    assert table.reachable_share("eefp", 0.5) == pytest.approx((reached - base) / possible)
    assert table.reachable_share("baseline", 0.5) == 0


def test_what_is_reachable_rests_on_no_samples_own_label(splits):
    """Labels are made up here: a rule that had seen them would be right more often."""
    test = splits["test"]
    labels = np.random.default_rng(0).integers(10, size=len(test))
    noise = Ledger(test.logits, labels, test.cost_model, split="test", network=test.network)
    (found,) = reachable_accuracies(noise, [0.5])
    assert found.accuracy == pytest.approx(0.1, abs=0.04)  # three standard errors


def test_a_single_test_sample_is_refused(splits):
    with pytest.raises(LedgerError, match="test needs at least two samples"):
        compare(**{**splits, "test": splits["test"].take([0])}, methods=["baseline"])


def test_no_mix_of_two_exits_is_better_than_the_best():
    generator = np.random.default_rng(0)
    costs, accuracies = np.sort(generator.random(6)).tolist(), generator.random(6).tolist()
    for budget in (costs[0] / 2, *costs, 0.5, 1.0):
        first, second, share = best_mix(costs, accuracies, budget)
        reached = accuracies[first] + share * (accuracies[second] - accuracies[first])
        within = [index for index in range(6) if costs[index] <= budget]
        assert (
            costs[first] + share * (costs[second] - costs[first]) <= max(budget, costs[0]) + 1e-9
        )
        for low in within:
            assert reached >= accuracies[low]
            for high in set(range(6)) - set(within):
                part = (budget - costs[low]) / (costs[high] - costs[low])
                mixed = accuracies[low] + part * (accuracies[high] - accuracies[low])
                assert reached >= mixed - 1e-9


def test_below_its_cost_the_first_exit_is_the_reference(splits):
    rows = references(splits["val"], splits["test"], [0.01])
    assert rows.best_fixed[0].exit_index == 0
    assert rows.oracle[0].accuracy == rows.fixed[0].accuracy
    assert rows.oracle[0].cost == pytest.approx(1.01e6 / 5.01e6)


def test_without_the_last_exit_the_full_network_is_the_last_kept_one(splits):
    val, test = (splits[name].keep_exits([0, 2]) for name in ("val", "test"))
    rows = references(val, test, [0.5])
    assert rows.full == rows.fixed[-1]
    assert rows.full.cost < 0.65
    once, twice = test.cost_model, val.keep_exits([1]).cost_model
    assert float(twice.alone[0]) == float(once.alone[1]) < once.mean_reference


def test_only_random_fits_have_a_spread_over_seeds(table):
    assert table["baseline"].figures["accuracy@0.5"].spread is None
    assert table["temperature"].figures["ece"].spread is None
    ours = table["eefp"]
    assert ours.figures["accuracy@0.5"].spread is not None
    assert ours.figures["ece_last"].spread is None  # no seed plays a part at the last exit
    assert len(ours.curves) == 2


def test_means_leave_the_last_exit_out(table):
    for method in table.methods:
        runs = method.exits
        eefps = [np.mean(run.eefp[:-1]) for run in runs]
        assert method.figures["eefp"].value == pytest.approx(np.mean(eefps))
    assert table["baseline"].figures["ece_last"].value == table["baseline"].exits[0].ece[-1]


def test_differences_are_of_the_figures_and_lie_in_their_intervals(table):
    ours, rival = table["eefp"], table["temperature"]
    for column, gap in ours.differences["temperature"].items():
        expected = ours.figures[column].value - rival.figures[column].value
        assert gap.value == pytest.approx(expected)
        assert gap.low <= gap.value <= gap.high
    assert "baseline" not in table["baseline"].differences
    assert "ece" not in table["entropy"].differences["baseline"]


def test_all_methods_that_may_be_as_good_as_the_best_are_marked(table):
    for column in table.compared:
        rated = [m for m in table.methods if not np.isnan(m.figures[column.key].value)]
        best = max(rated, key=lambda m: column.sign * m.figures[column.key].value)
        assert best.figures[column.key].among_best
    assert table["eefp"].figures["eefp"].among_best
    assert not table["baseline"].figures["eefp"].among_best
    assert not table["entropy"].figures["ece"].among_best


def test_comparison_is_plain_json(table):
    text = json.dumps(table.to_json(), allow_nan=False)
    assert json.loads(text)["methods"][0]["name"] == "baseline"


def test_asking_for_a_method_that_was_not_compared(table):
    with pytest.raises(KeyError, match="'matrix' was not compared; compared were baseline"):
        table["matrix"]


def test_progress_is_reported_before_each_method(splits):
    class Steps(Progress):
        def step(self, *step):
            steps.append(step)

    steps = []
    compare(
        *(splits[name] for name in ("held_out", "val", "test")),
        methods=["baseline", "entropy"],
        resamples=10,
        progress=Steps(),
    )
    assert steps == [(0, 2, "Baseline"), (1, 2, "Entropy"), (2, 2, "done")]


def test_an_own_method_joins_the_comparison(splits):
    own = Method("mine", "Mine", Corrector(k=2, epochs=2), TemperatureScaling())
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    found = compare(*ledgers, methods=["baseline", own], seeds=1, resamples=10)
    assert found["mine"].label == "Mine"
    assert found["mine"].figures["ece"].spread is None  # one seed has no spread


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["bseline"]}, "no method 'bseline'; did you mean `baseline`"),
        ({"methods": []}, "`methods` must name at least one method"),
        ({"methods": ["eefp-top-10"], "few": 8}, None),
        ({"budgets": [0.5, 1.5]}, r"`budgets` must lie in \(0, 1\], got 1.5"),
        ({"budgets": []}, r"must be a list of shares, such as \[0.5\], got \[\]"),
        ({"budgets": [0.5, 0.5]}, "must be distinct"),
        ({"methods": [Method("a", "A"), Method("a", "B")]}, "two methods are called 'a'"),
        ({"seeds": 0}, "`seeds` must be a whole number of at least 1, got 0"),
        ({"resamples": 1}, "`resamples` must be a whole number of at least 2, got 1"),
    ],
)
def test_impossible_comparisons_are_refused(splits, changes, message):
    few = changes.pop("few", None)
    if few:
        splits = synthetic.ledgers(samples=50, classes=few)
        message = "`k` must not exceed the 8 classes, got 10"
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    with pytest.raises(ConfigError, match=message):
        compare(*ledgers, **changes)


def test_all_methods_of_the_papers_extended_table_have_a_name():
    names = {"baseline", "temperature", "vector", "matrix"}
    names |= {f"{kind}-top-{k}" for kind in ("eefp", "ccct") for k in (1, 2, 5, 10, "all")}
    assert names <= set(GROUPS["extended"])
    assert len(GROUPS["extended"]) == 15


@pytest.mark.parametrize("kind", ["eefp", "ccct"])
@pytest.mark.parametrize("k", [1, 7, "all"])
def test_correctors_that_read_any_number_of_classes_have_a_name(kind, k):
    names = [f"{kind}-top-{k}", f"{kind}-top-{k}-no-history:smooth"]
    with_history, without = find_methods(names, num_classes=10)
    target = {"eefp": "eefp", "ccct": "correctness"}[kind]
    assert with_history.scorer == Corrector(k=k, target=target)
    assert without.scorer == Corrector(k=k, target=target, history=False)
    assert (with_history.thresholds, without.thresholds) == ("geometric", "smooth")


@pytest.mark.parametrize("name", ["eefp-top-0", "eefp-top-", "eefp-top-few", "gates-top-3"])
def test_names_of_no_number_of_classes_are_unknown(name):
    with pytest.raises(ConfigError, match=f"no method '{name}'"):
        find_methods([name], num_classes=10)


def test_a_group_leaves_out_correctors_that_need_more_classes():
    names = [method.name for method in find_methods(["extended"], num_classes=8)]
    assert "eefp-top-10" not in names
    assert "eefp-top-5" in names


def test_resampled_figures_scatter_around_the_measured_ones(policy, splits):
    test = splits["test"]
    replay, resamples = policy.replay(test), Resamples(len(test), 2000, seed=1)
    mean = resamples.eefp(replay).mean()
    assert mean == pytest.approx(np.nanmean(eefp(replay.scores, replay.stop_targets)), abs=2e-3)
    found = resamples.accuracies(replay, [0.5])
    assert found.mean() == pytest.approx(replay.curve.at(0.5).accuracy, abs=5e-3)


def test_first_order_resampling_of_eefp_agrees_with_ranking_every_resample(policy, splits):
    test = splits["test"]
    replay, resamples = policy.replay(test), Resamples(len(test), 60, seed=2)
    exact = []
    for weights in resamples.weights:
        rows = np.repeat(np.arange(len(test)), (weights * len(test)).round().astype(int))
        exact.append(np.nanmean(eefp(replay.scores[rows], replay.stop_targets[rows])))
    found = resamples.eefp(replay)
    assert np.corrcoef(found, exact)[0, 1] > 0.98
    assert found.std() == pytest.approx(np.std(exact), rel=0.1)


def test_resampled_calibration_error_agrees_with_its_definition(policy, splits):
    test = splits["test"]
    replay, resamples = policy.replay(test), Resamples(len(test), 3)
    resamples.weights[:] = 1 / len(test)
    stated = policy.scorer.probability(replay.scores[:, :-1])
    expected = np.mean([ece(stated[:, m], replay.correct[:, m]) for m in range(4)])
    assert resamples.ece(replay, policy.scorer)[0] == pytest.approx(expected, abs=1e-4)


def test_a_difference_that_rounds_to_nothing_is_not_clear():
    noise = np.linspace(-1, 1, 101)
    assert not difference(1e-6, 1e-7 * noise).is_clear
    assert difference(0.01, 0.005 * noise).is_clear
    assert difference(-0.01, 0.005 * noise).is_clear
    assert not difference(0.01, 0.02 * noise).is_clear


def test_interval_of_a_mean_covers_it_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        sample = generator.normal(size=50)
        resamples = Resamples(50, 100, seed=trial)
        gap = difference(sample.mean(), resamples.means(sample[:, None])[:, 0])
        hits += gap.low <= 0 <= gap.high
    assert 0.88 < hits / 200 < 0.99


def test_methods_that_differ_in_their_thresholds_only_are_fitted_once(splits, monkeypatch):
    fitted = []
    fit_seeds = Policy.fit_seeds

    def counted(policy, *rest):
        fitted.append(policy)
        return fit_seeds(policy, *rest)

    monkeypatch.setattr(Policy, "fit_seeds", counted)
    names = ["baseline", "margin", "baseline:smooth"]
    table = compare(**splits, methods=names, budgets=(0.5,), resamples=20)
    assert len(fitted) == 2
    for name in ("baseline", "baseline:smooth"):
        alone = compare(**splits, methods=[name], budgets=(0.5,), resamples=20)[name]
        for part in ("accuracies", "costs"):
            expected = getattr(table[name].curves[0], part)
            np.testing.assert_array_equal(getattr(alone.curves[0], part), expected)


def test_one_name_alone_is_a_method(splits):
    assert [m.name for m in compare(**splits, methods="baseline", resamples=10).methods] == [
        "baseline"
    ]


def test_a_bare_scorer_is_refused_with_the_method_to_make_of_it(splits):
    with pytest.raises(ConfigError, match=r'offramp.Method\("mine", "Mine", Margin\('):
        compare(**splits, methods=["baseline", Margin()])


def test_scores_that_are_no_array_are_named(splits):
    @dataclass
    class Lists(Scorer):
        def score_at(self, history):
            return history.answer.max(axis=1).tolist()

    with pytest.raises(LedgerError, match="must return an array, got list at exit 0"):
        compare(**splits, methods=[Method("lists", "Lists", Lists())])


def test_near_thresholds_are_suggested(splits):
    with pytest.raises(ConfigError, match=r"after the colon.* did you mean `smooth`"):
        compare(**splits, methods=["baseline:smoth"])
