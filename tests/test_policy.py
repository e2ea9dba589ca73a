import json
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from offramp import (
    Corrector,
    Costs,
    Ledger,
    MaxProbability,
    Method,
    Policy,
    Scorer,
    TemperatureScaling,
    auto,
    compare,
    evaluate,
    synthetic,
)
from offramp.answers import (
    CurrentExit,
    MatrixScaling,
    ProductOfExperts,
    VectorScaling,
    crossfit_answers,
)
from offramp.batch_times import BatchTimes
from offramp.errors import (
    BudgetError,
    ConfigError,
    FewSamplesWarning,
    FileFormatError,
    LedgerError,
    NotFittedError,
    OriginError,
    OriginWarning,
    SplitError,
)
from offramp.files import write_sealed
from offramp.registry import THRESHOLDS
from offramp.scorers import BreakEven, LogisticCorrector, Margin
from offramp.thresholds import exits_taken
from offramp.thresholds.tuning import measure

from .registered import ANSWERS, SCORERS, each_once, quick


def tuned(splits, scorer=None, answer=None):
    policy = Policy(scorer or MaxProbability(), answer)
    return policy.fit(splits["held_out"]).tune(splits["val"])


@pytest.fixture(scope="module")
def baseline(splits):
    return tuned(splits)


@pytest.mark.parametrize(
    ("scorer", "answer"),
    each_once(SCORERS, ANSWERS),
    ids=lambda part: type(part).__name__,
)
def test_saved_and_loaded_policies_decide_bitwise_alike(scorer, answer, splits, tmp_path):
    policy = tuned(splits, quick(scorer), answer).at(budget=0.5)
    back = Policy.load(policy.save(tmp_path / "policy"))
    test = splits["test"]
    one, two = policy.replay(test), back.replay(test)
    assert np.array_equal(one.scores, two.scores)
    assert np.array_equal(one.predictions, two.predictions)
    assert np.array_equal(policy.decide(test), back.decide(test))
    for name, value in policy.points.tensors().items():
        assert np.array_equal(value, back.points.tensors()[name])
    assert (back.selected, back.network, back.uses) == (
        policy.selected,
        policy.network,
        policy.uses,
    )
    assert str(back) == str(policy)
    assert np.array_equal(back.at(budget=0.3).decide(test), policy.at(budget=0.3).decide(test))


@pytest.mark.parametrize("budget", [0.21, 0.5, 0.9])
def test_val_cost_never_exceeds_the_budget(baseline, splits, budget):
    policy, val = baseline.at(budget=budget), splits["val"]
    exits = policy.decide(val)
    mean = policy.cost_shares[exits].mean()
    assert mean <= budget + 1e-9
    assert mean == pytest.approx(float(policy.points.budgets[policy.selected]))


@pytest.mark.parametrize("thresholds", ["smooth", "geometric", "shared"])
def test_with_a_single_exit_everything_goes_to_the_end(splits, thresholds):
    last = {name: splits[name].keep_exits([splits[name].num_exits - 1]) for name in splits}
    policy = Policy(MaxProbability()).fit(last["held_out"]).tune(last["val"], thresholds)
    assert (policy.at(budget=1.0).decide(last["test"]) == 0).all()


def test_at_leaves_the_policy_itself_alone(baseline):
    assert baseline.at(budget=0.5).selected is not None
    assert baseline.selected is None


def test_shorthands_are_the_long_way(splits):
    short = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"]).at(budget=0.4)
    assert short.selected == tuned(splits).at(budget=0.4).selected
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"]).at(max_drop=0.02)
    points = policy.points
    assert points.accuracies[policy.selected] >= points.full_accuracy - 0.02 - 1e-9
    cheaper = points.budgets < points.budgets[policy.selected]
    assert (points.accuracies[cheaper] < points.full_accuracy - 0.02).all()


def test_fitting_leaves_the_given_parts_alone(splits):
    scorer, answer = Corrector(epochs=1), TemperatureScaling()
    policy = Policy(scorer, answer).fit(splits["held_out"])
    assert not scorer.is_fitted
    assert not answer.is_fitted
    assert policy.scorer.is_fitted


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (lambda s: Policy(MaxProbability()).fit(s["val"]), "held_out"),
        (lambda s: Policy(MaxProbability()).fit(s["held_out"]).tune(s["test"]), "val"),
        (lambda s: Policy(MaxProbability()).fit(s["held_out"]).tune(s["held_out"]), "val"),
    ],
)
def test_the_wrong_split_is_refused(splits, act, wanted):
    with pytest.raises(SplitError, match=f"needs the split '{wanted}'"):
        act(splits)


