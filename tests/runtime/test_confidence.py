"""The confidence in an answer: calibrated, apart from the stop score, saved with the policy."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import offramp
from offramp import synthetic
from offramp.answers import MatrixScaling, crossfit_answers
from offramp.arrays import sigmoid, softmax
from offramp.confidence import Confidence
from offramp.decide import ExitOutput
from offramp.errors import FileFormatError, NotFittedError
from offramp.files import write_sealed
from offramp.metrics import ece
from offramp.runtime import Runner
from offramp.runtime.output import OutputBuffer
from offramp.runtime.prepared_points import PreparedPoints


@pytest.fixture(scope="module")
def splits():
    return synthetic.ledgers(seed=0, samples=1500, exits=5, classes=10)


def answered(policy, ledger):
    """A policy's answers to a ledger, collected as a runner collects them."""
    exits, scores = policy.decide(ledger), policy.replay(ledger).scores
    answers = policy.answer.answers(ledger.logits)[np.arange(len(exits)), exits]
    buffer = OutputBuffer(len(exits), ledger.num_classes)
    for exit_index in range(ledger.num_exits):
        rows = np.flatnonzero(exits == exit_index)
        buffer.write(rows, exit_index, ExitOutput(answers[rows], scores[rows, exit_index]))
    return buffer.finish(PreparedPoints(policy)[policy.selected], policy.confidence.probability)


@pytest.mark.parametrize("answer", [None, offramp.answers.VectorScaling()], ids=str)
def test_confidence_is_far_better_calibrated_than_the_score_and_the_softmax(splits, answer):
    policy = offramp.Policy(offramp.Corrector(hidden=16, epochs=3), answer)
    policy = policy.fit(splits["held_out"]).tune(splits["val"]).at(budget=0.4)
    output = answered(policy, splits["test"])
    right = output.predictions == splits["test"].labels
    error = ece(output.confidence, right)
    assert error < 0.1
    assert error < 0.6 * ece(softmax(output.logits).max(axis=1), right)
    assert error < 0.6 * ece(sigmoid(output.scores), right)


def test_samples_that_are_likely_wrong_are_mostly_wrong(splits):
    policy = offramp.Policy(offramp.Corrector(hidden=16, epochs=3)).fit(splits["held_out"])
    policy = policy.tune(splits["val"]).at(budget=0.4)
    output = answered(policy, splits["test"])
    right = output.predictions == splits["test"].labels
    marked = output.likely_wrong
    assert 0.05 < marked.mean() < 0.9
    assert right[marked].mean() < 0.45
    gap = output.confidence[marked].mean() - right[marked].mean()
    assert abs(gap) < 0.1, "also among those that were stopped, it is calibrated"
    assert right[~marked].mean() > 0.7
    assert not (marked & (output.exits == 4)).any(), "the last exit is no choice"
    assert (output.confidence[marked] < 0.5).all()


def part(answers, rows=slice(None)):
    """Answers without any news in their scores."""
    return rows, answers, np.zeros((len(answers), answers.shape[1] - 1), np.float32)


def test_confidence_is_fitted_on_cross_fitted_answers(splits):
    held_out = splits["held_out"].take(np.arange(200)).keep_exits([0, 4])
    policy = offramp.Policy(offramp.MaxProbability(), MatrixScaling()).fit(held_out)
    crossed = crossfit_answers(MatrixScaling(), held_out)
    expected = Confidence().fit([part(crossed)], held_out.labels)
    np.testing.assert_allclose(policy.confidence.plain_weights_, expected.plain_weights_)
    answers = policy.answer.answers(held_out.logits)
    naive = Confidence().fit([part(answers)], held_out.labels)
    exits = np.zeros(200, np.int64)
    # A matrix of K x K overfits, and only the naive fit believes it.
    honest = policy.confidence.probability(answers[:, 0], exits).mean()
    assert honest < naive.probability(answers[:, 0], exits).mean() - 0.02


