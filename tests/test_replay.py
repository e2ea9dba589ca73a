"""A policy replayed on a ledger: what every measurement starts from."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from offramp import (
    Corrector,
    Costs,
    Ledger,
    MaxProbability,
    Policy,
    Scorer,
    TemperatureScaling,
    evaluate,
    synthetic,
)
from offramp.answers import CurrentExit, ProductOfExperts
from offramp.arrays import log_softmax, softmax
from offramp.batch_times import BatchTimes
from offramp.decide import needed_heads
from offramp.errors import FileFormatError, LedgerError, NotFittedError, SplitError
from offramp.price import Price
from offramp.replay import accuracy_at, replay, try_out
from offramp.scorers import Patience
from offramp.thresholds import exits_taken
from offramp.thresholds.rule import exit_shares


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
    assert len(curve.costs) == len(policy.points)
    assert (np.diff(curve.costs) >= 0).all()
    for place in (0, len(curve.costs) // 2, len(curve.costs) - 1):
        outcome = evaluate(policy.at_point(int(curve.points[place])), splits["test"])
        assert float(curve.accuracies[place]) == pytest.approx(outcome.accuracy)
        assert float(curve.costs[place]) == pytest.approx(outcome.mean_cost)
        assert curve.shares[place].tolist() == pytest.approx(outcome.exit_shares.tolist())


def test_exits_by_point_follow_the_one_stop_rule(policy, splits):
    replay = policy.replay(splits["test"])
    expected = exits_taken(replay.scores, policy.points.thresholds)
    np.testing.assert_array_equal(replay.exits_by_point, expected)


def test_some_samples_of_a_replay_are_the_replay_of_these_samples(policy, splits):
    test, chosen = splits["test"], policy.at(budget=0.5)
    index = np.arange(0, len(test), 7)
    part, alone = chosen.replay(test).take(index), chosen.replay(test.take(index))
    assert len(part) == len(index)
    for name in ("labels", "predictions", "exits", "right", "costs", "hopeless"):
        np.testing.assert_array_equal(getattr(part, name), getattr(alone, name), name)
    np.testing.assert_array_equal(part.curve.accuracies, alone.curve.accuracies)


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
    np.testing.assert_array_equal(charged, policy.cost_shares)
    free = splits["test"].costs / splits["test"].reference_cost
    assert (charged > free).all()
    timed = replace(splits["test"].cost_model, unit="seconds")
    without = Price(policy.answer, policy.scorer, timed, 10).shares
    np.testing.assert_array_equal(without, free)


LOGITS = np.array(
    [[[3.0, 0], [0, 1]], [[0.5, 0], [2, 0]], [[0, 1], [0, 3]], [[0, 0.2], [1, 0]]], np.float32
)


def small(**changes):
    """Four samples, two exits and two classes, and their policy's replay with three points."""
    given = {"labels": [0, 0, 1, 1], "costs": Costs((2.0, 2.0), (0.0, 0.0), unit="relative")}
    parts = {"split": "test", "network": "small"}
    found = replay(
        CurrentExit(), MaxProbability(), Ledger(LOGITS, **{**given, **changes}, **parts)
    )
    thresholds = np.array([[2.0, 0], [0.4, 0], [-9.0, 0]])
    return replace(found, thresholds=thresholds, selected=1)


def test_a_replay_by_hand():
    found = small()
    assert found.predictions.tolist() == [[0, 1], [0, 0], [1, 1], [1, 0]]
    np.testing.assert_array_equal(found.network_predictions, found.predictions)
    assert found.predictions.dtype == found.network_predictions.dtype == np.int64
    assert found.scores[:, 0].tolist() == pytest.approx([3, 0.5, 1, 0.2], abs=1e-6)
    assert found.scores[:, 1].tolist() == [np.inf] * 4
    assert found.confidences == pytest.approx(softmax(LOGITS).max(axis=2))
    right = log_softmax(LOGITS)[range(4), :, [0, 0, 1, 1]]
    assert found.losses == pytest.approx(-right, abs=1e-6)
    assert found.correct.tolist() == [[True, False], [True, True], [True, True], [True, False]]
    assert found.stop_targets.tolist() == [[True, True]] * 4
    assert (found.exits.tolist(), found.right.tolist()) == ([0, 0, 0, 1], [True] * 3 + [False])
    assert found.exits_by_point.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert found.costs.tolist() == [0.5, 0.5, 0.5, 1.0]
    assert found.curve.costs.tolist() == [0.5, 0.625, 0.875]
    assert found.curve.accuracies.tolist() == [1.0, 0.75, 0.75]
    assert found.curve.shares.tolist() == [[1, 0], [0.75, 0.25], [0.25, 0.75]]
    assert found.curve.points.tolist() == [2, 1, 0]
    assert found.curve.at(0.75) == (0.75, 0.75)
    assert not (found.gave_up.any() or found.hopeless.any())
    # The chance that the last answer gives to each exit's class.
    assert float(found.chances[0, 0]) == pytest.approx(1 / (1 + 2.718281828), abs=1e-6)