def test_an_allowed_split_is_recorded(splits):
    policy = Policy(MaxProbability()).fit(splits["test"], allow_split="test").tune(splits["val"])
    assert [(use.step, use.split, use.samples) for use in policy.uses] == [
        ("fit", "test", 600),
        ("tune", "val", 600),
    ]


def test_splits_that_share_samples_are_noticed_even_after_loading(splits, tmp_path):
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    leaking = splits["held_out"].as_split("val")
    with pytest.raises(SplitError, match="600 of the 600 samples of this val ledger were already"):
        policy.tune(leaking)
    back = Policy.load(policy.save(tmp_path / "policy"))
    with pytest.raises(SplitError, match="used to fit this policy"):
        back.tune(leaking)


def test_permission_for_one_step_does_not_extend_to_the_next(splits):
    test = splits["test"]
    policy = Policy(MaxProbability()).fit(test, allow_split="test").tune(splits["val"])
    with pytest.raises(SplitError, match=r"used to fit this policy; .* allow_split='test'"):
        evaluate(policy.at(budget=0.5), test)
    evaluate(policy.at(budget=0.5), test, allow_split="test")
    relabelled = splits["held_out"].as_split("test")
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    policy.tune(splits["val"].as_split("held_out"), allow_split="held_out")
    with pytest.raises(SplitError, match="used to fit"):
        evaluate(policy.at(budget=0.5), relabelled)


def test_the_same_samples_without_ids_are_noticed_by_their_logits(splits):
    def nameless(ledger, split):
        return Ledger(ledger.logits, ledger.labels, ledger.costs, split=split, network="n")

    policy = Policy(MaxProbability()).fit(nameless(splits["held_out"], "held_out"))
    with pytest.raises(SplitError, match="600 of the 600 samples"):
        policy.tune(nameless(splits["held_out"], "val"))
    policy.tune(nameless(splits["val"], "val"))


def bare(ledger):
    """The same samples, before anybody has labelled them."""
    origin = {"sample_ids": ledger.sample_ids, "network": ledger.network}
    return Ledger(ledger.logits, None, ledger.cost_model, split=ledger.split, **origin)


@pytest.mark.parametrize(
    ("scorer", "thresholds"),
    [(BreakEven(), "shared"), (MaxProbability(), "geometric"), (Margin(), "smooth")],
    ids=str,
)
def test_a_policy_can_do_without_labels(scorer, thresholds, splits, tmp_path):
    held_out, val, test = (bare(splits[name]) for name in ("held_out", "val", "test"))
    policy = Policy(scorer, ProductOfExperts()).fit(held_out).tune(val, thresholds)
    chosen = policy.at(budget=0.5)
    assert chosen.confidence is None
    assert np.isnan(chosen.points.accuracies).all()
    loaded = Policy.load(chosen.save(tmp_path))
    assert np.array_equal(loaded.decide(test), chosen.decide(splits["test"]))
    with pytest.raises(LedgerError, match="val had no labels: choose by `budget`"):
        loaded.at(max_drop=0.01)
    with pytest.raises(LedgerError, match="has no labels, which this step needs"):
        evaluate(loaded, test)
    # Later, with labels for test: worth more than stopping at random is.
    replay = loaded.replay(splits["test"])
    random_mix = np.bincount(replay.exits, minlength=5) / len(replay)
    assert replay.right.mean() > random_mix @ replay.correct.mean(axis=0)


def test_geometric_and_shared_thresholds_are_the_same_without_labels(splits):
    """Labels only show which of them are worth their cost."""
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    for thresholds in ("geometric", "shared"):
        known = policy.tune(splits["val"], thresholds).points.thresholds
        unknown = policy.tune(bare(splits["val"]), thresholds).points.thresholds
        assert len(unknown) == 201
        assert {*map(tuple, known)} <= {*map(tuple, unknown)}


@pytest.fixture(scope="module")
def forgetful():
    """A network whose last exits are worse than those in the middle."""
    made = synthetic.ledgers(seed=3, samples=2000, relapse=0.6)
    few = {name: made[name].take(range(400)) for name in ("held_out", "val")}
    return {**few, "test": made["test"]}


