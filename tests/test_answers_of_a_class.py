"""Precision and recall of one answer, of models that answer in words."""

import numpy as np
import pytest

from offramp import Guarantee, Ledger, MaxProbability, Policy, certify, synthetic
from offramp.errors import ConfigError, LedgerError


def spoken(ledger, **settings):
    """The same cascade, asked yes or no; its models are right as often."""
    truth = np.random.default_rng(len(ledger.split)).random(len(ledger)) < 0.4
    said = np.where(ledger.labels, truth[:, None], ~truth[:, None])
    return Ledger.from_answers(
        np.where(said, "Yes", "no").tolist(),
        labels=np.where(truth, "yes", "no").tolist(),
        confidence=ledger.history().confidences,
        costs=[1, 5, 15, 45],
        split=ledger.split,
        sample_ids=ledger.sample_ids,
        network="spoken",
        **{"normalise": str.lower, "positive": "YES", **settings},
    )


@pytest.fixture(scope="module")
def parts():
    return {name: spoken(each) for name, each in synthetic.cascade(seed=0, samples=1000).items()}


@pytest.fixture(scope="module")
def path(parts):
    held_out = parts["held_out"]
    return Policy(MaxProbability()).fit(held_out).tune(held_out, "smooth", allow_split="held_out")


@pytest.mark.parametrize("kind", ["precision", "recall"])
def test_what_is_certified_holds_on_new_questions(parts, path, kind):
    found = certify(path, parts["val"], Guarantee(0.15, loss=kind, class_="yes"))
    replay = found.policy.replay(parts["test"])
    stages = replay.predictions[np.arange(1000), replay.exits]
    named, true = parts["test"].positive[np.arange(1000), stages], parts["test"].positive[:, -1]
    counted = named if kind == "precision" else true
    assert (named & true).sum() / counted.sum() > 0.85
    assert found.cost < 1


def test_what_is_named_survives_cuts_and_files(parts, tmp_path):
    part = parts["val"].take(np.arange(20)).keep_exits([0, 2])
    assert part.positive.shape == (20, 3)
    assert (Ledger.load(part.save(tmp_path / "part")).positive == part.positive).all()


def test_a_ledger_that_names_no_answer_and_one_without_answers_are_refused(parts, path):
    bare = spoken(synthetic.cascade(seed=0, samples=50)["val"], positive=None)
    with pytest.raises(ConfigError, match=r"nothing tells which .* are 'yes': name it where"):
        certify(path, bare, Guarantee(0.1, loss="recall", class_="yes"))
    with pytest.raises(LedgerError, match="`positive` is one of the answers"):
        Ledger.from_answers(
            correct=[[True, False]],
            confidence=[[0.5, 0.6]],
            costs=[1, 2],
            split="val",
            positive="yes",
        )
