"""Gates after JEI-DNN and PCEE's reliability diagrams, both post hoc."""

import numpy as np
import pytest

from offramp import Ledger, MaxProbability, Policy, compare, evaluate
from offramp.answers import GeometricEnsemble
from offramp.errors import ConfigError, LedgerError, NotFittedError
from offramp.scorers import History
from offramp_paper.rivals import Gates, PerformanceControl
from offramp_paper.rivals.peers import PRICES, leaving


def history_of(ledger, until=None):
    history = History(ledger.logits, ledger.logits)
    return history if until is None else history.until(until)


def fit(scorer, ledger):
    return scorer.clone().fit(history_of(ledger), ledger.labels, ledger.costs)


def stops_at(scorer, history, price):
    """Whether all gates for higher prices say stop."""
    return scorer.score_at(history) >= sum(each > price for each in PRICES)


def world_of_three_kinds(samples=900, seed=0):
    """Right at once; right from exit 1 on; right at the last exit only. Exit 0 tells which.

    It says so by how many classes compete: one, two or four. All need the same MACs per stage.
    """
    rng, rows = np.random.default_rng(seed), np.arange(samples)
    kind, labels = rows % 3, rng.integers(8, size=samples)
    first_right = np.array([0, 1, 3])[kind]
    logits = 0.3 * rng.standard_normal((samples, 4, 8), np.float32)
    crowd = np.array([0, 2, 4])[kind]
    for other in range(1, 5):  # wrong classes that compete until the sample is right
        rival = (labels + other) % 8
        there = (np.arange(4) < first_right[:, None]) & (other <= crowd)[:, None]
        logits[rows, :, rival] += 4.0 * there
    right = np.arange(4) >= first_right[:, None]
    logits[rows, :, labels] += np.where(right, 6.0, -3.0)
    ledger = Ledger(logits, labels, [0.25, 0.5, 0.75, 1.0], split="held_out", network="kinds")
    return ledger, kind


def test_seeds_trained_together_are_those_trained_one_by_one(splits):
    scorer, ledger = Gates(epochs=2), splits["held_out"]
    together = scorer.fit_seeds(history_of(ledger), ledger.labels, ledger.costs, [0, 3])
    alone = fit(scorer.clone(seed=3), ledger)
    assert together[1].seed == 3
    history = history_of(splits["val"], 2)
    ours, theirs = together[1].score_at(history), alone.score_at(history)
    assert np.allclose(ours, theirs, atol=1e-2)
    assert not np.allclose(together[0].score_at(history), theirs, atol=1e-2)


def test_policies_with_gates_save_tune_and_measure(splits, tmp_path):
    policy = Policy(Gates(epochs=2), GeometricEnsemble()).fit(splits["held_out"])
    policy = policy.tune(splits["val"]).at(budget=0.5)
    outcome = evaluate(policy, splits["test"])
    assert outcome.mean_cost == pytest.approx(0.5, abs=0.06)
    again = Policy.load(policy.save(tmp_path / "policy"))
    assert np.array_equal(again.decide(splits["test"]), policy.decide(splits["test"]))


def test_gates_are_a_method_like_all_others(splits):
    table = compare(*splits.values(), methods=["baseline", "gates"], seeds=2, resamples=50)
    assert [len(method.curves) for method in table.methods] == [1, 2]


def test_costs_are_those_of_two_small_layers():
    ledger, _ = world_of_three_kinds(samples=60)
    gates = fit(Gates(epochs=1), ledger)
    assert gates.macs(1, num_classes=8) == (5 * 16 + 16) * len(PRICES)


def test_performance_control_scores_by_the_accuracy_of_similarly_confident_samples(splits):
    scorer = fit(PerformanceControl(bins=10), splits["held_out"])
    held_out = splits["held_out"]
    history = history_of(held_out, 2)
    order = MaxProbability().score_at(history).argsort()
    right = history.predictions[:, -1] == held_out.labels
    scores = scorer.score_at(history)
    for rows in np.array_split(order, 10)[1:-1]:
        assert scores[rows].mean() == pytest.approx(right[rows].mean(), abs=0.06)
    assert len(np.unique(scores)) > 500  # equal accuracies stay apart


def test_performance_control_sets_one_target_for_all_exits(splits):
    policy = Policy(PerformanceControl()).fit(splits["held_out"]).tune(splits["val"], "shared")
    thresholds = policy.at(budget=0.5).thresholds[:-1]
    assert (thresholds == thresholds[0]).all()
    assert 0 < thresholds[0] < 1
    one = fit(PerformanceControl(bins=1), splits["held_out"])
    assert one.score_at(history_of(splits["val"], 0)).max() < 1
    with pytest.raises(LedgerError, match="700 bins need as many samples, got 600"):
        fit(PerformanceControl(bins=700), splits["held_out"])


def test_gates_leave_with_the_probability_that_none_opened_before():
    opened = np.random.default_rng(0).random((3, 5, 2))
    shares = leaving(opened)
    assert np.allclose(shares.sum(axis=0), 1)
    assert np.allclose(shares[2], opened[2] * (1 - opened[0]) * (1 - opened[1]))
    assert np.allclose(shares[3], (1 - opened).prod(axis=0))


def test_gates_buy_what_is_worth_it_at_a_low_price():
    ledger, kind = world_of_three_kinds()
    stops = stops_at(fit(Gates(epochs=100), ledger), history_of(ledger, 0), 0.5)
    shares = [stops[kind == k].mean() for k in range(3)]
    assert shares == pytest.approx([1, 0, 0], abs=0.05)


def test_impossible_settings_and_unfitted_use_are_refused():
    with pytest.raises(ConfigError, match="`hidden` must be a whole number of at least 1"):
        Gates(hidden=0)
    ledger, _ = world_of_three_kinds(samples=60)
    with pytest.raises(NotFittedError):
        Gates().score_at(history_of(ledger, 0))
    with pytest.raises(ConfigError, match=r"no Gates at exit 3: .* a network of 4 exits"):
        fit(Gates(epochs=1), ledger).score_at(history_of(ledger))
