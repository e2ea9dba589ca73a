import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import entr
from scipy.stats import spearmanr

from offramp import Corrector, Ledger, MaxProbability, Scorer, synthetic
from offramp.answers import CurrentExit
from offramp.arrays import sigmoid, softmax, top_indices
from offramp.errors import ConfigError, NotFittedError
from offramp.metrics import eefp
from offramp.replay import replay
from offramp.scorers import Entropy, History, Margin, Patience
from offramp.targets import stop_target

SIMPLE = [MaxProbability(), Entropy(), Margin(), Patience()]
LOGITS = hnp.arrays("float32", (6, 3, 4), elements=st.floats(-30, 30, width=32))


def history_of(logits):
    return History(logits, logits)


def fit(scorer, ledger):
    return scorer.clone().fit(ledger.history(), ledger.labels, ledger.costs)


def probabilities(logits):
    return softmax(logits.astype(np.float64))


def assert_same_order(scores, reference):
    """Where the textbook value differs clearly, the score must order in the same way."""
    one, two = scores[:, None] - scores, reference[:, None] - reference
    clear = np.abs(two) > 1e-5
    assert (one[clear] * two[clear] > 0).all()


@given(LOGITS)
def test_max_probability_keeps_its_textbook_order_and_value(logits):
    scorer = MaxProbability()
    scores = scorer.score_at(history_of(logits))
    expected = probabilities(logits)[:, -1].max(axis=1)
    assert_same_order(scores, expected)
    assert np.allclose(scorer.probability(scores), expected, atol=1e-5)


@given(LOGITS)
def test_entropy_keeps_its_textbook_order(logits):
    expected = entr(probabilities(logits)[:, -1]).sum(axis=1)
    scores = Entropy().score_at(history_of(logits))
    assert_same_order(scores, -expected)
    assert np.allclose(np.exp(-scores.astype(np.float64)), expected, rtol=1e-3, atol=1e-6)


@given(LOGITS)
def test_margin_keeps_its_textbook_order(logits):
    top = np.sort(probabilities(logits)[:, -1], axis=1)
    scores = Margin().score_at(history_of(logits))
    assert np.isfinite(scores).all()
    assert_same_order(scores, top[:, -1] - top[:, -2])


@pytest.mark.parametrize("scorer", [MaxProbability(), Entropy(), Margin()])
def test_scores_of_saturated_samples_stay_apart_and_finite(scorer):
    logits = np.zeros((200, 1, 10), np.float32)
    logits[:, 0, 0] = np.linspace(20, 500, 200)  # softmax is exactly 1 in float32
    assert (softmax(logits)[:, 0, 0] == 1).all()
    scores = scorer.score_at(history_of(logits))
    assert np.isfinite(scores).all()
    assert (np.diff(scores) > 0).all()


def test_corrector_keeps_saturated_samples_apart(splits):
    fitted = fit(Corrector(), splits["held_out"])
    logits = np.zeros((200, 1, 10), np.float32)
    logits[:, 0, 0] = np.linspace(20, 100, 200)
    scores = fitted.score_at(history_of(logits))
    assert len(np.unique(scores)) == 200


@pytest.mark.parametrize("wide", [False, True])
def test_without_log_odds_the_corrector_is_two_layers_on_probabilities(splits, wide, monkeypatch):
    if wide:
        monkeypatch.setattr("offramp.scorers.corrector.WIDE", 0)  # each exit is trained by itself
    fitted = fit(Corrector(log_odds=False, epochs=2), splits["held_out"])
    logits = splits["test"].logits[:, :2]
    probs = softmax(logits)
    index = top_indices(probs[:, -1:], 5)
    inputs = np.take_along_axis(probs, index, axis=2).reshape(len(probs), -1)
    hidden = np.maximum(inputs @ fitted.hidden_weights_[1, :10] + fitted.hidden_biases_[1], 0)
    expected = hidden @ fitted.output_weights_[1] + fitted.output_biases_[1]
    scores = fitted.score_at(history_of(logits))
    np.testing.assert_allclose(scores, expected, atol=1e-4, rtol=1e-4)
    assert not fitted.log_odds_weights_.any()


