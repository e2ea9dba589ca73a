"""`TreeRunner`: decides as the replay does, and is never slower than all trees."""

import warnings

import numpy as np
import pandas as pd
import pytest

from offramp import MaxProbability, Policy, trees
from offramp.advice.best import full_network
from offramp.answers import GeometricEnsemble
from offramp.errors import ConfigError, CostWarning, OriginError
from offramp.policy import Policy as PolicyType
from offramp.scorers import LogisticCorrector
from offramp.trees.runner import SIZES, WORTH

from .conftest import CONTINUED, ROUNDS, TRAIN

AT = [1, 3, 6, 12]


@pytest.fixture(scope="module")
def tuned(fitted, data):
    """A function of a library, a scorer and an answer: the policy, and the test ledger."""

    def make(library, scorer=None, answer=None, kind="ten"):
        rows, labels = data[kind]
        if kind == "two" and library == "xgboost":
            labels = (labels == "yes").astype(int)
        ledger = trees.record(fitted(library, kind), (rows[TRAIN:], labels[TRAIN:]), "all", at=AT)
        held_out, val, test = ledger.partition()
        return Policy(scorer or MaxProbability(), answer).fit(held_out).tune(val), test

    return make


def test_rows_of(test, data, kind="ten"):
    return data[kind][0][TRAIN:][np.array(test.sample_ids)]


test_rows_of.__test__ = False


@pytest.mark.parametrize("library", CONTINUED)
@pytest.mark.parametrize("kind", ["two", "ten"])
def test_it_decides_and_answers_as_the_replay_does(library, kind, tuned, fitted, data):
    policy, test = tuned(library, kind=kind)
    policy = policy.at(budget=0.5)
    found = trees.TreeRunner(fitted(library, kind), policy)(test_rows_of(test, data, kind))
    exits = policy.decide(test)
    assert (found.rounds == np.array([*AT, ROUNDS])[exits]).all()
    numbers = test.logits[np.arange(len(test)), exits].argmax(axis=1)
    model = trees.tree_model(fitted(library, kind))
    assert (found.predictions == model.classes[numbers]).all()
    assert len(set(exits.tolist())) > 1


@pytest.mark.parametrize("scorer", [MaxProbability(), LogisticCorrector()])
@pytest.mark.parametrize("answer", [None, GeometricEnsemble()])
def test_single_rows_get_what_batches_get(scorer, answer, tuned, fitted, data):
    policy, test = tuned("lightgbm", scorer, answer)
    runner = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.4))
    rows = test_rows_of(test, data)[:60]
    together = runner(rows)
    alone = [runner(rows[i : i + 1]) for i in range(60)]
    assert [int(each.rounds[0]) for each in alone] == together.rounds.tolist()
    assert np.allclose([each.logits[0] for each in alone], together.logits, atol=1e-5)


def test_exits_that_auto_left_out_are_left_out(tuned, fitted, data):
    _policy, test = tuned("lightgbm")
    kept = test.keep_exits([1, 4])
    few = Policy(MaxProbability()).fit(kept, allow_split="test")
    few.tune(kept, allow_split="test")
    found = trees.TreeRunner(fitted("lightgbm"), few.at(budget=0.6))(test_rows_of(test, data))
    assert set(found.rounds.tolist()) == {AT[1], ROUNDS}


def test_no_tree_is_computed_twice(tuned, fitted, data, monkeypatch):
    policy, test = tuned("forest")
    runner = trees.TreeRunner(fitted("forest"), policy.at(budget=0.5))
    computed = []
    add = type(runner._trees).add

    def counted(self, rows, start, stop, before=None):
        computed.append(len(rows) * (stop - start))
        return add(self, rows, start, stop, before)

    monkeypatch.setattr(type(runner._trees), "add", counted)
    found = runner(test_rows_of(test, data))
    assert sum(computed) == found.rounds.sum()


def test_a_policy_that_always_stops_first_stops_there(tuned, fitted, data):
    policy, test = tuned("lightgbm")
    found = trees.TreeRunner(fitted("lightgbm"), policy.at_point(0))(test_rows_of(test, data))
    assert found.rounds.mean() < AT[1]
    last = policy.at_point(len(policy.points) - 1)
    found = trees.TreeRunner(fitted("lightgbm"), last)(test_rows_of(test, data))
    assert found.rounds.mean() > AT[-1]


def test_tables_are_answered_as_arrays_are(tuned, fitted, data):
    policy, _test = tuned("lightgbm")
    runner, rows = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5)), data["ten"][0]
    found = runner(pd.DataFrame(rows, columns=[f"Column_{i}" for i in range(64)]))
    assert np.array_equal(found.logits, runner(rows).logits)


