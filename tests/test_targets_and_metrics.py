import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offramp import metrics
from offramp.errors import ConfigError, LedgerError
from offramp.targets import (
    correctness,
    hopeless,
    oracle_accuracies,
    soft_correctness,
    soft_stop_target,
    stop_target,
)

SHAPES = st.tuples(st.integers(1, 12), st.integers(2, 5))


@given(st.data())
def test_stop_target_is_the_papers_equation_sample_by_sample(data):
    shape = data.draw(SHAPES)
    predictions = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 2)))
    labels = data.draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, 2)))
    found = stop_target(predictions, labels)
    for n in range(shape[0]):
        for m in range(shape[1]):
            right_here = predictions[n, m] == labels[n]
            all_wrong = all(predictions[n, e] != labels[n] for e in range(m, shape[1]))
            assert found[n, m] == bool(right_here or all_wrong)
    assert found[:, -1].all()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(LedgerError, match=r"\[N, M\] and `labels` \[N\], got \[3\] and \[3\]"):
        stop_target(np.zeros(3), np.zeros(3))


def brute_force_oracle(correct, costs, budget):
    """The best over all assignments of exits, for a handful of samples."""
    samples, exits = correct.shape
    best = 0.0
    for choice in np.ndindex(*(exits,) * samples):
        if costs[list(choice)].mean() <= budget + 1e-9:
            best = max(best, float(correct[range(samples), choice].mean()))
    return best


@given(hnp.arrays(bool, (4, 3)), st.floats(1.0, 4.0))
def test_oracle_is_the_best_of_all_assignments(correct, budget):
    costs, budgets = np.array([1.0, 2.5, 4.0]), [budget, 1.0, 2.0]
    found = oracle_accuracies(correct, costs, budgets).tolist()
    assert found == [brute_force_oracle(correct, costs, each) for each in budgets]


def test_oracle_leaves_hopeless_samples_at_the_first_exit():
    correct = correctness([[0, 1], [0, 0]], [1, 1])
    assert hopeless(correct).tolist() == [False, True]
    # The budget of one sample at the last exit is enough for all that is worth buying.
    assert oracle_accuracies(correct, costs=[1.0, 2.0], budgets=[1.5]).tolist() == [0.5]


def test_ece_is_zero_for_a_calibrated_constant():
    assert metrics.ece(np.full(10, 0.5), np.arange(10) % 2 == 0) == 0


@given(hnp.arrays(np.float64, 40, elements=st.floats(0, 1)), st.integers(1, 20))
def test_tied_values_share_a_bin_and_order_is_kept(values, bins):
    index = metrics.ece_bins(values, bins)
    assert ((index >= 0) & (index < bins)).all()
    order = np.argsort(values)
    assert (np.diff(index[order]) >= 0).all()
    for value in np.unique(values):
        assert len(set(index[values == value])) == 1


def test_equal_mass_bins_have_equal_mass_without_ties():
    index = metrics.ece_bins(np.random.default_rng(0).random(150), bins=15)
    assert set(np.bincount(index)) == {10}


def test_ece_by_hand_in_both_schemes():
    stated = np.array([0.1, 0.2, 0.8, 0.9])
    correct = np.array([False, True, True, True])
    assert metrics.ece(stated, correct, bins=2) == pytest.approx(
        0.5 * abs(0.15 - 0.5) + 0.5 * abs(0.85 - 1)
    )
    assert metrics.ece(stated, correct, bins=10, scheme="width") == pytest.approx(
        (abs(0.1 - 0) + abs(0.2 - 1) + abs(0.8 - 1) + abs(0.9 - 1)) / 4
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece(np.array([1.5]), np.array([True])), r"must lie in \[0, 1\]"),
        (lambda: metrics.ece(np.array([np.nan]), np.array([True])), r"must lie in \[0, 1\]"),
        (lambda: metrics.ece(np.array([0.5]), np.array([True]), bins=0), "at least 1"),
        (lambda: metrics.ece_bins(np.array([0.5]), scheme="other"), "one of mass, width"),
    ],
)
def test_impossible_calibration_is_refused(call, message):
    with pytest.raises((LedgerError, ConfigError), match=message):
        call()


@given(st.data())
def test_eefp_is_the_share_of_pairs_in_order(data):
    scores = data.draw(hnp.arrays(np.float32, (12, 2), elements=st.integers(0, 5).map(float)))
    targets = data.draw(hnp.arrays(bool, (12, 2)))
    found = metrics.eefp(scores, targets)
    for m in range(2):
        stop, go = scores[targets[:, m], m], scores[~targets[:, m], m]
        if not len(stop) or not len(go):
            assert np.isnan(found[m])
            continue
        pairs = (stop[:, None] > go) + 0.5 * (stop[:, None] == go)
        assert found[m] == pytest.approx(pairs.mean())


@given(st.data())
def test_augrc_is_its_closed_form(data):
    scores = data.draw(hnp.arrays(np.float64, 30, elements=st.integers(0, 9).map(float)))
    correct = data.draw(hnp.arrays(bool, 30).filter(lambda c: 0 < c.sum() < 30))
    # Traub et al. 2024, Eq. 6: (1 - AUROC_f) acc (1 - acc) + (1 - acc)^2 / 2
    auroc = metrics.eefp(scores[:, None], correct[:, None])[0]
    accuracy = correct.mean()
    expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert metrics.augrc(scores, correct) == pytest.approx(expected)


def test_a_perfect_ranking_has_the_smallest_areas():
    correct = np.array([True] * 5 + [False] * 5)
    good, bad = np.arange(10, 0, -1.0), np.arange(10.0)
    assert metrics.aurc(good, correct) < metrics.aurc(bad, correct)
    assert metrics.augrc(good, correct) < metrics.augrc(bad, correct)
    assert metrics.aurc(np.zeros(10), correct) == pytest.approx(0.5)


def test_the_soft_stop_target_is_the_mean_of_the_hard_one_over_labels():
    rng = np.random.default_rng(0)
    predictions, probs = rng.integers(4, size=(50, 5)), rng.dirichlet(np.ones(4), size=50)
    mean = sum(
        probs[:, label, None] * stop_target(predictions, np.full(50, label)) for label in range(4)
    )
    assert np.allclose(soft_stop_target(predictions, probs), mean)
    by_label = probs[np.arange(50)[:, None], predictions]
    assert np.array_equal(soft_correctness(predictions, probs), by_label)


def test_tensors_are_taken_and_arrays_given():
    torch = pytest.importorskip("torch")
    predictions, labels = torch.tensor([[0, 1], [1, 0]]), torch.tensor([1, 1])
    target = stop_target(predictions, labels)
    assert isinstance(target, np.ndarray)
    assert target.tolist() == [[False, True], [True, True]]
    scores = torch.tensor([[0.1, 0.0], [0.2, 0.0]], requires_grad=True)
    assert metrics.eefp(scores, target)[0] == 1
