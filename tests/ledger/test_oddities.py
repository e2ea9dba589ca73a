"""Mistakes that no type and no shape shows are warned of, and honest ledgers are not."""

import numpy as np
import pytest

from offramp import Ledger, Policy, compare, synthetic
from offramp.arrays import softmax
from offramp.errors import FileFormatError, LedgerError, LedgerWarning
from offramp.ledger import load_ledgers
from offramp.ledger.oddities import missing_classes, oddities
from offramp.scorers import MaxProbability


@pytest.fixture(scope="module")
def val():
    return synthetic.ledgers(seed=0, samples=400)["val"]


def changed(ledger, logits=None, labels=None):
    logits = ledger.logits if logits is None else logits
    labels = ledger.labels if labels is None else labels
    return Ledger(logits, labels, ledger.costs, split="val")


@pytest.mark.parametrize("seed", range(5))
def test_honest_ledgers_are_not_suspected(seed):
    for ledger in synthetic.ledgers(seed=seed, samples=300).values():
        assert oddities(ledger) == []


def test_four_samples_are_called_few(val):
    assert "only 4 samples" in oddities(val.take([0, 1, 2, 3]))[0]


def test_shuffled_labels_are_noticed(val):
    order = np.random.default_rng(0).permutation(len(val))
    (text,) = oddities(changed(val, labels=val.labels[order]))
    assert "no exit is better than chance: are labels and logits in the same order" in text


def test_an_exit_that_guesses_is_named(val):
    logits = val.logits.copy()
    logits[:, 1] = np.random.default_rng(0).normal(size=logits[:, 1].shape)
    assert oddities(changed(val, logits)) == [
        "exit 1 is no better than chance; ledger.keep_exits leaves exits out"
    ]


def test_copies_are_counted_unless_groups_say_what_belongs_together(val):
    index = np.tile(np.arange(100), 4)
    (text,) = oddities(changed(val, val.logits[index], val.labels[index]))
    assert "400 of 400 samples have the same logits as another one" in text
    groups = [int(each) for each in index]
    known = Ledger(val.logits[index], val.labels[index], val.costs, split="val", groups=groups)
    assert oddities(known) == []


@pytest.mark.parametrize("copies", [2, 5])
def test_near_copies_are_noticed_unless_groups_say_what_belongs_together(val, copies):
    rows = np.repeat(np.arange(400 // copies), copies)
    noise = 0.02 * np.random.default_rng(0).normal(size=(len(rows), *val.logits.shape[1:]))
    logits, labels = val.logits[rows] + noise, val.labels[rows]
    (text,) = oddities(changed(val, logits, labels))
    assert "have nearly the same logits as another one; if they are versions of one thing" in text
    known = Ledger(logits, labels, val.costs, split="val", groups=rows.tolist())
    assert oddities(known) == []


@pytest.mark.parametrize("classes", [2, 3])
def test_samples_of_few_dimensions_are_no_near_copies(val, classes):
    logits, labels = val.logits[..., :classes], val.logits[:, -1, :classes].argmax(axis=1)
    assert oddities(changed(val, logits, labels)) == []


def test_a_test_set_with_half_of_the_classes_is_noticed():
    splits = synthetic.ledgers(seed=0, samples=400)
    half = splits["test"].take(splits["test"].labels < 5)
    with pytest.warns(LedgerWarning, match="test has no samples of 15 of the 20 .* as 5:"):
        compare(splits["held_out"], splits["val"], half, ["baseline"], resamples=2)


@pytest.mark.parametrize("samples", [30, 100, 300])
def test_classes_that_are_missing_by_chance_are_not_remarkable(samples):
    assert missing_classes(*synthetic.ledgers(seed=0, samples=samples, classes=40).values()) == []


def test_without_labels_no_class_is_missed(val):
    unlabelled = Ledger(val.logits, None, val.costs, split="test")
    assert missing_classes(val, unlabelled) == []


def test_files_are_looked_at_when_they_are_loaded(val, tmp_path):
    index = np.tile(np.arange(100), 4)
    path = tmp_path / "logits.npz"
    np.savez(path, logits=val.logits[index], labels=val.labels[index], costs=val.costs)
    with pytest.warns(LedgerWarning, match="all: 400 of 400 samples have the same logits"):
        load_ledgers(path)


@pytest.mark.parametrize(("total", "word"), [(1, "probabilities"), (100, "percentages")])
def test_probabilities_at_single_exits_are_refused(val, total, word):
    logits = val.logits.copy()
    logits[:, 1] = total * softmax(logits[:, 1])
    with pytest.raises(LedgerError, match=rf"look like {word} at the exits \[1\]; pass"):
        changed(val, logits)


def test_infinite_logits_are_to_be_clipped(val):
    logits = val.logits.copy()
    logits[3, 1, 0] = -np.inf
    with pytest.raises(LedgerError, match=r"got -inf at sample 3, .* clip them first"):
        changed(val, logits)


def test_arrays_in_the_place_of_ledgers_say_how_to_make_one(val):
    array = val.logits
    with pytest.raises(LedgerError, match=r"`held_out` must be a Ledger, got ndarray; make one"):
        Policy(MaxProbability()).fit(array)
    with pytest.raises(LedgerError, match=r"split='held_out'\)"):
        compare(array, array, array)


def test_a_single_array_is_told_from_an_archive(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(FileFormatError, match=r"is a single array \(.npy\)"):
        Ledger.load(tmp_path / "a.npy", split="val")


def test_a_mistyped_folder_is_guessed(val, tmp_path):
    val.save(tmp_path / "policy")
    with pytest.raises(FileFormatError, match=r"there is nothing; did you mean .*policy\?"):
        Policy.load(tmp_path / "polcy")
