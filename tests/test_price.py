"""`Price`: what decisions take is measured once, and charged where nothing else charges it."""

from dataclasses import dataclass, replace
from itertools import accumulate, cycle, repeat
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import offramp
from offramp import Costs, MaxProbability, price
from offramp.answers import CurrentExit
from offramp.batch_times import BatchTimes
from offramp.ledger import AnswerHistory, History

EXITS, WIDTH = 3, 5
SECONDS = Costs(stages=(1.0, 2.0, 3.0), heads=(0.5, 0.5, 0.0), unit="seconds")
TIMES = BatchTimes.proportional(SECONDS)


@dataclass
class Watched(offramp.Scorer):
    """Keeps what it is asked."""

    needs = "confidences"
    asked: ClassVar[list] = []

    def score_at(self, history):
        type(self).asked.append(history)
        return history.log_odds


@pytest.fixture
def clock(monkeypatch):
    """Measures anew, by a clock that is set by the seconds from one reading to the next."""
    Watched.asked.clear()
    monkeypatch.setattr(price, "_SECONDS", {})

    def set_clock(seconds):
        readings = accumulate(seconds)
        monkeypatch.setattr(price, "time", SimpleNamespace(perf_counter=lambda: next(readings)))

    return set_clock


def test_the_fastest_turn_of_each_exit_counts(clock):
    # Before and after the decision at two exits, turn by turn.
    clock([*(9, 4, 9, 5), *(9, 3, 9, 7), *(9, 6, 9, 2), *repeat(9, 4 * (price.TURNS - 3))])
    found = price.decision_seconds(CurrentExit(), Watched(), EXITS, WIDTH)
    assert found.tolist() == [3, 2, 0]


def test_one_item_is_decided_in_every_turn(clock):
    clock(repeat(1))
    price.decision_seconds(CurrentExit(), Watched(), EXITS, WIDTH)
    assert [each.exit_index for each in Watched.asked] == [0, 1] * price.TURNS
    for each in Watched.asked:
        assert type(each) is History
        assert each.logits.shape == (1, each.exit_index + 1, WIDTH)
        assert np.isfinite(each.logits).all() and each.logits.dtype == np.float32


def test_stages_that_answer_without_logits_never_repeat_an_answer(clock):
    clock(repeat(1))
    price.decision_seconds(CurrentExit(), Watched(), EXITS, WIDTH, AnswerHistory)
    latest = Watched.asked[-1]
    assert type(latest) is AnswerHistory and latest.predictions.tolist() == [[0, 1]]


def test_a_process_measures_the_same_decision_once(clock):
    clock([*cycle_of(1), 0])  # and one reading too many ends in StopIteration
    first = price.decision_seconds(CurrentExit(), Watched(), EXITS, WIDTH)
    assert price.decision_seconds(CurrentExit(), Watched(), EXITS, WIDTH) is first
    others = (
        (CurrentExit(), MaxProbability(), EXITS, WIDTH),
        (offramp.answers.MajorityVote(), Watched(), EXITS, WIDTH),
        (CurrentExit(), Watched(), EXITS, WIDTH + 1),
        (CurrentExit(), Watched(), EXITS, WIDTH, AnswerHistory),
    )
    for seconds, other in enumerate(others, 2):
        clock(cycle_of(seconds))
        assert price.decision_seconds(*other).tolist() == [seconds, seconds, 0]


def cycle_of(seconds):
    """Readings for one measurement in which each decision takes so many seconds."""
    return [step for _, step in zip(range(4 * price.TURNS), cycle([1, seconds]), strict=False)]


@pytest.mark.parametrize(
    ("costs", "times", "charged"),
    [
        (SECONDS, None, True),
        (SECONDS, TIMES, True),
        (SECONDS, replace(TIMES, origin="a profile"), False),
        (replace(SECONDS, unit="macs"), None, False),
        (replace(SECONDS, unit="tokens"), None, False),
    ],
    ids=["seconds", "of a cascade", "of a profile", "macs", "tokens"],
)
def test_decisions_are_charged_in_seconds_that_do_not_hold_them(clock, costs, times, charged):
    clock(cycle_of(0.25))
    parts = CurrentExit(), Watched()
    found = price.price_of(*parts, costs, WIDTH, times, AnswerHistory)
    assert (found.answer, found.scorer, found.num_classes) == (*parts, WIDTH)
    assert found.costs is costs and found.batch_times is times
    assert (found.decisions is not None) == charged
    if charged:
        assert found.decisions.tolist() == [0.25, 0.25, 0]
        assert type(Watched.asked[0]) is AnswerHistory  # the decision that will be made
        plain = replace(found, decisions=None)
        spent = (found.shares - plain.shares) * found.reference
        np.testing.assert_allclose(spent, [0.25, 0.5, 0.5])


def test_macs_of_answer_and_scorer_are_added_and_no_scorer_runs_at_the_last_exit():
    @dataclass
    class Heavy(offramp.Scorer):
        def score_at(self, history):
            return history.log_odds

        def macs(self, exit_index, num_classes):
            return 10 * (exit_index + 1) + num_classes

    costs = Costs(stages=(100.0, 200.0, 300.0), heads=(0.0, 0.0, 0.0), unit="macs")
    found = price.Price(CurrentExit(), Heavy(), costs, WIDTH)
    np.testing.assert_allclose(found.shares * 600, [115, 115 + 225, 340 + 300])


def test_a_part_of_the_samples_has_the_shares_of_all():
    by_sample = np.array([[1.0, 2.0, 4.0], [3.0, 6.0, 8.0]])
    found = price.Price(
        CurrentExit(), MaxProbability(), Costs.from_cumulative(by_sample, "tokens"), WIDTH
    )
    assert found.reference == 6
    assert np.array_equal(found.take(np.array([1])).shares, found.shares[1:])
    exits = np.array([[0, 2], [1, 1]])
    wanted = np.array([[1.0, 8.0], [2.0, 6.0]]) / 6
    np.testing.assert_allclose(found.paid(np.zeros((2, 3)), exits), wanted)
