import numpy as np
import pytest
from scipy.optimize import minimize

from offramp import Ledger, MaxProbability, TemperatureScaling, synthetic
from offramp.answers import (
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MajorityVote,
    MatrixScaling,
    ProductOfExperts,
    VectorScaling,
)
from offramp.arrays import log_softmax, softmax
from offramp.component import Component
from offramp.errors import ConfigError, FileFormatError, NotFittedError, SplitError
from offramp.scorers import History

from ..registered import ANSWERS

LEARNED = [each for each in ANSWERS if each.learns]
# Multiplied temperatures are worse on purpose.
GOOD = [each for each in LEARNED if getattr(each, "multiplier", 1) == 1]


def losses(answer, ledger):
    """Cross-entropy of every exit, `[M]`."""
    return cross_entropy(answer.answers(ledger.logits), ledger.labels)


def cross_entropy(logits, labels):
    return -log_softmax(logits)[np.arange(len(labels)), :, labels].mean(axis=0)


@pytest.mark.parametrize("answer", GOOD, ids=repr)
def test_a_fit_never_raises_the_loss_on_its_own_ledger(answer, splits):
    held_out = splits["held_out"]
    before = losses(CurrentExit(), held_out)
    assert (losses(answer.clone().fit(held_out), held_out) <= before + 1e-5).all()


def test_temperature_lowers_the_loss_on_new_samples_of_an_overconfident_network(splits):
    fitted = TemperatureScaling().fit(splits["held_out"])
    assert (losses(fitted, splits["test"]) < losses(CurrentExit(), splits["test"])).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_temperature_is_the_best_and_keeps_predictions(seed, scale):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(80, 2, 5))).astype(np.float32)
    labels = rng.integers(5, size=80)
    ledger = Ledger(logits, labels, [0.5, 1.0], split="held_out")
    answer = TemperatureScaling().fit(ledger)
    assert (answer.temperatures_ > 0).all()
    best = losses(answer, ledger)
    assert (best <= losses(CurrentExit(), ledger) + 1e-6).all()
    inside = np.abs(np.log(answer.temperatures_)) < 6.9  # labels at random want infinity
    for factor in (0.9, 1.1):
        moved = TemperatureScaling()
        moved.temperatures_ = answer.temperatures_ * factor
        assert (best <= losses(moved, ledger) + 1e-6)[inside].all()
    assert np.array_equal(answer.answers(logits).argmax(2), logits.argmax(2))


def test_temperature_of_a_network_that_is_always_right_stays_finite():
    labels = np.arange(20) % 4
    logits = np.stack([3 * np.eye(4)[labels]] * 2, axis=1)
    ledger = Ledger(logits, labels, [0.5, 1.0], split="held_out")
    temperatures = TemperatureScaling().fit(ledger).temperatures_
    assert ((temperatures > 0) & np.isfinite(temperatures)).all()


def test_multiplier_decalibrates_the_intermediate_exits_only(splits):
    plain = TemperatureScaling().fit(splits["held_out"]).temperatures_
    for multiplier in (3.0, 0.3):
        changed = TemperatureScaling(multiplier).fit(splits["held_out"]).temperatures_
        assert np.allclose(changed[:-1], multiplier * plain[:-1])
        assert changed[-1] == plain[-1]


def test_unregularised_matrix_scaling_overfits_and_the_regulariser_mends_it(splits):
    few = splits["held_out"].take(np.arange(150))
    plain, tamed = MatrixScaling().fit(few), MatrixScaling(regularization=5.0).fit(few)
    assert (losses(plain, few) < losses(tamed, few)).all()
    assert losses(plain, splits["test"]).mean() > losses(tamed, splits["test"]).mean()
    held = MatrixScaling(regularization=1e4).fit(few)
    off_diagonal = held.weights_ * (1 - np.eye(few.num_classes))
    assert abs(off_diagonal).max() < 0.05 and abs(held.biases_).max() < 0.05


def test_product_of_experts_multiplies_probabilities():
    logits = np.random.default_rng(0).normal(size=(6, 3, 4))
    products = softmax(logits).cumprod(axis=1)
    expected = products / products.sum(axis=2, keepdims=True)
    assert np.allclose(softmax(ProductOfExperts().answers(logits)), expected, atol=1e-6)


def test_geometric_ensemble_never_does_worse_than_any_single_exit_so_far(splits):
    held_out = splits["held_out"]
    found = losses(GeometricEnsemble().fit(held_out), held_out)
    single = losses(TemperatureScaling().fit(held_out), held_out)
    assert (found <= np.minimum.accumulate(single) + 1e-4).all()


