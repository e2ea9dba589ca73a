"""Guarantees that ask for the labels that they need."""

import numpy as np
import pytest

from offramp import Guarantee, Ledger, MaxProbability, Policy, certify, synthetic
from offramp.answers import ProductOfExperts
from offramp.errors import ConfigError, GuaranteeError, LedgerError
from offramp.guarantees import losses_of
from offramp.scorers import CalibratedConfidence


def unlabelled(ledger):
    """The same samples, of which nobody has told the labels."""
    bare = ledger.take(np.arange(len(ledger)))
    bare._labels = bare.full_right = None
    return bare


class Oracle:
    """Knows all labels by id, and counts who asks."""

    def __init__(self, ledger):
        self.labels = dict(zip(ledger.sample_ids, ledger.labels, strict=True))
        self.asked = []

    def __call__(self, sample_id):
        self.asked.append(sample_id)
        return self.labels[sample_id]


def fixed_path(scorer, held_out):
    return Policy(scorer).fit(held_out).tune(held_out, "smooth", allow_split="held_out")


@pytest.fixture(scope="module")
def questions():
    return synthetic.cascade(seed=0, samples=1000)


@pytest.fixture(scope="module")
def path(questions):
    return fixed_path(CalibratedConfidence(), questions["held_out"])


@pytest.mark.parametrize("loss", ["accuracy", "regret"])
def test_a_tenth_of_the_labels_certifies_nearly_the_same_cost(questions, path, loss):
    val, wanted = questions["val"], Guarantee(0.03, loss=loss)
    oracle = Oracle(val)
    found = certify(path, unlabelled(val), wanted, oracle=oracle)
    assert found.labels == len(oracle.asked) == len(set(oracle.asked)) < 100
    assert found.cost < certify(path, val, wanted).cost + 0.1
    assert f"{found.labels} labels in all" in found.policy.guarantee


@pytest.mark.parametrize("loss", ["accuracy", "regret"])
def test_the_guarantee_fails_as_seldom_as_delta_says(loss):
    splits = synthetic.cascade(seed=7, samples=4000)
    wanted = Guarantee(0.03, loss=loss)
    policy = fixed_path(MaxProbability(), splits["held_out"].take(np.arange(300)))
    true = losses_of(policy.replay(splits["test"]), wanted).mean(axis=0)
    failed, draws = 0, 60
    for seed in range(draws):
        rows = np.random.default_rng(seed).permutation(4000)[:400]
        val = splits["val"].take(rows)
        found = certify(policy, unlabelled(val), wanted, oracle=Oracle(val))
        failed += true[found.policy.selected] > wanted.epsilon
    assert failed <= 0.1 * draws + 2 * (0.09 * draws) ** 0.5


def test_no_more_labels_are_asked_for_than_allowed(questions, path):
    oracle = Oracle(questions["val"])
    few = certify(path, questions["val"], Guarantee(0.03), oracle=oracle, budget=10)
    assert len(oracle.asked) <= 10
    assert few.cost >= certify(path, questions["val"], Guarantee(0.03), oracle=oracle).cost
    with pytest.raises(GuaranteeError, match=r"at most 0\.001 with \d+ labels; ask for a larger"):
        certify(path, questions["val"], Guarantee(0.001), oracle=oracle, budget=1)


def test_labels_of_samples_that_lose_nothing_are_not_asked_for(questions, path):
    val, oracle = questions["val"], Oracle(questions["val"])
    certify(path, val, Guarantee(0.05), oracle=oracle)
    said, ids = val.outputs[..., 1], {name: row for row, name in enumerate(val.sample_ids)}
    asked = [ids[name] for name in oracle.asked]
    assert asked and (said[asked] != said[asked][:, -1:]).any(axis=1).all()


def test_a_sub_chain_without_the_last_model_is_held_against_it(questions):
    held_out, val = questions["held_out"], questions["val"]
    policy = fixed_path(CalibratedConfidence(), held_out.keep_exits([1, 2]))
    found = certify(policy, val, Guarantee(0.25, loss="regret"), oracle=Oracle(val))
    right = found.policy.replay(val, "val", allow_split="val").right
    assert (val.labels[:, -1] & ~right).mean() < 0.25
    with pytest.raises(GuaranteeError, match="no operating point"):
        certify(policy, val, Guarantee(0.005, loss="regret"), oracle=Oracle(val))


def test_networks_ask_for_classes():
    splits = synthetic.ledgers(seed=0, samples=600, exits=4)
    policy, val = fixed_path(MaxProbability(), splits["held_out"]), splits["val"]
    found = certify(policy, unlabelled(val), Guarantee(0.05), oracle=Oracle(val))
    assert 0 < found.labels < 300 and found.cost < 1
    mixed = Policy(MaxProbability(), ProductOfExperts()).fit(splits["held_out"])
    mixed.tune(splits["held_out"], "smooth", allow_split="held_out")
    assert certify(mixed, val, Guarantee(0.05), oracle=Oracle(val)).labels > 0


@pytest.mark.parametrize(
    ("wanted", "label", "message"),
    [
        (Guarantee(0.05), 3, "a truth value for each of 4 stages: which are right; got 3"),
        (Guarantee(0.05, loss="disagreement"), None, "serve the losses accuracy and regret"),
        (Guarantee(0.05, budget=0.5), None, "a budget needs no labels: certify it apart"),
        (Guarantee(0.05, delta=None), None, "are for an `epsilon` with a `delta`"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(questions, path, wanted, label, message):
    with pytest.raises((ConfigError, LedgerError), match=message):
        certify(path, questions["val"], wanted, oracle=lambda _: label)


def test_a_class_that_there_is_not_is_refused():
    splits = synthetic.ledgers(seed=0, samples=300, exits=4)
    policy = fixed_path(MaxProbability(), splits["held_out"])
    with pytest.raises(LedgerError, match=r"the number of a class in 0\.\.19; got 20"):
        certify(policy, splits["val"], Guarantee(0.05), oracle=lambda _: 20)


def test_groups_are_refused(questions, path):
    grouped = questions["val"].take(np.arange(100))
    grouped.groups = [number // 2 for number in range(100)]
    with pytest.raises(ConfigError, match="samples without groups"):
        certify(path, grouped, Guarantee(0.05), oracle=Oracle(questions["val"]))


def test_answers_that_nobody_knows_cost_a_label_wherever_a_policy_stops_early():
    splits = synthetic.cascade(seed=0, samples=600, known=False)
    policy = fixed_path(MaxProbability(), splits["held_out"])
    found = certify(policy, splits["val"], Guarantee(0.05), oracle=Oracle(splits["val"]))
    assert isinstance(splits["val"], Ledger)
    assert 20 < found.labels < 600