def test_a_saved_policy_runs_on_a_saved_model(tuned, fitted, data, tmp_path):
    import lightgbm

    policy, test = tuned("lightgbm")
    policy.at(budget=0.5).save(tmp_path / "policy")
    fitted("lightgbm").booster_.save_model(tmp_path / "model.txt")
    model = lightgbm.Booster(model_file=tmp_path / "model.txt")
    runner = trees.TreeRunner(model, PolicyType.load(tmp_path / "policy"))
    rows = test_rows_of(test, data)
    expected = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5))(rows)
    assert np.array_equal(runner(rows).rounds, expected.rounds)


def timed_as(monkeypatch, *shares):
    """Make stopping early take these shares of the time of all trees, at each batch size."""
    shares = shares * len(SIZES) if len(shares) == 1 else shares
    seconds = iter([each for share in shares for each in (share, 1.0)])
    monkeypatch.setattr(
        "offramp.trees.runner.take_turns",
        lambda groups, *_, **__: [
            each.turns[0].append(np.array([next(seconds)])) for each in groups[0]
        ],
    )
    monkeypatch.setattr("offramp.trees.runner.batches", lambda rows, size: [rows[:size]])


def test_it_computes_all_trees_where_stopping_takes_longer(tuned, fitted, data, monkeypatch):
    policy, test = tuned("lightgbm")
    timed_as(monkeypatch, WORTH + 0.01)
    rows = test_rows_of(test, data)
    with pytest.warns(CostWarning, match=r"0.96 times at 1, .*early_stop, which stops inside"):
        runner = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5), rows)
    for some in (rows[:1], rows[:7], rows):
        found = runner(some)
        assert (found.rounds == ROUNDS).all()
        assert (found.predictions == fitted("lightgbm").predict(some)).all()


def test_the_advice_for_other_libraries_is_fewer_exits(tuned, fitted, data, monkeypatch):
    policy, test = tuned("forest")
    timed_as(monkeypatch, 2.0)
    with pytest.warns(
        CostWarning, match=r"to gain there, take fewer exits .*, or call the model itself$"
    ):
        trees.TreeRunner(fitted("forest"), policy.at(budget=0.5), test_rows_of(test, data))


def test_it_stops_early_where_that_is_quicker(tuned, fitted, data, monkeypatch):
    policy, test = tuned("lightgbm")
    timed_as(monkeypatch, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5))
        shares = runner.measure(test_rows_of(test, data))
    assert set(shares.values()) == {0.5}
    assert (runner(test_rows_of(test, data)).rounds < ROUNDS).any()


def test_a_policy_without_exits_computes_all_trees_and_is_not_timed(fitted, data):
    rows, labels = (part[TRAIN:] for part in data["ten"])
    ledger = trees.record(fitted("lightgbm"), (rows, labels), "all", at=AT)
    held_out, val, _ = ledger.partition()
    policy = full_network(held_out, val)
    runner = trees.TreeRunner(fitted("lightgbm"), policy, rows[:5])
    assert runner.shares == {}
    assert (runner(rows).predictions == fitted("lightgbm").predict(rows)).all()


def test_the_nearest_batch_size_that_was_timed_decides(tuned, fitted, data, monkeypatch):
    policy, test = tuned("lightgbm")
    rows = test_rows_of(test, data)
    timed_as(monkeypatch, 1.3, 1.3, 0.4, 0.4)
    with pytest.warns(CostWarning, match=r"1\.30 times at 1, 1\.30 times at 10;"):
        runner = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5), rows)
    assert (runner(rows[:31]).rounds == ROUNDS).all()
    assert (runner(rows[:32]).rounds < ROUNDS).any()
    assert (runner(rows).rounds < ROUNDS).any()


def test_single_rows_of_a_forest_are_quicker_on_the_clock(tuned, fitted, data):
    policy, test = tuned("forest")
    runner = trees.TreeRunner(fitted("forest"), policy.at(budget=0.5))
    assert runner.measure(test_rows_of(test, data)[:5])[1] < 0.9


def test_a_policy_of_other_trees_is_refused(tuned, fitted):
    policy, _ = tuned("forest")
    with pytest.raises(
        OriginError, match=r"of other trees \(scikit-learn .*than these \(lightgbm"
    ):
        trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5))


def test_a_policy_of_something_else_is_refused(fitted):
    from offramp import synthetic

    splits = synthetic.ledgers(seed=0, samples=200, exits=3)
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"]).at(budget=0.9)
    with pytest.raises(OriginError, match=r"record it with offramp\.trees\.record; got"):
        trees.TreeRunner(fitted("lightgbm"), policy)


def test_models_that_cannot_go_on_are_refused(fitted, tuned):
    policy, _ = tuned("lightgbm")
    with pytest.raises(ConfigError, match="LightGBM, XGBoost, CatBoost and random forests can"):
        trees.TreeRunner(fitted("hist"), policy.at(budget=0.5))


def test_there_must_be_rows_to_time(tuned, fitted):
    policy, _ = tuned("lightgbm")
    runner = trees.TreeRunner(fitted("lightgbm"), policy.at(budget=0.5))
    with pytest.raises(ConfigError, match="`rows` must be at least 1, got 0"):
        runner.measure(np.ones((0, 64)))
