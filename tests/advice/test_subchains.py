"""Sub-chains of a cascade: which models to ask, in which order, and when to stop."""

import time

import numpy as np
import pytest

import offramp
from offramp import Ledger, synthetic
from offramp.advice.subchains import SUB_CHAINS, SubChains, suits
from offramp.answers import MajorityVote
from offramp.costs import Costs
from offramp.errors import BudgetError, ConfigError
from offramp.evaluation.pairs import pair_envelope
from offramp.plan import Plan
from offramp.runtime import Member

BUDGETS = [0.1, 0.3, 0.5, 0.75]


@pytest.fixture(scope="module")
def questions():
    return synthetic.cascade(seed=0, samples=600)


@pytest.fixture(scope="module")
def plan(questions):
    return offramp.auto(questions["held_out"], questions["val"], BUDGETS)


def accuracies(plan, test):
    found = {b: offramp.evaluate(policy, plan.view(test)) for b, policy in plan.items()}
    return {b: (each.accuracy, each.mean_cost) for b, each in found.items()}


def test_auto_keeps_its_budgets_and_beats_the_best_mix_of_pairs(questions, plan):
    envelope = pair_envelope([questions["held_out"], questions["val"]], questions["test"])
    for budget, (accuracy, cost) in accuracies(plan, questions["test"]).items():
        assert cost < budget + 0.04
        assert accuracy > envelope.at(budget).accuracy - 0.01
    assert plan[0.1].exits != plan[0.75].exits


def test_a_single_model_is_taken_where_no_other_helps():
    rng = np.random.default_rng(0)
    parts = {}
    for split in ("held_out", "val"):
        right = rng.random((200, 3)) < [0.1, 0.9, 0.1]
        parts[split] = Ledger.from_answers(
            correct=right,
            confidence=rng.random((200, 3)),
            costs=Costs.of_members([1.0, 2.0, 10.0], "dollars"),
            split=split,
            network="made up",
        )
    plan = offramp.auto(**parts, budgets=BUDGETS[1:])
    assert {policy.exits for policy in plan.values()} == {(1,)}
    assert "the best pair" in plan.why[0.5]


def test_the_last_model_may_be_left_out_and_budgets_stay_shares_of_it(questions, plan):
    policy = plan[0.1]
    assert policy.exits[-1] < 3
    replay = policy.replay(questions["test"])
    paid = (replay.costs * questions["test"].reference_cost).mean()
    assert paid == pytest.approx(0.1 * questions["test"].reference_cost, rel=0.15)


def test_more_models_than_asked_for_are_never_asked(questions):
    pair = SubChains(most=2).plans(questions["held_out"], questions["val"], BUDGETS, seeds=1)[0]
    assert max(len(policy.exits) for policy in pair.values()) <= 2


def test_a_budget_below_the_cheapest_model_is_refused(questions):
    with pytest.raises(BudgetError, match="must lie in"):
        offramp.auto(questions["held_out"], questions["val"], [0.01])


def test_the_reason_names_the_models_and_the_best_of_fewer(plan):
    assert plan.why[0.5].startswith("model ")
    for words in ("estimated by cross-fitting on 1,200 samples", "the best single model"):
        assert words in plan.why[0.5]


def test_a_plan_of_different_sub_chains_survives_a_file(questions, plan, tmp_path):
    loaded = Plan.load(plan.save(tmp_path / "plan"))
    for budget, policy in loaded.items():
        test = loaded.view(questions["test"])
        assert (policy.decide(test) == plan[budget].decide(test)).all()
        assert policy.exits == plan[budget].exits


def test_questions_of_a_group_share_a_fold():
    """A question asked ten times cannot help to judge itself."""
    rng = np.random.default_rng(0)
    one, ten = {}, {}
    for split in ("held_out", "val"):
        odds, right = rng.normal(size=(30, 3)), rng.random((30, 3)) < 0.5
        costs = Costs.of_members([1.0, 4.0, 10.0], "dollars")
        names = np.array([f"{split}-{number}" for number in range(30)])
        for found, times in ((one, 1), (ten, 10)):
            found[split] = Ledger.from_answers(
                correct=np.repeat(right, times, axis=0),
                confidence=np.repeat(1 / (1 + np.exp(-odds)), times, axis=0),
                costs=costs,
                split=split,
                network="made up",
                groups=np.repeat(names, times),
            )
    plain, repeated = (offramp.auto(**each, budgets=[0.75]) for each in (one, ten))
    estimates = [each.accuracies["sub-chains"][0.75] for each in (plain, repeated)]
    assert estimates[1] < estimates[0] + 0.1


def test_networks_and_unlabelled_answers_are_left_to_other_methods(questions):
    logits = synthetic.ledgers(seed=0, samples=50, exits=3)
    assert not suits(logits["held_out"], logits["val"])
    assert suits(questions["held_out"], questions["val"])
    unlabelled = Ledger.from_answers(
        [[1, 2], [3, 3]],
        confidence=[[0.5, 0.6], [0.7, 0.8]],
        costs=Costs.of_members([1.0, 2.0], "dollars"),
        split="val",
    )
    assert not suits(questions["held_out"], unlabelled)


def test_samples_without_confidences_vote_and_the_policy_runs():
    """Nothing but votes can decide when the model itself is asked, so nothing else is chosen."""
    drawn = np.random.default_rng(0)

    async def ask(question):
        return ("right" if drawn.random() < 0.7 else f"wrong {drawn.integers(4)}", None)

    member = Member(ask, cost=0.001, samples=6, name="model")
    with offramp.Cascade([member], unit="dollars") as cascade:
        ledger = offramp.record(cascade, (list(range(150)), ["right"] * 150), split="all")
        held_out, val, _ = ledger.partition()
        assert not suits(held_out, val)
        policy = offramp.auto(held_out, val, budgets=[0.6])[0.6]
        assert isinstance(policy.answer, MajorityVote)
        assert len(cascade.run(["one", "two"], policy)) == 2


def test_other_thresholds_are_refused():
    with pytest.raises(ConfigError, match="chooses thresholds too"):
        SUB_CHAINS.with_thresholds("smooth")


def test_ten_models_take_seconds():
    parts = synthetic.cascade(seed=1, samples=150, prices=tuple(2.0**i for i in range(10)))
    start = time.process_time()
    offramp.auto(parts["held_out"], parts["val"], BUDGETS)
    assert time.process_time() - start < 10


def test_advice_on_a_cascade_stands_beside_pairs_and_speaks_of_models(questions):
    known = questions["held_out"], questions["val"]
    text = str(offramp.advise(*known, questions["test"], [0.3, 0.5], resamples=50))
    assert "A cascade is worth it: " in text
    assert "Against the best mix of pairs of models at the same cost: +" in text
    assert "exit" not in text and "network" not in text and "overruns" not in text


def test_a_budget_that_test_overruns_is_said(questions):
    known, test = (questions["held_out"], questions["val"]), questions["test"]
    hard = test.take(np.argsort(test.history().odds[:, 1])[:200])
    text = str(offramp.advise(*known, hard, [0.5], resamples=50))
    assert "Test overruns the budget of 50% clearly: " in text


def test_a_comparison_of_answers_has_smooth_thresholds_and_pairs_by_default(questions):
    table = offramp.compare(**questions, budgets=[0.5], resamples=2, progress=False)
    names = [method.name for method in table.methods]
    assert "baseline:smooth" in names and "auto" in names and "baseline" not in names
    pairs = table.references.pair_mixes[0].accuracy
    assert f"pairs of models, mixed: {100 * pairs:.2f} at 50%" in str(table)
    assert table["auto"].accuracy(0.5) > pairs
