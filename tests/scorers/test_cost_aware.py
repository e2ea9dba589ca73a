"""Cost-aware scorers: they know when the right answer would come, and what it costs."""

from math import log

import numpy as np
import pytest

from offramp import Corrector, Ledger
from offramp.errors import ConfigError
from offramp.methods import find_methods
from offramp.scorers import BreakEven, History


def history_of(ledger, until=None):
    history = History(ledger.logits, ledger.logits)
    return history if until is None else history.until(until)


def fit(scorer, ledger):
    return scorer.clone().fit(history_of(ledger), ledger.labels, ledger.costs)


def stops_at(scorer, history, price):
    """Whether to stop at a price: it is above the break-even price that the score stands for."""
    return scorer.score_at(history) >= -log(price)


def world_of_three_kinds(samples=900, seed=0):
    """Right at once; right from exit 1 on; right at the last exit only. Exit 0 tells which.

    It says so by how many classes compete: one, two or four. All need the same MACs per stage.
    """
    rng = np.random.default_rng(seed)
    kind = np.arange(samples) % 3
    labels = rng.integers(8, size=samples)
    first_right = np.array([0, 1, 3])[kind]
    logits = 0.3 * rng.normal(size=(samples, 4, 8))
    crowd = np.array([0, 2, 4])[kind]
    for other in range(1, 5):  # wrong classes that compete until the sample is right
        rival = (labels + other) % 8
        there = (np.arange(4) < first_right[:, None]) & (other <= crowd)[:, None]
        logits[np.arange(samples), :, rival] += 4.0 * there
    right = np.arange(4) >= first_right[:, None]
    logits[np.arange(samples), :, labels] += np.where(right, 6.0, -3.0)
    ledger = Ledger(logits, labels, [0.25, 0.5, 0.75, 1.0], split="held_out", network="kinds")
    return ledger, kind


@pytest.fixture(scope="module")
def fitted():
    """Fitted to the world of three kinds."""
    return fit(BreakEven(), world_of_three_kinds()[0])


def test_the_sooner_the_right_answer_comes_the_more_going_on_is_worth(fitted):
    ledger, kind = world_of_three_kinds()
    scores = fitted.score_at(history_of(ledger, 0))
    at_once, soon, late = (scores[kind == k] for k in range(3))
    assert soon.max() < late.min()
    assert late.max() < at_once.min()


def test_the_papers_target_does_not_tell_soon_from_late():
    ledger, kind = world_of_three_kinds()
    scores = fit(Corrector(), ledger).score_at(history_of(ledger, 0))
    at_once, soon, late = (scores[kind == k] for k in range(3))
    assert max(soon.max(), late.max()) < 0 < at_once.min()  # both should go on, and that is all


@pytest.mark.parametrize("price", [0.5, 2.0])
def test_at_a_price_only_what_is_worth_it_is_bought(price, fitted):
    """A right answer is worth 1. Soon it costs a quarter of the price, late three quarters."""
    ledger, kind = world_of_three_kinds()
    stops = stops_at(fitted, history_of(ledger, 0), price)
    shares = [stops[kind == k].mean() for k in range(3)]
    expected = {0.5: [1, 0, 0], 2.0: [1, 0, 1]}[price]
    assert shares == pytest.approx(expected, abs=0.1)


def test_backward_induction_beats_stopping_at_once_and_never_stopping(splits):
    """The learned rule at a price, followed on new samples, is worth more than either extreme."""
    scorer = fit(BreakEven(), splits["held_out"])
    val, costs = splits["val"], splits["val"].costs / splits["val"].costs[-1]
    correct = val.logits.argmax(2) == val.labels[:, None]
    for price in (0.1, 0.5, 1.0):
        worth = correct[:, -1] - price * costs[-1]
        for m in reversed(range(4)):
            stop = stops_at(scorer, history_of(val, m), price)
            worth = np.where(stop, correct[:, m] - price * costs[m], worth)
        extremes = correct.mean(0) - price * costs
        assert worth.mean() > extremes[[0, -1]].max()


def test_thresholds_are_named_after_a_colon():
    (method,) = find_methods(["eefp:smooth"], num_classes=10)
    assert (method.thresholds, method.label) == ("smooth", "EEFP (paper), smooth")
    with pytest.raises(ConfigError, match="one of geometric, smooth, shared"):
        find_methods(["eefp:best"], num_classes=10)
    with pytest.raises(ConfigError, match="did you mean `eefp`"):
        find_methods(["eef:smooth"], num_classes=10)