@pytest.mark.parametrize(("samples", "shrinkage"), [(300, 0.02), (1200, 0.0)])
def test_weights_of_an_ensemble_are_the_best_ones(samples, shrinkage):
    """Against a search without derivatives; of 1,200 samples, a few give a start."""
    held_out = synthetic.ledgers(seed=1, samples=samples, exits=3, classes=8)["held_out"]
    fitted = GeometricEnsemble(shrinkage).fit(held_out)
    alone = np.eye(3)

    def loss(weights, exit_index):
        weights = np.maximum(weights, 0)
        mixed = np.einsum("nmk,m->nk", held_out.logits[:, : exit_index + 1], weights)
        penalty = shrinkage * ((weights - alone[exit_index, : exit_index + 1]) ** 2).sum()
        return cross_entropy(mixed[:, None], held_out.labels).item() + penalty

    for exit_index in range(3):
        found = fitted.weights_[exit_index, : exit_index + 1]
        best = minimize(loss, found, args=(exit_index,), method="Nelder-Mead").fun
        assert loss(found, exit_index) <= best + 1e-4


def test_answers_are_fitted_on_held_out_only(splits):
    with pytest.raises(SplitError, match="needs the split 'held_out', and the ledger is 'val'"):
        TemperatureScaling().fit(splits["val"])
    TemperatureScaling().fit(splits["val"], allow_split="val")


