"""The calibrated chance of being right, from the ranks of confidences and from agreement."""

import numpy as np
import pytest

from offramp import Ledger, Policy, synthetic
from offramp.arrays import sigmoid
from offramp.errors import NotFittedError
from offramp.metrics import ece
from offramp.scorers import CalibratedConfidence
from offramp.scorers.calibrated import Chance


@pytest.fixture(scope="module")
def questions():
    return synthetic.cascade(seed=0, samples=1000)


def fitted(ledger):
    return CalibratedConfidence().fit(ledger.history(), ledger.labels, ledger.costs)


def overconfident(ledger):
    return Ledger.from_answers(
        correct=ledger.labels,
        confidence=ledger.history().confidences ** 0.3,
        costs=ledger.cost_model,
        split=ledger.split,
    )


def test_chances_are_calibrated_where_models_are_overconfident(questions):
    held_out, test = (overconfident(questions[name]) for name in ("held_out", "test"))
    scorer = fitted(held_out)
    for exit_index in range(3):
        history = test.history().until(exit_index)
        stated, right = history.confidences[:, -1], test.labels[:, exit_index]
        found = scorer.probability(scorer.score_at(history))
        assert ece(found, right) < 0.05 < ece(stated, right)


def test_scores_do_not_depend_on_units_or_outliers(questions):
    held_out = questions["held_out"]
    odds = held_out.history().odds
    warped = 1.5 * odds - 1
    warped[odds.argmax(axis=0), np.arange(4)] = 79.0
    plain, moved = (
        Ledger.from_answers(
            correct=held_out.labels, confidence=sigmoid(each), costs=[1, 2, 3, 4], split="held_out"
        )
        for each in (odds, warped)
    )
    found = [fitted(each).score_at(each.history().until(1)) for each in (plain, moved)]
    assert np.corrcoef(*found)[0, 1] > 0.99


def test_agreement_with_an_earlier_answer_makes_surer(questions):
    history = questions["held_out"].history().until(1)
    scores = fitted(questions["held_out"]).score_at(history)
    agrees = history.predictions[:, 1] == 0
    middle = abs(history.odds[:, 1]) < 0.5
    assert scores[middle & agrees].mean() > scores[middle & ~agrees].mean() + 0.5


def test_a_score_does_not_depend_on_the_samples_beside_it(questions):
    scorer, history = fitted(questions["held_out"]), questions["test"].history().until(1)
    together = scorer.score_at(history)
    for number in (0, 17, 500):
        (alone,) = scorer.score_at(history.take(np.array([number])))
        assert alone == together[number]


def test_it_survives_a_file(questions, tmp_path):
    policy = Policy(CalibratedConfidence()).fit(questions["held_out"]).tune(questions["val"])
    loaded = Policy.load(policy.save(tmp_path / "policy")).at(budget=0.5)
    assert (
        loaded.decide(questions["test"]) == policy.at(budget=0.5).decide(questions["test"])
    ).all()


def test_confidences_that_never_differ_and_answers_that_are_all_right_are_no_trouble():
    ledger = Ledger.from_answers(
        correct=np.ones((20, 3), bool),
        confidence=np.full((20, 3), 0.9),
        costs=[1, 2, 3],
        split="held_out",
    )
    scorer = fitted(ledger)
    found = scorer.probability(scorer.score_at(ledger.history().until(1)))
    assert (found > 0.9).all() and np.isfinite(found).all()


def test_a_feature_that_tells_right_from_wrong_is_read():
    rng = np.random.default_rng(0)
    right = rng.random((300, 2)) < 0.5
    ledger = Ledger.from_answers(
        correct=right,
        confidence=rng.random((300, 2)),
        features=right[..., None] + 0.1 * rng.normal(size=(300, 2, 1)),
        costs=[1, 2],
        split="held_out",
    )
    history = ledger.history().until(0)
    scores = fitted(ledger).score_at(history)
    assert scores[right[:, 0]].min() > scores[~right[:, 0]].max() - 1


def test_nothing_is_scored_before_the_fit(questions):
    with pytest.raises(NotFittedError, match="fit"):
        CalibratedConfidence().score_at(questions["test"].history())
    with pytest.raises(NotFittedError, match="fit"):
        Chance().check_fitted()