@pytest.mark.parametrize("thresholds", ["geometric", "smooth", "shared"])
def test_a_larger_budget_never_makes_answers_worse(forgetful, thresholds):
    policy = Policy(MaxProbability()).fit(forgetful["held_out"])
    policy.tune(forgetful["val"], thresholds)
    half, most = (policy.at(budget=b).replay(forgetful["test"]) for b in (0.5, 0.9))
    assert most.right.mean() > half.right.mean() - 0.01
    assert most.costs.mean() < 0.8
    assert policy.at(budget=1.0).selected == policy.at(budget=0.9).selected
    last = policy.replay(forgetful["test"]).correct[:, -1]
    assert half.right.mean() > last.mean() + 0.15


def test_what_is_not_spent_of_a_budget_is_said(forgetful):
    policy = Policy(MaxProbability()).fit(forgetful["held_out"]).tune(forgetful["val"])
    points = policy.points
    assert points.unspent(0.5) == ""
    most = f"{points.budgets[-1]:.1%} of the full network's cost and not 90%: on val, more makes"
    assert most in points.unspent(0.9)


def test_samples_that_a_policy_was_fitted_on_do_not_tell_what_is_worth_its_cost(forgetful):
    policy = Policy(MaxProbability()).fit(forgetful["held_out"])
    policy.tune(forgetful["held_out"], "geometric", allow_split="held_out")
    assert len(policy.points) == 201  # a path for a certificate ends at the full network


def test_where_all_exits_add_something_nothing_is_left_out():
    splits = synthetic.ledgers(seed=1, samples=400, structure=False)
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    for thresholds in ("geometric", "smooth"):
        found = policy.tune(splits["val"], thresholds).points
        assert found.budgets[-1] > 0.98 and len(found) > 190


def test_what_needs_labels_says_so_and_what_does_without(splits):
    held_out, val = bare(splits["held_out"]), bare(splits["val"])
    for policy in (Policy(Corrector()), Policy(BreakEven(), TemperatureScaling())):
        with pytest.raises(LedgerError, match=r"labels, which this step needs.*BreakEven"):
            policy.fit(held_out)
    with pytest.raises(LedgerError, match=r'`assigned` thresholds .* no labels.*"smooth"'):
        Policy(MaxProbability()).fit(held_out).tune(val, "assigned")
    with pytest.raises(LedgerError, match="no labels"):
        auto(held_out, val)
    with pytest.raises(LedgerError, match="no labels"):
        compare(held_out, val, splits["test"], ["baseline"])


def test_split_rules_hold_between_ledgers_with_and_without_labels(splits):
    policy = Policy(BreakEven()).fit(bare(splits["held_out"]))
    with pytest.raises(SplitError, match="used to fit"):
        policy.tune(splits["held_out"].as_split("val"), "shared")
    with pytest.raises(SplitError, match="needs the split 'val'"):
        policy.tune(bare(splits["test"]), "shared")


def test_any_split_may_be_decided_about(splits, baseline):
    chosen = baseline.at(budget=0.5)
    for ledger in splits.values():
        assert len(chosen.decide(ledger)) == 600


def test_other_costs_or_units_are_refused(splits, baseline):
    test = splits["test"]
    for costs in (Costs((1e6,) * 5, (2e4,) * 5), Costs((1.0,) * 5, (0.1,) * 5, unit="seconds")):
        other = Ledger(test.logits, test.labels, costs, split="test", network=test.network)
        with pytest.raises(LedgerError, match=r"with other costs \(macs\)"):
            evaluate(baseline.at(budget=0.5), other)


def test_other_exits_of_the_same_network_are_refused(splits):
    def kept(name, exits):
        return splits[name].keep_exits(exits)

    policy = Policy(MaxProbability()).fit(kept("held_out", [0, 2])).tune(kept("val", [0, 2]))
    with pytest.raises(LedgerError, match="the same exits"):
        policy.at(budget=0.5).decide(kept("test", [1, 4]))


def test_a_ledger_of_another_network_is_refused(splits, baseline):
    other = synthetic.ledgers(seed=9, samples=50, exits=5, classes=10)["test"]
    with pytest.raises(OriginError, match="record both with the same weights"):
        baseline.at(budget=0.5).decide(other)