@pytest.mark.parametrize("answer", LEARNED, ids=lambda a: type(a).__name__)
def test_unfitted_answers_say_so(answer):
    with pytest.raises(NotFittedError, match="is not fitted; call fit"):
        answer.clone().answers(np.zeros((2, 2, 3)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TemperatureScaling(multiplier=0), "`multiplier` must be above 0, got 0"),
        (lambda: MatrixScaling(regularization=-1), "`regularization` must be at least 0, got -1"),
        (lambda: MatrixScaling(regularization=np.inf), "must be at least 0, got inf"),
        (lambda: GeometricEnsemble(shrinkage=np.inf), "must be at least 0, got inf"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_weights_do_not_depend_on_the_order_of_samples():
    """Nor on the chunk in which a sample is; here the wrong ones come last."""
    held_out = synthetic.ledgers(seed=1, samples=1500, exits=3, classes=8)["held_out"]
    wrong = held_out.logits[:, -1].argmax(axis=1) != held_out.labels
    sorted_by_it = held_out.take(np.argsort(wrong, kind="stable"))
    found, again = (GeometricEnsemble().fit(each).weights_ for each in (held_out, sorted_by_it))
    assert np.allclose(found, again, atol=2e-3)


def test_costs_in_macs():
    assert CurrentExit().macs(3, 100) == 0
    assert ProductOfExperts().macs(3, 100) == MajorityVote().macs(3, 100) == 400
    assert TemperatureScaling().macs(3, 100) == 100
    assert VectorScaling().macs(3, 100) == 100
    assert MatrixScaling().macs(3, 100) == 10_000
    assert GeometricEnsemble().macs(3, 100) == 400


def test_the_toy_example_of_the_papers_appendix_b():
    """Temperature reorders samples: three images, four classes, three temperatures."""
    logits = np.array(
        [
            [-0.7985, -0.9163, -2.3026, -2.9957],
            [-1.6094, -1.6094, -0.9163, -1.6094],
            [-1.2040, -0.9676, -1.3471, -2.8134],
        ]
    )
    expected = {
        1.0: ([0.450, 0.400, 0.380], "ABC"),
        0.3: ([0.594, 0.771, 0.575], "BAC"),
        3.0: ([0.328, 0.296, 0.299], "ACB"),
    }
    for temperature, (confidences, ranking) in expected.items():
        answer = TemperatureScaling()
        answer.temperatures_ = np.array([temperature, 1.0])
        answered = answer.answer_at(logits[:, None])[:, None]
        scorer = MaxProbability()
        scores = scorer.score_at(History(answered, answered))
        assert scorer.probability(scores).round(3).tolist() == pytest.approx(confidences)
        assert "".join("ABC"[i] for i in np.argsort(-scores)) == ranking


def test_a_file_cannot_name_code_that_is_not_defined_here():
    with pytest.raises(FileFormatError, match=r"unknown component 'os\.system'"):
        Component.restore({"name": "os.system", "settings": {}}, {})
    with pytest.raises(FileFormatError, match="settings do not fit TemperatureScaling"):
        Component.restore({"name": "TemperatureScaling", "settings": {"x": 1}}, {})
    with pytest.raises(FileFormatError, match="needs the arrays"):
        Component.restore({"name": "TemperatureScaling", "settings": {}}, {})
    with pytest.raises(FileFormatError, match="a description of a Component is needed"):
        Component.restore(None, {})


def test_shrinkage_draws_an_ensemble_to_the_current_exit(splits):
    alone = np.eye(5)
    distances = [
        ((GeometricEnsemble(shrinkage=s).fit(splits["held_out"]).weights_ - alone) ** 2).sum()
        for s in (0.0, 0.1, 100.0)
    ]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-2


def test_shrinkage_draws_class_wise_weights_to_those_of_all_classes(splits):
    held_out = splits["held_out"]
    shared = GeometricEnsemble().fit(held_out)
    close = ClassWiseEnsemble(shrinkage=1e3).fit(held_out)
    assert np.allclose(close.answers(held_out.logits), shared.answers(held_out.logits), atol=0.05)
    free = ClassWiseEnsemble(shrinkage=1e-3).fit(held_out)
    assert (losses(free, held_out) < losses(shared, held_out)).all()


def test_class_wise_weights_find_the_exit_that_knows_a_class():
    """Exit 0 knows classes 0 and 1, exit 1 the other two."""
    rng, made = np.random.default_rng(0), {}
    for split in ("held_out", "test"):
        labels = rng.integers(4, size=600)
        knows = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
        logits = rng.normal(size=(600, 2, 4)) * (3 - 2 * knows)  # loud where it knows nothing
        logits += 4 * knows * np.eye(4)[labels][:, None]
        made[split] = Ledger(logits, labels, [0.5, 1.0], split=split)
    class_wise = ClassWiseEnsemble(shrinkage=0.01).fit(made["held_out"])
    assert (class_wise.weights_[1, 0, :2] > class_wise.weights_[1, 0, 2:].max()).all()
    shared = GeometricEnsemble().fit(made["held_out"])
    assert losses(class_wise, made["test"])[1] < losses(shared, made["test"])[1] - 0.1


@pytest.mark.parametrize("answer", [GeometricEnsemble, ClassWiseEnsemble])
def test_negative_shrinkage_is_refused(answer):
    with pytest.raises(ConfigError, match="`shrinkage` must be at least 0, got -1"):
        answer(shrinkage=-1)


def test_stages_that_are_certain_and_agree_make_a_vote_that_is_finite():
    certain = np.array([[[80.0, 0.0], [80.0, 0.0], [80.0, 2.0]]])
    both = MajorityVote(of="answers").answer_at(certain[:, :2])
    most = MajorityVote(of="answers").answer_at(certain)
    assert np.isfinite(both).all()
    assert both[0, 0] > most[0, 0] > 0  # two thirds of the stages vouch for it
    assert both[0, 1] == most[0, 1] == 0


def test_a_vote_hands_on_the_features_of_the_last_stage():
    stages = np.array([[[1.0, 0.0, 5.0, 6.0], [2.0, 0.0, 7.0, 8.0]]])
    assert MajorityVote(of="answers").answer_at(stages)[0, 2:].tolist() == [7.0, 8.0]


def test_the_current_exit_copies_nothing_and_what_is_made_of_it_is_asked():
    class Doubled(CurrentExit):
        def answer_at(self, logits):
            return 2 * logits[:, -1]

    logits = np.array([[[1.0, 2.0], [3.0, 5.0]]])
    assert CurrentExit().answers(logits) is logits
    assert np.array_equal(Doubled().answers(logits), 2 * logits)


def test_weights_of_an_ensemble_are_learned_from_some_of_many_samples(monkeypatch):
    ledger = synthetic.ledgers(seed=0, samples=6000, exits=5, classes=10)["held_out"]
    everything = GeometricEnsemble().fit(ledger).weights_
    monkeypatch.setattr("offramp.answers.ensembles.KEPT", ledger.logits.size // 3)
    some = GeometricEnsemble().fit(ledger)
    assert not np.array_equal(some.weights_, everything)
    assert some.weights_ == pytest.approx(everything, abs=0.1)
    found, best = (
        losses(GeometricEnsemble().fit(ledger.take(rows)), ledger)
        for rows in (
            range(0, len(ledger), 3),
            range(len(ledger)),
        )
    )
    assert losses(some, ledger) == pytest.approx(found, abs=1e-4)
    assert losses(some, ledger) == pytest.approx(best, abs=5e-3)
