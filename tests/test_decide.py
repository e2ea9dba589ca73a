"""`Decider`: what it keeps and runs, and the same decisions from tensors as from arrays."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import offramp
from offramp import MaxProbability, synthetic
from offramp.answers import CurrentExit, MatrixScaling, ProductOfExperts
from offramp.decide import Decider, HistoryBuffer, open_exits
from offramp.errors import LedgerError
from offramp.ledger import AnswerHistory, History
from offramp.replay import replay
from offramp.scorers import Entropy, Margin, Patience

from . import registered
from .registered import quick, without_logits

EXITS, CLASSES = 4, 23
INF = math.inf


@pytest.fixture(scope="module")
def ledgers():
    return synthetic.ledgers(seed=0, samples=120, exits=EXITS, classes=CLASSES)


def fitted(scorer, answer, ledger):
    (policy,) = offramp.Policy(quick(scorer), answer).fit_seeds(ledger, [0])
    return policy.answer, policy.scorer


def run(decider, outputs):
    """Answers and scores at every exit but the last, exit by exit as in a runner."""
    buffer = decider.begin(*outputs[:, 0].shape)
    found = [decider.at_exit(m, buffer, outputs[:, m]) for m in range(decider.last)]
    return [each.answer for each in found], [each.scores for each in found]


def check_alike(decider, of_tensors, outputs):
    answers, scores = run(decider, outputs)
    there = run(of_tensors, torch.from_numpy(outputs))
    for one, other in zip((*answers, *scores), (*there[0], *there[1]), strict=True):
        assert isinstance(one, np.ndarray) and isinstance(other, torch.Tensor)
        assert one.dtype == np.float32 and other.dtype == torch.float32
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


ALONE = [
    *((scorer, CurrentExit()) for scorer in registered.SCORERS),
    *((MaxProbability(), answer) for answer in registered.ANSWERS),
    (quick(offramp.Corrector()), offramp.answers.GeometricEnsemble()),
]


@pytest.mark.parametrize(("scorer", "answer"), ALONE, ids=repr)
def test_tensors_are_answered_and_scored_as_arrays_are(ledgers, scorer, answer):
    answer, scorer = fitted(scorer, answer, ledgers["held_out"])
    thresholds, like = np.zeros(EXITS), torch.empty(0)
    both = (Decider(answer, scorer, thresholds, like=each) for each in (None, like))
    check_alike(*both, ledgers["test"].logits)


@pytest.mark.parametrize("answer", without_logits(registered.ANSWERS), ids=repr)
@pytest.mark.parametrize("scorer", without_logits(registered.SCORERS), ids=repr)
def test_answers_without_logits_are_scored_alike_too(scorer, answer):
    rng = np.random.default_rng(0)
    ledger = offramp.Ledger.from_answers(
        rng.integers(3, size=(120, EXITS)).tolist(),
        confidence=rng.random((120, EXITS)),
        labels=rng.integers(3, size=120).tolist(),
        costs=[1, 2, 3, 4],
        split="held_out",
    )
    answer, scorer = fitted(scorer, answer, ledger)
    parts = answer, scorer, np.zeros(EXITS), AnswerHistory
    both = (Decider(*parts, like=each) for each in (None, torch.empty(0)))
    check_alike(*both, ledger.outputs)


@pytest.mark.parametrize("component", [*registered.SCORERS, *registered.ANSWERS], ids=repr)
def test_what_is_learned_is_copied_to_where_tensors_are(ledgers, component):
    is_answer = isinstance(component, offramp.Answer)
    given = (MaxProbability(), component) if is_answer else (component, None)
    own = fitted(*given, ledgers["held_out"])[0 if is_answer else 1]
    beside = own.beside(torch.empty(0))
    assert own.beside(np.empty(0)) is own
    assert (beside is own) == (not own.learned)
    for name, value in own.state().items():
        assert isinstance(value, np.ndarray)
        assert np.array_equal(getattr(beside, name), value)
        assert isinstance(getattr(beside, name), torch.Tensor)


PLAIN = [
    MaxProbability(),
    Entropy(),
    Margin(),
    offramp.Corrector(history=False, hidden=8, epochs=1),
]


@pytest.mark.parametrize("scorer", PLAIN, ids=str)
@pytest.mark.parametrize("answer", [CurrentExit(), MatrixScaling()], ids=str)
def test_what_reads_the_current_exit_only_is_not_given_any_other(ledgers, scorer, answer):
    answer, scorer = fitted(scorer, answer, ledgers["held_out"])
    decider = Decider(answer, scorer, np.zeros(EXITS))
    assert not decider.keeps_outputs and not decider.keeps_answers
    logits = ledgers["test"].logits
    _, scores = run(decider, logits)
    wanted = replay(answer, scorer, ledgers["test"]).scores[:, :-1]
    np.testing.assert_allclose(np.stack(scores, axis=1), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("answer", "scorer", "reads_outputs", "outputs", "answers"),
    [
        (CurrentExit(), MaxProbability(), (), False, False),
        (CurrentExit(), MaxProbability(), (False, True), True, False),
        (CurrentExit(), Patience(), (), True, False),  # the answers are the outputs
        (ProductOfExperts(), MaxProbability(), (), True, True),
        (MatrixScaling(), Patience(), (), True, True),
    ],
    ids=repr,
)
def test_only_what_is_read_later_is_kept(answer, scorer, reads_outputs, outputs, answers):
    decider = Decider(answer, scorer, np.zeros(2), reads_outputs=reads_outputs)
    buffer = decider.begin(samples=5, width=3)
    for kept, wanted in ((buffer.outputs, outputs), (buffer.answers, answers)):
        assert (kept is not None) == wanted
        if wanted:  # what was skipped by mistake shows up
            assert kept.shape == (5, 2, 3) and kept.dtype == np.float32 and np.isnan(kept).all()
    few = buffer.take(np.array([4, 1]))
    assert (few.outputs is not None) == outputs and (few.answers is not None) == answers


@pytest.mark.parametrize(
    ("scorer", "reads_outputs", "needs_head"),
    [
        (MaxProbability(), (), [False, True, False, True]),
        (MaxProbability(), (False, False, True, False), [True, True, False, True]),
        (MaxProbability(), (False, True, True, True), [True] * 4),
        (Patience(), (), [True, True, False, True]),  # there is no score at the last exit
    ],
    ids=repr,
)
def test_heads_run_where_an_exit_is_open_or_something_reads_them(
    scorer, reads_outputs, needs_head
):
    decider = Decider(
        CurrentExit(), scorer, np.array([INF, 0.0, INF, 5.0]), reads_outputs=reads_outputs
    )
    assert decider.is_open == (False, True, False, True)
    assert decider.is_scored == (False, True, False, False)
    assert list(decider.needs_head) == needs_head


def test_another_operating_point_shares_what_is_prepared(ledgers):
    parts = fitted(offramp.Corrector(), None, ledgers["held_out"])
    first = Decider(*parts, np.zeros(EXITS))
    second = first.at(np.array([INF, 1.0, 1.0, 1.0]))
    assert first.is_open == (True,) * EXITS and second.is_open == (False, True, True, True)
    assert second.limits == (INF, 1.0, 1.0, 1.0)
    outputs = ledgers["test"].logits[:5]
    (skipped, *scores), wanted = run(second, outputs)[1], run(first, outputs)[1]
    assert skipped is None and np.array_equal(scores, wanted[1:])
    assert first._scorings is second._scorings and len(first._scorings) == EXITS - 1


@dataclass
class Watched(offramp.Scorer):
    """Keeps what it is asked, and how often it is prepared."""

    seen: list = field(default_factory=list)
    prepared: list = field(default_factory=list)

    def at_exit(self, exit_index, num_classes):
        self.prepared.append((exit_index, num_classes))
        return self.score_at

    def score_at(self, history):
        self.seen.append(history)
        return history.log_odds


def test_an_exit_is_prepared_once_and_earlier_exits_are_worked_out_once(ledgers):
    scorer, outputs = Watched(), ledgers["test"].logits
    decider = Decider(CurrentExit(), scorer, np.zeros(EXITS))
    buffer = decider.begin(5, CLASSES)
    for _ in range(2):
        for m in range(decider.last):
            found = decider.at_exit(m, buffer, outputs[:5, m])
            # as it came: an answer that is kept does not keep all exits of the batch with it
            assert np.shares_memory(found.answer, outputs)
            for part in ("log_probs", "predictions"):
                assert np.shares_memory(getattr(scorer.seen[-1], part), getattr(buffer, part))
            fresh = History(outputs[:5, : m + 1], outputs[:5, : m + 1])
            assert np.array_equal(scorer.seen[-1].log_probs, fresh.log_probs)
            assert np.array_equal(scorer.seen[-1].predictions, fresh.predictions)
    assert scorer.prepared == [(m, CLASSES) for m in range(decider.last)]


def test_an_answer_of_its_own_is_kept_apart_from_the_buffer(ledgers):
    answer, scorer = fitted(Patience(), MatrixScaling(), ledgers["held_out"])
    decider = Decider(answer, scorer, np.zeros(EXITS))
    buffer, outputs = decider.begin(5, CLASSES), ledgers["test"].logits[:5]
    found = decider.at_exit(0, buffer, outputs[:, 0])
    assert np.array_equal(found.answer, buffer.answers[:, 0])
    assert np.array_equal(buffer.outputs[:, 0], outputs[:, 0])
    assert not np.shares_memory(found.answer, buffer.answers)


@pytest.mark.parametrize("joining", [MaxProbability(), Patience()], ids=str)
def test_buffers_are_joined_sample_by_sample(ledgers, joining):
    decider = Decider(CurrentExit(), joining, np.zeros(EXITS))
    outputs = ledgers["test"].logits[:7, 0]
    buffers = [decider.begin(len(rows), CLASSES) for rows in (outputs[:3], outputs[3:])]
    for buffer, rows in zip(buffers, (outputs[:3], outputs[3:]), strict=True):
        decider.at_exit(0, buffer, rows)
    joined, whole = HistoryBuffer.joined(buffers), decider.begin(7, CLASSES)
    decider.at_exit(0, whole, outputs)
    for one, other in zip(joined, whole, strict=True):
        assert (one is None) == (other is None)
        assert one is None or np.array_equal(one[:, 0], other[:, 0])


def test_on_another_device_what_is_learned_lies_there(ledgers):
    parts = fitted(offramp.Corrector(), MatrixScaling(), ledgers["held_out"])
    for like, kind in ((None, np.ndarray), (torch.empty(0), torch.Tensor)):
        decider = Decider(*parts, np.zeros(EXITS), like=like)
        for part in (decider._answer, decider._scorer):
            assert all(isinstance(value, kind) for value in part.state().values())


def test_what_is_kept_lies_where_outputs_do():
    for like, device in ((torch.empty(0), "cpu"), (torch.empty(0, device="meta"), "meta")):
        buffer = Decider(CurrentExit(), Patience(), np.zeros(2), like=like).begin(5, 3)
        assert {part.device.type for part in buffer if part is not None} == {device}


def test_limits_in_float32_decide_as_thresholds_in_float64():
    exact = np.float64(np.float32(0.1))
    for threshold in (exact, np.nextafter(exact, 1), np.nextafter(exact, 0)):
        decider = Decider(CurrentExit(), MaxProbability(), np.array([threshold, 0.0]))
        wanted = exact >= threshold
        assert decider.stops(0, np.float32([0.1])).tolist() == [wanted]
        assert decider.stops(0, torch.tensor([0.1])).tolist() == [wanted]


def test_nan_never_stops():
    decider = Decider(CurrentExit(), MaxProbability(), np.array([-INF, 0.0]))
    assert decider.stops(0, np.float32([np.nan, -1e30])).tolist() == [False, True]


def test_why_is_sure_hopeless_or_last():
    of_logits = Decider(CurrentExit(), MaxProbability(), np.zeros(3))
    of_answers = Decider(CurrentExit(), MaxProbability(), np.zeros(3), AnswerHistory)
    assert [of_answers.why(m, 0.4) for m in (0, 2)] == ["hopeless", "last"]
    assert [of_answers.why(m, 0.5) for m in (0, 2)] == ["sure", "last"]
    assert [of_logits.why(m, 0.1) for m in (0, 2)] == ["sure", "last"]
    assert open_exits([INF, INF]) == (False, True)


@dataclass
class Wrong(offramp.Scorer):
    """Gives something else than a score per sample."""

    given: object = None

    def score_at(self, history):
        return self.given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.0] * 5, r"Wrong.score_at must return an array, got list at exit 0"),
        (np.zeros((5, 1)), r"Wrong.score_at must .*\[5\].*\[5, 1\]"),
        (torch.zeros(3), r"Wrong.score_at must .*\[5\].*\[3\]"),
        (np.full(5, np.nan), "Wrong.score_at must give finite scores, got nan at exit 0"),
        (np.full(5, np.inf), "Wrong.score_at must give finite scores, got inf at exit 0"),
    ],
    ids=["a list", "a column", "too few", "not a number", "infinite"],
)
def test_scores_that_are_none_are_refused(given, message):
    logits = np.zeros((5, 3, 4), np.float32)
    with pytest.raises(LedgerError, match=message):
        Decider(CurrentExit(), Wrong(given)).scores(History(logits, logits))
