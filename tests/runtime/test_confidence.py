"""The confidence in an answer: calibrated, apart from the stop score, saved with the policy."""

import json

import numpy as np
import pytest
import torch

import offramp
from offramp import synthetic
from offramp.answers import crossfit_answers
from offramp.confidence import Confidence
from offramp.errors import FileFormatError, NotFittedError
from offramp.metrics import ece
from offramp.runtime import Runner
from offramp.runtime.output import Answered
from offramp.runtime.plan import Plan


@pytest.fixture(scope="module")
def splits():
    return synthetic.ledgers(seed=0, samples=1500, exits=5, classes=10)


def answered(policy, ledger):
    """Answers of a policy to a ledger, through the same door as a runner's."""
    exits = policy.decide(ledger).long()
    answers = policy.answer.answers(ledger.logits.float())[torch.arange(len(exits)), exits]
    table = Answered(len(exits), ledger.num_classes)
    for m in range(ledger.num_exits):
        rows = (exits == m).nonzero().squeeze(1)
        table.write(rows, answers[rows], m, 0.0)
    return table.output(Plan.of(policy, [False] * ledger.num_exits))


@pytest.mark.parametrize("answer", [None, offramp.VectorScaling()], ids=str)
def test_confidence_is_far_better_calibrated_than_the_score_and_the_softmax(splits, answer):
    policy = offramp.Policy(offramp.Corrector(hidden=16, epochs=3), answer)
    policy = policy.fit(splits["held_out"]).tune(splits["val"]).at(budget=0.4)
    output = answered(policy, splits["test"])
    right = (output.predictions == splits["test"].labels).numpy()
    softmax = output.logits.softmax(1).amax(1)
    scores = policy.trace(splits["test"], "test").scores.sigmoid()
    stop = scores.gather(1, output.exits[:, None]).squeeze(1)
    error = ece(output.confidence, right)
    assert error < 0.1
    assert error < 0.6 * ece(softmax, right)
    assert error < 0.6 * ece(stop, right)


def test_samples_that_are_likely_wrong_are_mostly_wrong(splits):
    policy = offramp.Policy.for_budget(
        offramp.Corrector(hidden=16, epochs=3), splits["held_out"], splits["val"], budget=0.4
    )
    output = answered(policy, splits["test"])
    right = output.predictions == splits["test"].labels
    marked = output.likely_wrong
    assert 0.05 < marked.double().mean() < 0.9
    assert right[marked].double().mean() < 0.35
    assert right[~marked].double().mean() > 0.7
    assert not (marked & (output.exits == 4)).any(), "the last exit is no choice"
    assert (output.confidence[marked] < 0.5).all()


def test_confidence_is_fitted_on_cross_fitted_answers(splits):
    held_out = splits["held_out"].take(torch.arange(200)).keep_exits([0, 4])
    policy = offramp.Policy(offramp.MaxProbability(), offramp.MatrixScaling()).fit(held_out)
    crossed = crossfit_answers(offramp.MatrixScaling(), held_out)
    expected = Confidence().fit([(slice(None), crossed)], held_out.labels)
    torch.testing.assert_close(policy.confidence.weights_, expected.weights_)
    naive = Confidence().fit(
        [(slice(None), policy.answer.answers(held_out.logits))], held_out.labels
    )
    exits = torch.zeros(200, dtype=torch.long)
    answers = policy.answer.answers(held_out.logits)[:, 0]
    # A matrix of K x K overfits, and only the naive fit believes it.
    honest = policy.confidence.probability(answers, exits).mean()
    assert honest < naive.probability(answers, exits).mean() - 0.02


def test_an_exit_that_is_always_right_is_not_taken_to_be_certain():
    labels = torch.arange(40) % 3
    answers = 30.0 * torch.nn.functional.one_hot(labels, 3).float()[:, None]
    stated = (
        Confidence()
        .fit([(slice(None), answers)], labels)
        .probability(answers[:, 0], torch.zeros(40, dtype=torch.long))
    )
    assert (stated > 0.9).all() and (stated < 1).all()


def test_chunks_make_no_difference(splits):
    ledger = splits["held_out"]
    whole = Confidence().fit([(slice(None), ledger.logits)], ledger.labels)
    rows = torch.randperm(len(ledger)).split(100)
    parts = Confidence().fit([(r, ledger.logits[r]) for r in rows], ledger.labels)
    torch.testing.assert_close(whole.weights_, parts.weights_)


def test_confidence_needs_a_fit():
    with pytest.raises(NotFittedError, match="this Confidence is not fitted"):
        Confidence().probability(torch.zeros(1, 3), torch.zeros(1))


def test_a_saved_policy_states_the_same_confidence(make, tmp_path):
    world = make("flat")
    world.policy.save(tmp_path / "policy")
    loaded = offramp.Policy.load(tmp_path / "policy")
    one, two = (Runner(world.network, p)(world.inputs(20)) for p in (world.policy, loaded))
    assert torch.equal(one.confidence, two.confidence)
    assert not one.confidence.isnan().any()


def older_folder(policy, folder):
    """As it was written before policies stated a confidence."""
    policy.confidence = None
    policy.save(folder)
    path = folder / "policy.json"
    meta = json.loads(path.read_text())
    del meta["confidence"]
    path.write_text(json.dumps(meta))
    return folder


def test_an_older_policy_runs_and_its_confidence_is_unknown(make, tmp_path):
    world = make("flat")
    loaded = offramp.Policy.load(older_folder(world.policy, tmp_path / "old"))
    output = Runner(world.network, loaded)(world.inputs(5))
    assert output.confidence.isnan().all()
    assert not output.likely_wrong.any()
    assert (output.predictions >= 0).all()


def test_a_damaged_confidence_is_refused(make, tmp_path):
    world = make("flat")
    folder = world.policy.save(tmp_path / "policy")
    meta = json.loads((folder / "policy.json").read_text())
    meta["confidence"]["name"] = "MaxProbability"
    (folder / "policy.json").write_text(json.dumps(meta))
    with pytest.raises(FileFormatError, match="unknown confidence 'MaxProbability'"):
        offramp.Policy.load(folder)


@pytest.mark.real
def test_confidence_is_calibrated_on_a_real_network(real_splits):
    policy = offramp.Policy(offramp.Corrector()).fit(real_splits["held_out"])
    policy.tune(real_splits["val"])
    for budget in (0.25, 0.5, 0.75):
        output = answered(policy.at(budget=budget), real_splits["test"])
        right = (output.predictions == real_splits["test"].labels).numpy()
        error = ece(output.confidence, right)
        print(f"\nbudget {budget}: ECE of the confidence {error:.3f}")  # noqa: T201
        assert np.isfinite(error) and error < 0.06