def test_a_ledger_of_another_shape_is_refused(splits, baseline):
    with pytest.raises(LedgerError, match="fitted for 5 exits and 10 classes, and the test"):
        baseline.at(budget=0.5).decide(splits["test"].keep_exits([0, 4]))


def test_unknown_origin_warns(splits):
    ledger = splits["held_out"]
    plain = Ledger(ledger.logits, ledger.labels, ledger.costs, split="held_out")
    policy = Policy(MaxProbability()).fit(plain)
    with pytest.warns(OriginWarning, match="pass network="):
        val = splits["val"]
        policy.tune(Ledger(val.logits, val.labels, val.costs, split="val"))


def test_what_comes_too_early_says_what_to_do_first(splits, tmp_path):
    policy = Policy(MaxProbability())
    with pytest.raises(NotFittedError, match=r"call fit\(held_out\) first"):
        policy.tune(splits["val"])
    with pytest.raises(NotFittedError, match=r"call tune\(val\) first"):
        policy.fit(splits["held_out"]).at(budget=0.5)
    with pytest.raises(NotFittedError, match=r"choose one, for instance with policy\.at"):
        policy.tune(splits["val"]).decide(splits["test"])
    with pytest.raises(NotFittedError, match="before save"):
        Policy(MaxProbability()).save(tmp_path)
    with pytest.raises(ConfigError, match="either `budget` or `max_drop`"):
        policy.at()
    with pytest.raises(BudgetError, match=r"lie in 0\.\.\d+, got 999"):
        policy.at_point(999)


def test_a_budget_out_of_reach_is_refused(baseline):
    with pytest.raises(BudgetError, match=r"must lie in \["):
        baseline.at(budget=0.01)


def test_macs_of_answer_and_scorer_are_charged_but_not_a_scorer_at_the_last_exit(splits):
    policy = Policy(Corrector(epochs=1), TemperatureScaling()).fit(splits["held_out"])
    val = splits["val"]
    extra = policy.cost_shares * val.reference_cost - val.costs
    steps = [10 + 640 * (m + 1) + 128 for m in range(4)]
    expected = [*np.cumsum(steps), sum(steps) + 10]
    assert extra.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("unit", ["dollars", "relative"])
def test_macs_are_never_added_to_other_units(unit, splits):
    ledger = splits["held_out"]
    costs = Costs((1.0,) * 5, (0.1,) * 5, unit=unit)
    timed = Ledger(ledger.logits, ledger.labels, costs, split="held_out", network="n")
    policy = Policy(Corrector(epochs=1)).fit(timed)
    assert np.array_equal(policy.cost_shares, timed.costs / timed.reference_cost)


def test_decisions_are_charged_where_costs_are_seconds(splits):
    ledger = splits["held_out"]
    costs = Costs((1e-3,) * 5, (0.0,) * 5, unit="seconds")
    timed = Ledger(ledger.logits, ledger.labels, costs, split="held_out", network="n")
    extra = {}
    for scorer in (MaxProbability(), LogisticCorrector()):
        policy = Policy(scorer).fit(timed)
        added = np.diff(policy.cost_shares, prepend=0) * timed.reference_cost - 1e-3
        assert (added[:-1] > 0).all()
        assert added[-1] == pytest.approx(0, abs=1e-12), "the last exit decides nothing"
        assert np.array_equal(policy.cost_shares, policy.cost_shares), "measured once"
        extra[type(scorer)] = added.sum()
    assert extra[MaxProbability] < extra[LogisticCorrector]


def test_what_a_profile_has_measured_holds_its_decisions(splits):
    stages = np.full((5, 1), 1e-3)
    for origin, is_charged in (("cpu, batches of 1", False), ("", True)):
        times = BatchTimes(stages, 0 * stages, 5e-3, origin=origin)
        timed = splits["held_out"].with_costs(times)
        shares = Policy(MaxProbability()).fit(timed).cost_shares
        assert (shares[-1] > 1) == is_charged