@dataclass
class Memory(offramp.Scorer):
    """Knows the samples that it was fitted on, and whether they are right."""

    learned = ("known_", "right_")

    def fit(self, history, labels, costs):
        self.known_ = history.logits[:, 0, 0].copy()
        self.right_ = history.predictions[:, 0] == labels
        return self

    def score_at(self, history):
        same = history.logits[:, 0, :1] == self.known_
        known = (same & self.right_).any(axis=1), (same & ~self.right_).any(axis=1)
        return np.subtract(*known, dtype=np.float32)


def test_a_scorer_that_knows_its_samples_does_not_deceive_the_confidence(splits):
    held_out = splits["held_out"].take(np.arange(400))
    policy = offramp.Policy(Memory()).fit(held_out)
    weights = policy.confidence.weights_[0]
    assert abs(weights[2]) < 1e-6, "scores that were cross-fitted say nothing"


def test_the_score_tells_the_confidence_what_the_answer_cannot():
    """Of equal answers, the scorer may know which are right: who stops is not a fair sample."""
    labels = np.arange(100) % 2
    answers = np.tile(np.float32([1, 0]), (100, 2, 1))  # right for every second sample
    scores = (1.0 - 2.0 * labels[:, None]).astype(np.float32)
    confidence = Confidence().fit([(slice(None), answers, scores)], labels)
    at = np.zeros(2, np.int64)
    low, high = confidence.probability(answers[:2, 0], at, np.float32([-1, 1]))
    assert low < 0.1 and high > 0.9
    plain = confidence.probability(answers[:2, 0], at)
    np.testing.assert_allclose(plain, [0.5, 0.5], rtol=1e-5)
    unknown = confidence.probability(answers[:2, 0], at, np.float32([np.nan, np.inf]))
    assert np.array_equal(unknown, plain)


def test_an_exit_that_is_always_right_is_not_taken_to_be_certain():
    labels = np.arange(40) % 3
    answers = 30 * np.eye(3, dtype=np.float32)[labels][:, None]
    confidence = Confidence().fit([part(answers)], labels)
    stated = confidence.probability(answers[:, 0], np.zeros(40, np.int64))
    assert (stated > 0.9).all() and (stated < 1).all()


def test_parts_make_no_difference(splits):
    ledger = splits["held_out"]
    whole = Confidence().fit([part(ledger.logits)], ledger.labels)
    rows = np.split(
        np.random.default_rng(0).permutation(len(ledger)), range(100, len(ledger), 100)
    )
    parts = Confidence().fit([part(ledger.logits[r], r) for r in rows], ledger.labels)
    np.testing.assert_allclose(whole.weights_, parts.weights_)


def test_confidence_needs_a_fit():
    with pytest.raises(NotFittedError, match="this Confidence is not fitted"):
        Confidence().probability(np.zeros((1, 3)), np.zeros(1, np.int64))


def test_a_saved_policy_states_the_same_confidence(make, tmp_path):
    world = make("flat")
    world.policy.save(tmp_path / "policy")
    loaded = offramp.Policy.load(tmp_path / "policy")
    one, two = (Runner(world.network, p)(world.inputs(20).numpy()) for p in (world.policy, loaded))
    assert np.array_equal(one.confidence, two.confidence)
    assert not np.isnan(one.confidence).any()


def older_folder(policy, folder):
    """As it was written before policies stated a confidence."""
    policy.confidence = None
    policy.save(folder)
    path = folder / "policy.json"
    meta = json.loads(path.read_text())
    del meta["confidence"]
    write_sealed(path, meta)
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
    write_sealed(folder / "policy.json", meta)
    with pytest.raises(FileFormatError, match="unknown confidence 'MaxProbability'"):
        offramp.Policy.load(folder)


@pytest.mark.real
def test_confidence_is_calibrated_on_a_real_network(real_splits):
    policy = offramp.Policy(offramp.Corrector()).fit(real_splits["held_out"])
    policy.tune(real_splits["val"])
    for budget in (0.25, 0.5, 0.75):
        output = answered(policy.at(budget=budget), real_splits["test"])
        right = output.predictions == real_splits["test"].labels
        error = ece(output.confidence, right)
        print(f"\nbudget {budget}: ECE of the confidence {error:.3f}")  # noqa: T201
        assert np.isfinite(error) and error < 0.06