def test_a_corrector_saved_before_there_was_a_choice_adds_log_odds(splits):
    fitted = fit(Corrector(epochs=1), splits["held_out"])
    described = fitted.describe()
    del described["settings"]["log_odds"]
    restored = Scorer.restore(described, fitted.state())
    assert restored.log_odds and fitted.log_odds_weights_.all()
    assert not Scorer.restore(Corrector(log_odds=False).describe(), fitted.state()).log_odds


@pytest.mark.parametrize("history", [True, False])
def test_corrector_keeps_the_order_of_the_most_confident_samples(history):
    """Without structure, nothing but the confidence matters, also where it is near one."""
    ledgers = synthetic.ledgers(seed=0, structure=False)
    fitted = fit(Corrector(history=history), ledgers["held_out"])
    found = replay(CurrentExit(), fitted, ledgers["test"])
    plain = replay(CurrentExit(), MaxProbability(), ledgers["test"])
    sure = found.confidences[:, 6] > 0.999
    assert sure.mean() > 0.2
    agreement = spearmanr(found.scores[sure, 6], plain.scores[sure, 6]).statistic
    assert agreement > 0.6  # 0.3 where the network sees probabilities only


@given(hnp.arrays("int64", (5, 4), elements=st.integers(0, 2)))
def test_patience_counts_equal_predictions_in_a_row(predictions):
    logits = np.eye(3, dtype=np.float32)[predictions]
    scores = Patience().score_at(history_of(logits))
    for row, score in zip(predictions, scores, strict=True):
        run = 0
        for prediction in row[::-1]:
            if prediction != row[-1]:
                break
            run += 1
        assert score == run


def test_only_probabilities_claim_to_be_probabilities(splits):
    scores = np.array([0.0, 1.0])
    for scorer in (Entropy(), Margin(), Patience()):
        assert scorer.probability(scores) is None
    for scorer in (MaxProbability(), Corrector()):
        assert scorer.probability(scores).tolist() == pytest.approx([0.5, 0.7310586])


def correctors():
    return [
        Corrector(k=k, history=history, target=target, epochs=2)
        for k in (1, None, "all")
        for history in (True, False)
        for target in ("eefp", "correctness")
    ]


@pytest.mark.parametrize("scorer", [*SIMPLE, *correctors()], ids=str)
def test_the_exits_so_far_give_the_same_scores_as_the_whole_ledger(scorer, splits):
    fitted = fit(scorer, splits["held_out"])
    test = splits["test"]
    whole = replay(CurrentExit(), fitted, test).scores
    for m in range(test.num_exits - 1):
        so_far = fitted.score_at(history_of(test.logits[:, : m + 1]))
        assert np.allclose(so_far, whole[:, m], atol=1e-5)
    assert np.isinf(whole[:, -1]).all()


@pytest.mark.parametrize("scorer", [*SIMPLE, Corrector(epochs=2)], ids=str)
def test_permuting_samples_permutes_scores(scorer, splits):
    fitted = fit(scorer, splits["held_out"])
    test = splits["test"]
    order = np.random.default_rng(0).permutation(len(test))
    plain = replay(CurrentExit(), fitted, test)
    permuted = replay(CurrentExit(), fitted, test.take(order))
    assert np.allclose(permuted.scores, plain.scores[order], atol=1e-5)
    assert np.array_equal(permuted.predictions, plain.predictions[order])


def test_history_inputs_follow_the_current_exits_order():
    logits = np.array([[[3.0, 2.0, 1.0], [0.0, 1.0, 4.0]]])
    probs = softmax(logits)[0]
    inputs = Corrector(k=2).view.inputs(history_of(logits))
    # The current exit's top two are the classes 2 and 1; the earlier exit follows that order.
    expected = [probs[0, 2], probs[0, 1], probs[1, 2], probs[1, 1]]
    assert inputs[0].tolist() == pytest.approx(expected)
    alone = Corrector(k=2, history=False).view.inputs(history_of(logits))
    assert alone[0].tolist() == pytest.approx([probs[1, 2], probs[1, 1]])


