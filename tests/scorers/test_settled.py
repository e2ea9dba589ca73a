"""Votes of repeated samples: is the majority settled?"""

from dataclasses import replace

import numpy as np
import pytest

import offramp
from offramp import Ledger, Policy
from offramp.advice import Auto
from offramp.answers import CurrentExit, MajorityVote
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import AnswerHistory
from offramp.runtime import Cascade, Member
from offramp.scorers import Settled

from ..registered import SCORERS

SAMPLES = 10
ONE_POINT = {"budgets": np.ones(1), "accuracies": np.ones(1), "shares": np.eye(1, SAMPLES)}


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
    votes = MajorityVote(of="votes").answer_at(ledger.outputs)
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


def voting(ledger, budget=0.5):
    held_out, val, test = ledger.partition()
    return Policy(Settled(), MajorityVote()).fit(held_out).tune(val, "shared").at(budget), test


def test_without_confidences_a_vote_is_as_sure_as_its_share_of_the_votes():
    policy, _ = voting(drawn())
    policy = policy.with_points(
        replace(policy.points, thresholds=np.array([[np.inf] * 3 + [0.0] * 7]), **ONE_POINT)
    ).at_point(0)
    session, together = policy.start(), policy.start(2)
    for said in "abaa":
        session.observe(said)
        together.observe([said, "c"])
    assert session.confidence == pytest.approx(0.75) and session.why == "sure"
    assert together.confidences == pytest.approx([0.75, 1.0])
    assert together.why == ["sure", "sure"]


def test_items_whose_majority_is_settled_are_sure_and_not_hopeless():
    policy, test = voting(drawn())
    replay = policy.replay(test)
    ends = np.arange(len(test)), replay.exits
    said = test.outputs[..., 1]
    shares = [
        np.unique(row[: end + 1], return_counts=True)[1].max() / (end + 1)
        for row, end in zip(said, replay.exits, strict=True)
    ]
    assert replay.confidences[ends] == pytest.approx(shares, abs=1e-6)
    assert (replay.gave_up == ((np.array(shares) < 0.5) & (replay.exits < SAMPLES - 1))).all()
    assert offramp.evaluate(policy, test).gave_up_share < 0.05


def test_stated_confidences_still_weigh_the_vote_even_where_all_are_one_half():
    policy, test = voting(drawn(confidence=[[0.5] * SAMPLES] * 400))
    assert policy.answer.of == "answers"
    assert policy.replay(test).confidences.max() <= 0.5


def test_the_winning_answer_of_a_cascade_has_the_share_of_the_votes():
    async def draw(text):
        counts[text] = counts.get(text, -1) + 1
        return "no" if counts[text] % 4 == 1 and int(text) % 2 else "yes", None

    counts, texts = {}, [str(number) for number in range(100)]
    with Cascade([Member(draw, 0.5, samples=4)], unit="dollars") as cascade:
        ledger = cascade.record((texts, ["yes"] * 100), split="all")
        policy, _ = voting(ledger, 1.0)
        points = replace(policy.points, thresholds=np.array([[np.inf] * 3 + [0.0]]), **ONE_POINT)
        counts = {}
        found = cascade.run(["1", "2"], policy.with_points(points).at_point(0))
    assert [each.confidence for each in found] == pytest.approx([0.75, 1.0])


@pytest.mark.parametrize(
    "scorer", [each for each in SCORERS if each.needs == "confidences"], ids=repr
)
def test_scorers_of_confidences_refuse_a_ledger_without(scorer):
    held_out, _, _ = drawn().partition()
    with pytest.raises(LedgerError, match=r"needs the confidences.*only answers without conf"):
        Policy(scorer).fit(held_out)
    assert Policy(offramp.scorers.Patience()).fit(held_out).answer == CurrentExit()


def test_files_and_cuts_know_that_no_confidence_was_stated(tmp_path):
    ledger = drawn()
    policy, test = voting(ledger)
    loaded = Ledger.load(test.save(tmp_path / "test"))
    assert type(loaded) is type(ledger.keep_exits([0, 3])) is type(ledger)
    again = Policy.load(policy.save(tmp_path / "policy"))
    assert (again.replay(loaded).confidences == policy.replay(test).confidences).all()
    with pytest.raises(LedgerError, match="for ledgers of votes, and the test ledger is one of"):
        policy.replay(drawn(confidence=[[0.9] * SAMPLES] * 400).partition().test)


def test_groups_of_methods_leave_out_what_needs_confidences():
    held_out, val, test = drawn().partition()
    table = offramp.compare(held_out, val, test, "standard", [0.5], resamples=2, progress=False)
    assert {each.name for each in table.methods} == {"vote:smooth", "adaptive-consistency", "auto"}


def test_other_rules_are_refused():
    with pytest.raises(ConfigError, match="`rule` must be one of beta, dirichlet"):
        Settled("gamma")