def test_a_corrector_on_a_fitted_answer_trains_on_cross_fitted_answers(splits):
    """Answers must not have seen their own labels, or they look better than they will be."""
    held_out = splits["held_out"]
    labels = held_out.labels
    crossed = crossfit_answers(MatrixScaling(), held_out)
    seen = MatrixScaling().fit(held_out).answers(held_out.logits)
    fresh = MatrixScaling().fit(held_out).answers(splits["test"].logits)

    def accuracy(answers, truth):
        return (answers[:, 0].argmax(1) == truth).mean()

    honest = accuracy(fresh, splits["test"].labels)
    assert accuracy(seen, labels) > accuracy(crossed, labels) + 0.02
    assert abs(accuracy(crossed, labels) - honest) < 0.04

    @dataclass
    class Spy(Scorer):
        learned = ("seen_",)

        def fit(self, history, labels, costs):
            self.seen_ = history.answers
            return self

        def score_at(self, history):
            return history.answer.max(1)

    policy = Policy(Spy(), MatrixScaling()).fit(held_out)
    assert np.array_equal(policy.scorer.seen_, crossed)
    plain = Policy(Spy()).fit(held_out)
    assert np.shares_memory(plain.scorer.seen_, held_out.logits)  # not even copied


def test_cross_fitted_answers_of_a_sample_do_not_depend_on_its_label(splits):
    held_out = splits["held_out"]
    labels = held_out.labels.copy()
    labels[17] = (labels[17] + 1) % 10
    changed = Ledger(
        held_out.logits, labels, held_out.cost_model, split="held_out", network=held_out.network
    )
    one = crossfit_answers(VectorScaling(), held_out)
    two = crossfit_answers(VectorScaling(), changed)
    assert np.array_equal(one[17], two[17])
    assert not np.array_equal(one, two)


def test_too_few_samples_for_cross_fitting_are_refused(splits):
    few = splits["held_out"].take(range(3))
    with pytest.raises(LedgerError, match="at least 5 samples, got 3"):
        Policy(Corrector(), TemperatureScaling()).fit(few)


def test_a_corrector_that_is_about_to_overfit_says_so_once(splits):
    few = splits["held_out"].take(range(50))
    instead = r"50 samples, and with fewer than \d+ .*overfit: use scorers.LogisticCorrector"
    with pytest.warns(FewSamplesWarning, match=instead) as caught:
        Policy(Corrector(epochs=1)).fit(few)  # cross-fits too, on fewer still
    assert [type(each.message) for each in caught] == [FewSamplesWarning]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewSamplesWarning)
        Policy(LogisticCorrector()).fit(few)
        Policy(Corrector(epochs=1)).fit(splits["held_out"])


def test_an_own_scorer_goes_through_a_file(splits, tmp_path):
    @dataclass
    class SecondBest(Scorer):
        weight: float = 1.0

        def score_at(self, history):
            top = np.sort(history.answer, axis=1)
            return self.weight * (top[:, -1] - top[:, -2])

    policy = tuned(splits, SecondBest(2.0)).at(budget=0.5)
    back = Policy.load(policy.save(tmp_path / "policy"))
    assert back.scorer == SecondBest(2.0)
    assert np.array_equal(back.decide(splits["test"]), policy.decide(splits["test"]))


def test_an_own_scorer_that_breaks_the_rules_is_told_how(splits):
    class Plain(Scorer):
        def score_at(self, history):
            return history.answer.max(1)

    with pytest.raises(ConfigError, match="Plain must be a dataclass: put @dataclass above"):
        Policy(Plain()).fit(splits["held_out"])

    @dataclass
    class Column(Scorer):
        def score_at(self, history):
            return history.answer.max(1, keepdims=True)

    with pytest.raises(LedgerError, match=r"Column.score_at must give one score per sample"):
        tuned(splits, Column())

    @dataclass
    class Broken(Scorer):
        def score_at(self, history):
            return history.answer.max(1) / 0

    with pytest.raises(LedgerError, match=r"Broken.score_at must give finite scores, got (-?inf)"):
        tuned(splits, Broken())


def test_an_own_fit_is_called_even_if_it_names_no_tensors(splits):
    @dataclass
    class Counter(Scorer):
        def fit(self, history, labels, costs):
            self.samples = len(history)
            return self

        def score_at(self, history):
            return history.answer.max(1) * self.samples

    assert tuned(splits, Counter()).scorer.samples == 600


def test_an_own_answer_may_build_on_the_current_exit(splits):
    @dataclass
    class Halved(CurrentExit):
        def answer_at(self, logits):
            return logits[:, -1] / 2

    policy = Policy(Corrector(epochs=1), Halved()).fit(splits["held_out"])
    answers = policy.answer.answers(splits["test"].logits)
    assert np.array_equal(answers, splits["test"].logits / 2)