def test_corrector_predicts_the_stop_target_better_than_max_probability(splits):
    fitted, test = fit(Corrector(), splits["held_out"]), splits["test"]
    targets = stop_target(history_of(test.logits).predictions, test.labels)
    ours = eefp(replay(CurrentExit(), fitted, test).scores, targets)[:-1].mean()
    plain = eefp(replay(CurrentExit(), MaxProbability(), test).scores, targets)[:-1].mean()
    assert ours > plain + 0.03


def test_ccct_is_calibrated_for_correctness_and_ours_is_not(splits):
    from offramp.evaluation.outcome import exit_metrics

    test = splits["test"]
    errors = {}
    for target in ("eefp", "correctness"):
        fitted = fit(Corrector(target=target), splits["held_out"])
        errors[target] = exit_metrics(replay(CurrentExit(), fitted, test), fitted).ece[:-1].mean()
    assert errors["correctness"] < 0.08 < errors["eefp"]


def test_seeds_fitted_together_are_those_fitted_alone(splits):
    held_out, test = splits["held_out"], splits["test"]
    inputs = history_of(held_out.logits), held_out.labels, held_out.costs
    together = Corrector(epochs=3).fit_seeds(*inputs, (4, 7))
    for seed, one in zip((4, 7), together, strict=True):
        alone = Corrector(epochs=3, seed=seed).fit(*inputs)
        first, second = (replay(CurrentExit(), c, test).scores[:, :-1] for c in (one, alone))
        # Rounding, carried through the steps, differs by processor; other seeds are 0.13 apart.
        assert np.allclose(sigmoid(first), sigmoid(second), atol=0.02)
    assert not np.array_equal(together[0].hidden_weights_, together[1].hidden_weights_)


def test_a_fit_is_repeatable(splits):
    first, second = (fit(Corrector(epochs=2), splits["held_out"]) for _ in range(2))
    for name, value in first.state().items():
        assert np.array_equal(value, second.state()[name])


def test_features_made_batch_by_batch_give_the_same_fit(splits, monkeypatch):
    at_once = fit(Corrector(epochs=2), splits["held_out"])
    monkeypatch.setattr("offramp.scorers.network_training.TABLE_BYTES", 0)
    piecemeal = fit(Corrector(epochs=2), splits["held_out"])
    one, two = (
        replay(CurrentExit(), c, splits["test"]).scores[:, :-1] for c in (at_once, piecemeal)
    )
    assert np.allclose(one, two, atol=0.05)  # rounding, carried through 600 steps


@pytest.mark.parametrize("history", [True, False])
def test_exits_trained_by_themselves_give_the_same_fit(splits, monkeypatch, history):
    together = fit(Corrector(epochs=2, history=history), splits["held_out"])
    monkeypatch.setattr("offramp.scorers.corrector.WIDE", 0)
    apart = fit(Corrector(epochs=2, history=history), splits["held_out"])
    one, two = (replay(CurrentExit(), c, splits["test"]).scores[:, :-1] for c in (together, apart))
    assert np.allclose(one, two, atol=0.05)  # rounding, carried through 600 steps