def test_a_replay_of_samples_with_costs_of_their_own():
    paid = [[1.0, 3.0], [1.0, 5.0], [2.0, 4.0], [2.0, 8.0]]
    found = small(costs=Costs.from_cumulative(paid, "tokens"))
    assert found.costs.tolist() == pytest.approx([0.2, 0.2, 0.4, 1.6])  # of 5, the mean
    assert found.costs_by_point.tolist()[0] == pytest.approx([0.2, 1.0, 0.8, 1.6])
    assert found.curve.costs.tolist() == pytest.approx([0.3, 0.6, 0.9])
    part = found.take(np.array([3, 1]))
    assert part.costs.tolist() == pytest.approx([1.6, 0.2])  # still of the mean of all
    assert (part.labels.tolist(), part.exits.tolist()) == ([1, 0], [1, 0])
    assert found.take(np.array([0])).price.reference == 5
    everywhere = found.price.at(found.thresholds, np.ones((3, 2)))
    assert everywhere.tolist() == [pytest.approx([0.3, 1.0])] * 3


def test_means_of_groups():
    found = replace(small(), groups=np.array([0, 1, 1, 0]))
    values = np.array([[1.0, 0], [2, 0], [4, 6], [3, 2]])
    assert found.by_group(values).tolist() == [[2, 1], [3, 3]]
    assert small().by_group(values) is values
    assert found.take(np.array([1, 3])).groups.tolist() == [1, 0]


def test_heads_that_have_to_run():
    closed = np.inf
    thresholds = np.array([[closed, 0.5, closed, 0.0], [closed] * 4, [0.1, closed, 0.2, 0.3]])
    is_open = [[0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 1]]
    scored = [[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]]
    assert needed_heads(thresholds, False, False).tolist() == is_open
    assert needed_heads(thresholds, True, False).tolist() == scored
    assert needed_heads(thresholds, False, True).all()


def test_seconds_at_an_operating_point_count_what_runs():
    stages, heads = np.array([[4.0], [4.0], [2.0]]), np.array([[1.0], [1.0], [0.0]])
    times = BatchTimes(stages, heads, 10.0, np.array([[2.0], [3.0], [0.0]]))
    thresholds = np.array([[0.5, np.inf, 0.0], [0.5, 0.5, 0.0]])
    shares = np.array([[0.5, 0.0, 0.5], [0.25, 0.25, 0.5]])

    def at(scorer, answer):
        price = Price(answer, scorer, times.costs, 2, times)
        return price.at(thresholds, shares).tolist()

    forward = [pytest.approx([0.5, 0.9, 1.1]), pytest.approx([0.5, 1.0, 1.2])]
    assert at(MaxProbability(), CurrentExit()) == forward
    # What reads earlier exits takes longer, but for a closed exit that no later one reads.
    back = [pytest.approx([0.6, 1.0, 1.2]), pytest.approx([0.6, 1.3, 1.5])]
    assert at(Patience(), CurrentExit()) == back
    every = [pytest.approx([0.6, 1.3, 1.5])] * 2
    assert at(MaxProbability(), ProductOfExperts()) == every
    price = Price(CurrentExit(), Patience(), times.costs, 2, times)
    assert price.shares.tolist() == pytest.approx([0.6, 1.3, 1.5])
    exits = np.array([[0, 2], [1, 2]])
    paid = price.paid(thresholds, exits)
    assert paid.tolist() == [pytest.approx([0.6, 1.2]), pytest.approx([1.3, 1.5])]
    assert exit_shares(exits, 3).tolist() == [[0.5, 0, 0.5], [0, 0.5, 0.5]]


def test_accuracies_between_and_beyond_the_points_of_a_curve():
    costs = np.array([[0.8, 0.2, 0.4, 0.6], [0.5, 0.5, 0.5, 0.7]])
    accuracies = np.array([[0.9, 0.1, 0.5, 0.6], [0.2, 0.3, 0.4, 0.8]])
    wanted = np.array([0.1, 0.3, 0.5, 0.65, 1.0])
    found, at = accuracy_at(costs, accuracies, wanted)
    assert found[0].tolist() == pytest.approx([0.1, 0.3, 0.55, 0.675, 0.9])
    assert at[0].tolist() == pytest.approx([0.2, 0.3, 0.5, 0.65, 0.8])
    assert found[1].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.7, 0.8])
    assert at[1].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.65, 0.7])
    single, there = accuracy_at(costs[:, :1], accuracies[:, :1], wanted)
    assert (single[0].tolist(), there[0].tolist()) == ([0.9] * 5, [0.8] * 5)


@dataclass
class Odd(Scorer):
    """Scores that are wrong in one place."""

    value: float = float("nan")

    def score_at(self, history):
        scores = np.zeros(len(history))
        scores[-1] = self.value if history.exit_index == 1 else 0
        return scores


def test_one_score_that_is_not_finite_is_found_and_its_exit_named(splits):
    with pytest.raises(LedgerError, match="finite scores, got inf at exit 1"):
        replay(CurrentExit(), Odd(float("inf")), splits["test"])
    with pytest.raises(FileFormatError, match=r"of a file: .* do not fit 5 exits and 10 classes"):
        try_out(CurrentExit(), Odd(), 5, 10, "of a file")
    try_out(CurrentExit(), Odd(1.0), 5, 10, "of a file")


def test_values_that_are_not_known_have_no_part_in_the_mean_of_their_group():
    ledger = synthetic.ledgers(seed=0, samples=5)["test"]
    grouped = replace(
        replay(CurrentExit(), MaxProbability(), ledger), groups=np.array([0, 0, 1, 2, 2])
    )
    values = np.array([[1.0], [np.nan], [np.nan], [2.0], [4.0]])
    np.testing.assert_array_equal(grouped.by_group(values), [[1.0], [np.nan], [3.0]])