def test_saving_removes_only_its_own_files(baseline, tmp_path):
    (tmp_path / "policy-backup.safetensors").write_text("mine")
    baseline.save(tmp_path)
    baseline.save(tmp_path)
    assert (tmp_path / "policy-backup.safetensors").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"scorer": {"name": "Evil", "settings": {}}}, "unknown scorer 'Evil'"),
        ({"scorer": {"name": "CurrentExit", "settings": {}}}, "unknown scorer 'CurrentExit'"),
        ({"scorer": {"name": "MaxProbability", "settings": {"a": 1}}}, "settings do not fit"),
        ({"costs": {}}, "not a complete policy"),
        ({"selected": 999}, "not a complete policy: the number of an operating point"),
        ({"selected": "x"}, "not a complete policy: `selected` must be a whole number"),
        ({"version": 0}, "format version 0"),
    ],
)
def test_tampered_policies_are_refused(entries, message, baseline, tmp_path):
    baseline.save(tmp_path)
    path = tmp_path / "policy.json"
    write_sealed(path, json.loads(path.read_text()) | entries)
    with pytest.raises(FileFormatError, match=message):
        Policy.load(tmp_path)


def test_a_ledger_is_not_a_policy(splits, tmp_path):
    splits["val"].save(tmp_path)
    with pytest.raises(FileFormatError, match=r"no policy at .* it holds a ledger"):
        Policy.load(tmp_path)


def test_a_file_in_the_way_is_said(baseline, tmp_path):
    (tmp_path / "policy").write_text("")
    with pytest.raises(FileFormatError, match="is a file, not a folder"):
        baseline.save(tmp_path / "policy")


def lucky_sweep(scores, correct, costs, points):
    """Of many random thresholds, for each budget those that happen to be most accurate on val."""
    drawn = np.random.default_rng(0).integers(len(scores), size=(2000, scores.shape[1]))
    drawn = np.take_along_axis(scores, drawn, axis=0).astype(np.float64)
    drawn[0], drawn[:, -1] = -np.inf, -np.inf
    means, accuracies, _ = measure(exits_taken(scores, drawn), correct, costs)
    budgets = np.linspace(means.min(), 1, points)
    within = means <= budgets[:, None] + 1e-9
    return drawn[np.unique(np.where(within, accuracies, -1.0).argmax(axis=1))]


def test_a_tuned_policy_does_not_flatter_itself(monkeypatch):
    monkeypatch.setitem(THRESHOLDS, "lucky", lucky_sweep)
    on_val, stated = [], []
    for seed in range(8):
        splits = synthetic.ledgers(seed=seed, samples=400, exits=6)
        policy = (
            Policy(MaxProbability())
            .fit(splits["held_out"])
            .tune(splits["val"], "lucky", points=41)
        )
        replays = (
            policy.replay(splits["val"], "val", allow_split="val"),
            policy.replay(splits["test"]),
        )
        seen, unseen = (
            replay.scored.points_of(policy.points.thresholds, 0.0).accuracies for replay in replays
        )
        # The samples of val may be easier than those of test.
        luck = replays[0].correct.mean() - replays[1].correct.mean()
        on_val.append((seen - unseen).mean() - luck)
        stated.append((policy.points.accuracies - unseen).mean() - luck)
    assert sum(on_val) / 8 > 0.01  # thresholds chosen by accuracy do look better on val
    assert abs(sum(stated)) < 0.5 * sum(on_val)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Policy("eefp"),
            "`scorer` must be an offramp.Scorer, such as offramp.Corrector()",
        ),
        (lambda: Policy(Corrector), r"got the class itself: call it, Corrector\(...\)"),
        (lambda: Policy(Corrector(), MaxProbability()), "`answer` must be an offramp.Answer"),
        (lambda: Method("a", "A", Corrector), "got the class itself"),
        (lambda: Method(MaxProbability(), "a", "b"), "`name` of a method is a text"),
        (lambda: Method("a", "A", thresholds="smoth"), "did you mean `smooth`"),
    ],
)
def test_what_is_no_scorer_or_answer_is_refused_at_once(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_budget_that_is_no_number_is_refused(splits):
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"], "geometric")
    with pytest.raises(BudgetError, match="got 'half'"):
        policy.at(budget="half")
