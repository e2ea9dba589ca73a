"""EENet, post hoc: scores from confidence, agreement and earlier scores; shares for a budget."""

import numpy as np
import pytest
from scipy.special import entr, expit, softmax

from offramp import Ledger, MaxProbability, Policy, evaluate
from offramp.errors import ConfigError
from offramp.methods import find_methods
from offramp.metrics import eefp
from offramp.replay import replay
from offramp.scorers import History
from offramp.thresholds import exits_taken
from offramp.thresholds.tuning import ScoredSamples, measure, tune_points
from offramp_paper.rivals import ExitUtility
from offramp_paper.rivals.assigned import assigned_sweep


@pytest.fixture(scope="module")
def fitted(splits):
    return Policy(ExitUtility(hidden=8, epochs=2)).fit_seeds(splits["held_out"], [0])[0]


def history_of(logits):
    return History(logits, logits)


def test_each_exit_sees_its_confidence_its_votes_and_the_scores_before_it(fitted, splits):
    logits, scorer = splits["val"].logits, fitted.scorer
    k, classes = 5, logits.shape[2]
    for m in (0, 2):
        seen = scorer.view.inputs(history_of(logits[:, : m + 1]))
        assert (
            seen.shape == (len(logits), scorer.view.width(m, classes)) == (len(logits), k + 2 + m)
        )
        probs = softmax(logits[:, m], axis=1)
        assert np.allclose(seen[:, :k], np.sort(probs, axis=1)[:, : -k - 1 : -1], atol=1e-6)
        assert np.allclose(seen[:, k], entr(probs).sum(axis=1) / np.log(classes), atol=1e-5)
        said = logits[:, : m + 1].argmax(axis=2)
        assert np.allclose(seen[:, k + 1], (said == said[:, -1:]).mean(axis=1))
        for j in range(m):
            score = expit(scorer.score_at(history_of(logits[:, : j + 1])))
            assert np.allclose(seen[:, k + 2 + j], score, atol=1e-6)


def test_scores_depend_on_the_exits_so_far_only(fitted, splits):
    logits = splits["test"].logits.copy()
    before = replay(fitted.answer, fitted.scorer, splits["test"]).scores[:, :3]
    logits[:, 3:] = np.random.default_rng(0).standard_normal(logits[:, 3:].shape)
    test = splits["test"]
    other = Ledger(logits, test.labels, test.cost_model, split="test", network=test.network)
    assert np.array_equal(replay(fitted.answer, fitted.scorer, other).scores[:, :3], before)


def test_scores_are_probabilities_of_being_right(splits):
    held_out, test = splits["held_out"], splits["test"]
    (policy,) = Policy(ExitUtility(hidden=16, epochs=10)).fit_seeds(held_out, [0])
    found = policy.replay(test)
    stated = policy.scorer.probability(found.scores[:, :-1])
    assert stated.mean(axis=0) == pytest.approx(found.correct[:, :-1].mean(axis=0), abs=0.08)
    # They order samples by being right at least about as well as max probability does.
    plain = replay(policy.answer, MaxProbability(), test)
    ours, theirs = (eefp(x.scores[:, :-1], x.correct[:, :-1]).mean() for x in (found, plain))
    assert ours > theirs - 0.02


def test_the_networks_of_all_exits_so_far_are_charged():
    scorer = ExitUtility(k=5, hidden=16)
    assert scorer.macs(0, num_classes=10) == (5 + 2 + 1) * 16
    assert scorer.macs(1, num_classes=10) == ((5 + 2 + 1) + (5 + 2 + 1 + 1)) * 16


def test_policies_with_it_are_saved_whole(fitted, splits, tmp_path):
    policy = fitted.tune(splits["val"], "assigned").at(budget=0.5)
    again = Policy.load(policy.save(tmp_path / "policy"))
    assert np.array_equal(again.decide(splits["test"]), policy.decide(splits["test"]))
    assert evaluate(policy, splits["test"]).mean_cost == pytest.approx(0.5, abs=0.06)


def test_impossible_settings_and_exits_are_refused(fitted, splits):
    with pytest.raises(ConfigError, match="`epochs` must be a whole number of at least 1"):
        ExitUtility(epochs=0)
    with pytest.raises(ConfigError, match=r"no ExitUtility at exit 4: .* a network of 5 exits"):
        fitted.scorer.score_at(history_of(splits["val"].logits))


def made_up(samples=600):
    """Exit 0 is right on high scores; exit 1 is never right; exit 2 always is."""
    scores = np.random.default_rng(0).standard_normal((samples, 3), np.float32)
    correct = np.ones((samples, 3), bool)
    correct[:, 0] = scores[:, 0] > 0
    correct[:, 1] = False
    return scores, correct, np.array([0.2, 0.6, 1.0])


def test_assigned_shares_meet_every_budget():
    scores, correct, costs = made_up()
    points = tune_points(ScoredSamples(scores, correct, costs), 1.0, "assigned", points=21)
    assert np.allclose(points.budgets, np.linspace(0.2, 1.0, 21), atol=0.005)


def test_assigned_shares_avoid_an_exit_that_is_never_right():
    scores, correct, costs = made_up()
    thresholds = assigned_sweep(scores, correct, costs, points=21)
    _, accuracies, shares = measure(exits_taken(scores, thresholds), correct, costs)
    middle = 10  # a budget of 0.6: half could leave at once, and be right
    assert shares[middle, 1] < 0.1
    assert accuracies[middle] > 0.9


def test_eenet_is_a_method_with_shares_of_its_own():
    methods = find_methods(["eenet", "eenet:smooth"], num_classes=10)
    assert [method.thresholds for method in methods] == ["assigned", "smooth"]