def test_the_papers_cost_of_a_corrector():
    assert [Corrector().macs(m, 200) for m in (0, 9)] == [768, 6528]
    assert Corrector(history=False).macs(9, 200) == 5 * 128 + 128
    assert Corrector().macs(0, num_classes=3) == 3 * 128 + 128
    assert Corrector(k="all").macs(1, num_classes=10) == 20 * 128 + 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "stop"}, "`target` must be one of eefp, correctness, got 'stop'"),
        ({"k": 0}, "`k` must be a positive number, 'all' or None, got 0"),
        ({"log_odds": "no"}, "`log_odds` must be True or False, got 'no'"),
        ({"k": "most"}, "`k` must be a positive number"),
        ({"k": True}, "`k` must be a positive number"),
        ({"hidden": 0}, "`hidden` must be a whole number of at least 1, got 0"),
        ({"hidden": 2.5}, "`hidden` must be a whole number of at least 1, got 2.5"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Corrector(**settings)


def test_more_classes_than_there_are_cannot_be_looked_at(splits):
    with pytest.raises(ConfigError, match="`k` must not exceed the 10 classes, got 11"):
        fit(Corrector(k=11), splits["held_out"])


def test_unfitted_corrector_says_so():
    with pytest.raises(NotFittedError, match="this Corrector is not fitted"):
        Corrector().score_at(history_of(np.zeros((2, 1, 10))))


def test_there_is_no_corrector_at_the_last_exit(splits):
    fitted = fit(Corrector(epochs=1), splits["held_out"])
    with pytest.raises(ConfigError, match="no Corrector at exit 4"):
        fitted.score_at(history_of(np.zeros((2, 5, 10))))


def test_history_shares_what_is_computed():
    history = history_of(np.random.default_rng(0).normal(size=(6, 3, 4)))
    whole = history.log_probs
    assert np.array_equal(history.until(1)._log_probs, whole[:, :2])
    assert np.array_equal(history.take(np.array([4, 0]))._log_probs, whole[[4, 0]])


def epochs_chosen(scorer, ledger, monkeypatch):
    """The number of epochs of the last training, which is on all samples."""
    from offramp.scorers import network_training

    seen, train = [], network_training.train_networks
    monkeypatch.setattr(
        network_training,
        "train_networks",
        lambda *parts: (seen.append((parts[3], len(parts) == 4)), train(*parts)),
    )
    fit(scorer, ledger)
    monkeypatch.undo()
    assert [whole for _, whole in seen[:-1]] == [False] * (len(seen) - 1)
    assert seen[-1][1], "the last one is on all samples"
    return seen[-1][0]


def test_a_corrector_stops_before_it_learns_noise_by_heart(monkeypatch):
    rng = np.random.default_rng(0)
    noise = Ledger(
        rng.normal(size=(400, 5, 8)), rng.integers(8, size=400), range(1, 6), split="held_out"
    )
    learnable = synthetic.ledgers(seed=0, samples=400, exits=5, classes=10)["held_out"]
    assert epochs_chosen(Corrector(), noise, monkeypatch) < 80
    assert epochs_chosen(Corrector(), learnable, monkeypatch) == 80


def test_the_number_of_epochs_can_be_set(splits, monkeypatch):
    assert epochs_chosen(Corrector(epochs=3), splits["held_out"], monkeypatch) == 3


def test_many_samples_need_few_epochs(splits, monkeypatch):
    monkeypatch.setattr("offramp.scorers.network_training.MANY", 100)
    assert epochs_chosen(Corrector(), splits["held_out"], monkeypatch) == 10


def test_epochs_are_not_chosen_on_samples_of_a_group_that_was_learned(monkeypatch):
    """Ten copies of noise look learnable, unless groups keep them together."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(40), 10)
    logits, labels = rng.normal(size=(40, 5, 8))[rows], rng.integers(8, size=40)[rows]
    known = {"costs": range(1, 6), "split": "held_out"}
    copies = Ledger(logits, labels, **known)
    grouped = Ledger(logits, labels, **known, groups=rows.tolist())
    assert epochs_chosen(Corrector(), copies, monkeypatch) == 80
    assert epochs_chosen(Corrector(), grouped, monkeypatch) <= 20


def test_a_seed_chooses_the_same_epochs_alone_or_with_others(splits):
    ledger = splits["held_out"].take(range(200))
    inputs = History(ledger.logits, ledger.logits), ledger.labels, ledger.costs
    together = Corrector(hidden=4).fit_seeds(*inputs, (4, 7))
    alone = Corrector(hidden=4, seed=7).fit(*inputs)
    assert np.allclose(together[1].hidden_weights_, alone.hidden_weights_, atol=1e-5)


@pytest.mark.parametrize("epochs", [0, 2.5, "many"])
def test_a_number_of_epochs_is_a_whole_number(epochs):
    with pytest.raises(ConfigError, match="`epochs` must be a whole number of at least 1"):
        Corrector(epochs=epochs)
