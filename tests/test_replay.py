"""A policy replayed on a ledger: what every measurement starts from."""

from dataclasses import replace

import pytest
import torch

from offramp import Corrector, MaxProbability, Policy, TemperatureScaling, evaluate
from offramp.errors import NotFittedError, SplitError
from offramp.price import Price
from offramp.thresholds import exits_taken


@pytest.fixture(scope="module")
def policy(splits):
    return Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"])


def test_a_replay_is_what_a_loop_over_samples_finds(policy, splits):
    test, chosen = splits["test"], policy.at(budget=0.4)
    replay = chosen.replay(test)
    limits = chosen.thresholds
    for sample in range(0, len(test), 37):
        exit_index = next(
            index
            for index in range(test.num_exits)
            if index == test.num_exits - 1 or replay.scores[sample, index] >= limits[index]
        )
        answer = int(test.logits[sample, exit_index].argmax())
        assert int(replay.exits[sample]) == exit_index
        assert bool(replay.right[sample]) == (answer == int(test.labels[sample]))
        share = float(test.costs[exit_index]) / test.reference_cost
        assert float(replay.costs[sample]) == pytest.approx(share)


def test_every_point_of_the_curve_is_what_evaluate_measures_there(policy, splits):
    curve = policy.replay(splits["test"]).curve
    assert (curve.costs.diff() >= 0).all()
    for place in (0, len(curve.costs) // 2, len(curve.costs) - 1):
        outcome = evaluate(policy.at_point(int(curve.points[place])), splits["test"])
        assert float(curve.accuracies[place]) == pytest.approx(outcome.accuracy)
        assert float(curve.costs[place]) == pytest.approx(outcome.mean_cost)
        assert curve.shares[place].tolist() == pytest.approx(outcome.exit_shares.tolist())


def test_exits_by_point_follow_the_one_stop_rule(policy, splits):
    replay = policy.replay(splits["test"])
    assert torch.equal(replay.exits_by_point, exits_taken(replay.scores, policy.points.thresholds))


def test_some_samples_of_a_replay_are_the_replay_of_these_samples(policy, splits):
    test, chosen = splits["test"], policy.at(budget=0.5)
    index = torch.arange(0, len(test), 7)
    part, alone = chosen.replay(test).take(index), chosen.replay(test.take(index))
    assert len(part) == len(index)
    for name in ("labels", "predictions", "exits", "right", "costs", "hopeless"):
        assert torch.equal(getattr(part, name), getattr(alone, name)), name
    assert torch.equal(part.curve.accuracies, alone.curve.accuracies)


def test_what_is_not_chosen_yet_cannot_be_asked_for(splits):
    fitted = Policy(MaxProbability()).fit(splits["held_out"])
    untuned = fitted.replay(splits["test"])
    with pytest.raises(NotFittedError, match=r"no operating points; call tune\(val\) first"):
        _ = untuned.curve
    tuned = fitted.tune(splits["val"]).replay(splits["test"])
    with pytest.raises(NotFittedError, match=r"no operating point yet; .*at\(budget=0.5\)"):
        _ = tuned.exits
    assert tuned.curve.at(0.5).cost == 0.5


def test_only_test_is_replayed_unless_the_caller_says_so(policy, splits):
    with pytest.raises(SplitError):
        policy.replay(splits["held_out"])
    assert len(policy.replay(splits["val"], allow_split="val")) == len(splits["val"])


def test_cost_shares_charge_answer_and_scorer_in_macs_only(splits):
    policy = Policy(Corrector(epochs=1), TemperatureScaling()).fit(splits["held_out"])
    charged = policy.replay(splits["test"]).cost_shares
    assert torch.equal(charged, policy.cost_shares)
    free = splits["test"].costs / splits["test"].reference_cost
    assert (charged > free).all()
    timed = replace(splits["test"].cost_model, unit="seconds")
    without = Price(policy.answer, policy.scorer, timed, 10).shares
    assert torch.equal(without, free)
