"""Sessions: one item, or many in step, decided as the same items are on a ledger."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from offramp import Ledger, MaxProbability, Policy, synthetic
from offramp.errors import ConfigError, LedgerError
from offramp.scorers import LogisticCorrector, Patience
from offramp.session import BatchSession

from . import registered
from .registered import quick, without_logits

STAGES, COSTS = 4, (10.0, 30.0, 60.0, 100.0)


def made(samples, split, seed, features=0, answers=True):
    """A ledger of answers without logits, and what its stages gave."""
    rng = np.random.default_rng(seed)
    sure = np.sort(rng.random((samples, STAGES)), axis=1)
    right = rng.random((samples, STAGES)) < sure
    given = np.where(right, "a", np.array([["b", "c", "b", "d"]])).tolist()
    further = rng.random((samples, STAGES, features)) if features else None
    known = {"answers": given, "labels": ["a"] * samples} if answers else {"correct": right}
    ledger = Ledger.from_answers(
        **known, confidence=sure, costs=COSTS, split=split, features=further, network="x"
    )
    return SimpleNamespace(ledger=ledger, answers=given, confidence=sure, features=further)


@pytest.fixture(scope="module")
def said():
    return [made(150, split, seed) for seed, split in enumerate(("held_out", "val", "test"))]


@pytest.fixture(scope="module")
def plain(said):
    return fitted(MaxProbability(), None, said)


def fitted(scorer, answer, parts, budget=0.5):
    policy = Policy(scorer, answer).fit(parts[0].ledger).tune(parts[1].ledger)
    return policy.at(budget=budget)


def told(test, rows, stage):
    """What `observe` is told of some items at a stage."""
    further = {} if test.features is None else {"features": test.features[rows, stage]}
    answers = [test.answers[row][stage] for row in rows]
    return {"outputs": answers, "confidence": test.confidence[rows, stage], **further}


def in_step(policy, test, samples):
    """A session for all of them, observed to the end, with what was left at each stage."""
    session, left = policy.start(samples), []
    for stage in range(STAGES):
        if len(session.left):
            left.append(session.left)
            stop = session.observe(
                **told(test, left[-1], stage), cost=[COSTS[stage]] * len(left[-1])
            )
            assert np.array_equal(session.left, left[-1][~stop])
    return session, left


@pytest.mark.parametrize("answer", without_logits(registered.ANSWERS), ids=repr)
@pytest.mark.parametrize("scorer", without_logits(registered.SCORERS), ids=repr)
def test_answers_in_step_are_decided_as_on_a_ledger_to_the_last_bit(said, scorer, answer):
    policy, (*_, test), taken = fitted(quick(scorer), answer, said), said, set()
    for point in range(0, len(policy.points), max(len(policy.points) // 6, 1)):
        taken |= check_in_step(policy.at_point(point), test)
    assert len(taken) > 1  # or little was tested


def check_in_step(policy, test):
    replay, rows = policy.replay(test.ledger), np.arange(60)
    session, left = in_step(policy, test, samples=60)
    exits = replay.exits[:60]
    assert [len(each) for each in left] == [(exits >= m).sum() for m in range(max(exits) + 1)]
    assert np.array_equal(session.stages, exits)
    assert np.array_equal(session.costs, np.array(COSTS)[exits])
    early = exits < STAGES - 1
    assert np.array_equal(session.scores[early], replay.scores[rows, exits][early])
    assert np.array_equal(session.confidences, replay.confidences[rows, exits])
    predicted = replay.predictions[rows, exits]
    assert session.answers == [test.answers[row][predicted[row]] for row in rows]
    why = np.where(replay.gave_up[:60], "hopeless", "sure")
    assert session.why == np.where(early, why, "last").tolist()
    return set(exits.tolist())


@pytest.mark.parametrize("scorer", [MaxProbability(), Patience(), LogisticCorrector()], ids=repr)
def test_items_in_step_are_decided_as_one_by_one(said, scorer):
    policy, (*_, test) = fitted(scorer, None, said), said
    together, _ = in_step(policy, test, samples=25)
    for row in range(25):
        session = policy.start()
        for stage in range(STAGES):
            stated = float(test.confidence[row, stage])
            if session.observe(test.answers[row][stage], stated, COSTS[stage]):
                break
        assert (session.stage, session.answer) == (together.stages[row], together.answers[row])
        assert (session.cost, session.why) == (together.costs[row], together.why[row])
        assert session.confidence == together.confidences[row]
        assert session.score == together.scores[row] or session.score is None


def test_logits_are_taken_as_arrays_tensors_and_lists():
    splits = synthetic.ledgers(seed=0, samples=200, exits=3, classes=8)
    policy = Policy(LogisticCorrector()).fit(splits["held_out"]).tune(splits["val"])
    policy, logits = policy.at(budget=0.7), splits["test"].logits[:40]
    exits = policy.decide(splits["test"])[:40]
    for of in (np.asarray, torch.from_numpy, np.ndarray.tolist):
        session = policy.start(40)
        for stage in range(3):
            session.observe(of(logits[session.left, stage]))
        assert np.array_equal(session.stages, exits)
        assert session.answers == logits[np.arange(40), exits].argmax(axis=1).tolist()
        assert isinstance(session.answers[0], int)


def test_logits_are_observed_in_float32_as_ledgers_hold_them():
    splits = synthetic.ledgers(seed=0, samples=200, exits=3, classes=8)
    policy = Policy(LogisticCorrector()).fit(splits["held_out"]).tune(splits["val"]).at_point(3)
    exact = splits["test"].logits[:50, 0].astype(np.float64) + np.linspace(0, 1e-6, 50)[:, None]
    one, other = policy.start(50), policy.start(50)
    one.observe(exact), other.observe(exact.astype(np.float32))
    for name in ("scores", "confidences"):
        assert getattr(one, name).dtype == np.float32
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)


def test_confidences_alone_and_features_are_observed():
    alone = [made(150, split, n, answers=False) for n, split in enumerate(("held_out", "val"))]
    session = fitted(MaxProbability(), None, alone).start(3)
    session.observe(confidence=[0.01, 0.02, 0.03])
    assert np.allclose(session.confidences, [0.01, 0.02, 0.03])
    logs = fitted(MaxProbability(), None, alone).start(3)
    logs.observe(log_confidence=np.log([0.01, 0.02, 0.03]))
    assert np.array_equal(logs.scores, session.scores)
    parts = [
        made(150, split, n, features=2) for n, split in enumerate(("held_out", "val", "test"))
    ]
    policy = fitted(LogisticCorrector(), None, parts)
    session, _ = in_step(policy, parts[2], samples=30)
    assert np.array_equal(session.stages, policy.decide(parts[2].ledger)[:30])


def test_answers_are_compared_in_the_form_that_is_asked_for(said):
    policy = fitted(Patience(), None, said)
    for normalise, wanted in ((None, 1), (str.lower, 2)):
        session = policy.start(1, normalise)
        session.observe(["A"], [0.5])
        session.observe(["a"], [0.5])
        assert session.scores.tolist() == [wanted]


def test_before_the_first_stage_nothing_is_known(plain):
    session = plain.start(2)
    assert isinstance(session, BatchSession)
    assert session.left.tolist() == [0, 1] and session.stages.tolist() == [-1, -1]
    assert np.isnan(session.costs).all() and session.why == [None, None]
    assert np.isnan(session.scores).all() and np.isnan(session.confidences).all()
    with pytest.raises(ConfigError, match="nothing was observed yet; call observe"):
        _ = session.answers
    one = plain.start()
    assert (one.stage, one.score, one.cost, one.why, one.stopped) == (-1, None, None, None, False)
    with pytest.raises(ConfigError, match="nothing was observed yet; call observe"):
        _ = one.confidence


UNSURE = {"outputs": ["a", "b", "a"], "confidence": [0.01, 0.01, 0.01], "cost": [5, 6, 7]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ["a", "b"]}, "3 items are left, got 2 answers"),
        ({"confidence": [0.5]}, "3 items are left, got 1 confidence"),
        ({"features": [[]]}, "3 items are left, got 1 features"),
        ({"features": [[1.0]] * 3}, "reads 0 features per stage, got 1"),
        ({"confidence": None}, "either `confidence` or `log_confidence`"),
        ({"log_confidence": [-1.0] * 3}, "either `confidence` or `log_confidence`"),
        ({"confidence": [0.5, 0.5, 1.5]}, "a confidence is a probability"),
        ({"confidence": [0.5, 0.5, float("nan")]}, "a confidence is a probability"),
        ({"cost": [5, 6]}, "3 items are left, got 2 costs"),
        ({"cost": 9}, "3 items are left, got 1 costs"),
        ({"cost": [5, 6, 3]}, "does not fall: got 3 after 7"),
        ({"cost": [5, float("nan"), 8]}, "does not fall: got nan after 6"),
    ],
    ids=repr,
)
def test_what_is_refused_is_said_and_changes_nothing(plain, changes, message):
    session, other = plain.start(3), plain.start(3)
    for each in (session, other):
        assert not each.observe(**UNSURE).any()
    with pytest.raises(LedgerError, match=message):
        session.observe(**{**UNSURE, **changes})
    for each in (session, other):
        each.observe(["b", "b", "a"], [0.02, 0.03, 0.04], [8, 8, 8])
    for name in ("left", "stages", "costs", "scores", "confidences", "answers", "why"):
        assert np.array_equal(getattr(session, name), getattr(other, name)), name


def test_a_single_stage_that_is_refused_changes_nothing(plain):
    session = plain.start()
    session.observe("a", 0.01, cost=5)
    for arguments in ({"confidence": 2.0, "cost": 50}, {"features": [1.0], "cost": 50}):
        with pytest.raises(LedgerError):
            session.observe("a", **{"confidence": 0.5, **arguments})
        assert (session.stage, session.cost) == (0, 5)


@pytest.mark.parametrize("shape", [(2, 8), (3, 7), (3,), (3, 1, 8)])
def test_logits_of_another_shape_are_refused(shape):
    splits = synthetic.ledgers(seed=0, samples=100, exits=3, classes=8)
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"]).at_point(0)
    with pytest.raises(
        LedgerError,
        match=r"observes 8 finite logits for each of the 3 items that are left, got an array",
    ):
        policy.start(3).observe(np.zeros(shape))
    with pytest.raises(
        LedgerError, match=r"observes 8 finite logits for each of the 3 items that are left, got"
    ):
        policy.start(3).observe(np.full((3, 8), np.nan))
    with pytest.raises(
        LedgerError, match=r"observes 8 finite logits, got an array of the shape \[3\]"
    ):
        policy.start().observe(np.zeros(3))


def test_sessions_end(plain, said):
    session, _ = in_step(plain, said[2], samples=2)
    assert len(session.left) == 0 and None not in session.why
    with pytest.raises(ConfigError, match="all items of this session have stopped"):
        session.observe(["a"], [0.5])
    for items in (0, 1.5):
        with pytest.raises(ConfigError, match="`items` must be a whole number of at least 1"):
            plain.start(items)


def test_a_logarithm_states_the_same_confidence(plain):
    one, other = plain.start(), plain.start()
    one.observe("a", confidence=0.25, cost=0.5)
    other.observe("a", log_confidence=float(np.log(0.25)), cost=0.5)
    assert (one.stopped, one.cost) == (other.stopped, other.cost) == (one.stopped, 0.5)
    assert one.confidence == pytest.approx(0.25) == other.confidence
    assert one.score == pytest.approx(other.score)
