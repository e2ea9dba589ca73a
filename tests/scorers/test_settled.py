"""Votes of repeated samples: is the majority settled?"""

import numpy as np
import pytest

import offramp
from offramp import Ledger, Policy
from offramp.advice import Auto
from offramp.answers import MajorityVote
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import AnswerHistory
from offramp.scorers import MaxProbability, Settled

SAMPLES = 10


def drawn(seed=0, questions=400, **settings):
    """Ten samples of each question, of which a share of its own is right; others are spread."""
    rng = np.random.default_rng(seed)
    easy = rng.beta(1.5, 1.0, (questions, 1))
    spread = rng.integers(1, 5, (questions, SAMPLES))
    answers = np.where(rng.random((questions, SAMPLES)) < easy, 0, spread)
    return Ledger.from_answers(
        answers.tolist(),
        labels=[0] * questions,
        costs=np.arange(1.0, SAMPLES + 1),
        unit="tokens",
        split="all",
        network="sampled",
        **{"reference": "vote", **settings},
    )


def chance(said, rule):
    first = [said.index(each) for each in said]
    outputs = np.array([[[0.0, number] for number in first]])
    scorer = Settled(rule)
    return float(scorer.probability(scorer.score_at(AnswerHistory(outputs, outputs)))[0])


@pytest.mark.parametrize("rule", ["beta", "dirichlet"])
def test_the_chance_is_what_simulated_shares_have(rule):
    shares = np.random.default_rng(0).dirichlet([4, 2, 2], 200_000)
    if rule == "beta":
        shares = np.random.default_rng(0).dirichlet([4, 2], 200_000)
    simulated = (shares.argmax(axis=1) == 0).mean()
    assert chance(["a", "b", "a", "c", "a"], rule) == pytest.approx(simulated, abs=0.005)


def test_both_rules_agree_on_two_answers_and_dirichlet_is_less_sure_of_three():
    assert chance(list("aab"), "beta") == pytest.approx(chance(list("aab"), "dirichlet"))
    assert chance(list("aabcd"), "dirichlet") < chance(list("aabcd"), "beta")


@pytest.mark.parametrize("rule", ["beta", "dirichlet"])
def test_every_further_vote_for_the_leader_makes_surer(rule):
    found = [chance(["a"] * count + ["b"], rule) for count in range(2, 12)]
    assert (np.diff(found) > 0).all()


def test_answers_without_confidence_are_voted_on_and_held_against_the_vote_of_all():
    ledger = drawn()
    votes = MajorityVote(of="answers").answer_at(ledger.outputs)
    right = ledger.labels[np.arange(len(ledger)), votes[:, 1].astype(int)]
    assert (ledger.full_correct == right).all()
    assert right.mean() > ledger.labels[:, -1].mean() + 0.05
    assert drawn(reference="last").full_correct.mean() == ledger.labels[:, -1].mean()


def test_the_vote_of_all_survives_cuts_and_files(tmp_path):
    ledger = drawn()
    part = ledger.take(np.arange(50)).keep_exits([0, 2, 4])
    assert (part.full_correct == ledger.full_correct[:50]).all()
    assert (Ledger.load(part.save(tmp_path / "part")).full_correct == part.full_correct).all()


def test_max_drop_and_regret_are_against_the_vote_of_all():
    held_out, val, test = drawn().partition()
    policy = Policy(Settled(), MajorityVote()).fit(held_out).tune(val, "shared")
    assert policy.points.full_accuracy == val.full_correct.mean()
    chosen = policy.at(max_drop=0.02)
    found = offramp.evaluate(chosen, test)
    assert found.full_accuracy == test.full_correct.mean()
    assert found.accuracy > found.full_accuracy - 0.06 and found.mean_cost < 0.9
    path = Policy(Settled(), MajorityVote()).fit(held_out)
    path.tune(held_out, "shared", allow_split="held_out")
    sure = offramp.certify(path, val, offramp.Guarantee(epsilon=0.15, loss="regret"))
    lost = val.full_correct & ~sure.policy.replay(val, "val", allow_split="val").right
    assert sure.loss == pytest.approx(lost.mean())


def test_auto_votes_where_there_are_no_confidences():
    held_out, val, test = drawn().partition()
    plan = offramp.auto(held_out, val, [0.5])
    assert "vote" in plan.methods[0.5] or "adaptive" in plan.methods[0.5]
    last = test.labels[:, -1].mean()
    assert offramp.evaluate(plan[0.5], plan.view(test)).accuracy > last + 0.03
    assert Auto().candidates == Auto().candidates


def test_adaptive_consistency_keeps_the_accuracy_of_the_vote_for_half_of_the_samples():
    held_out, val, test = drawn(questions=1000).partition()
    table = offramp.compare(
        held_out, val, test, ["adaptive-consistency"], [0.5], resamples=2, progress=False
    )
    assert table["adaptive-consistency"].accuracy(0.5) > test.full_correct.mean() - 0.03


def test_a_session_counts_votes_without_confidences():
    held_out, val, _ = drawn().partition()
    policy = Policy(Settled(), MajorityVote()).fit(held_out).tune(val, "shared").at(budget=0.5)
    session = policy.start()
    while not session.observe("a"):
        pass
    assert session.answer == "a" and session.stage < SAMPLES - 1
    together = policy.start(2)
    together.observe(["a", "b"])
    assert len(together.left) == 2
    plain = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.5).start()
    with pytest.raises(LedgerError, match="give either `confidence` or `log_confidence`"):
        plain.observe("a")


def test_other_rules_are_refused():
    with pytest.raises(ConfigError, match="`rule` must be one of beta, dirichlet"):
        Settled("gamma")
