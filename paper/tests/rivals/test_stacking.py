"""A small network that stacks the exits so far, for the likeliest classes."""

import numpy as np
import pytest

from offramp import Ledger
from offramp.errors import ConfigError
from offramp_paper.rivals import StackingNetwork


def test_negative_shrinkage_is_refused():
    with pytest.raises(ConfigError, match="`shrinkage` must not be negative, got -1"):
        StackingNetwork(shrinkage=-1)


def test_shrinkage_draws_a_stacking_network_to_the_current_exit(splits):
    held_out, logits = splits["held_out"], splits["test"].logits
    drawn = StackingNetwork(k=3, hidden=4, shrinkage=1e4).fit(held_out)
    assert np.allclose(drawn.answers(logits), logits, atol=1e-2)
    free = StackingNetwork(k=3, hidden=4, shrinkage=1e-4).fit(held_out)
    assert not np.allclose(free.answers(logits), logits, atol=0.1)


def test_a_stacking_network_changes_the_likeliest_classes_only(splits):
    fitted = StackingNetwork(k=2, hidden=4, shrinkage=1e-4).fit(splits["held_out"])
    logits = splits["test"].logits
    answers = fitted.answers(logits)
    assert np.array_equal(answers[:, 0], logits[:, 0])  # nothing to stack yet
    for m in (1, 3):
        likeliest = logits[:, m] >= np.sort(logits[:, m], axis=1)[:, -2:-1]
        changed = answers[:, m] != logits[:, m]
        assert not changed[~likeliest].any()
        assert changed[likeliest].mean() > 0.9


def test_a_stacking_network_learns_when_an_earlier_exit_knows_better():
    """Where exit 0 is sure it is right; where not, it says nothing, and exit 1 always guesses."""
    made = {}
    for number, split in enumerate(("held_out", "test")):
        rng = np.random.default_rng(number)
        labels, sure = rng.integers(4, size=800), rng.random(800) < 0.5
        logits = 0.5 * rng.standard_normal((800, 2, 4), np.float32)
        logits[np.arange(800), 0, labels] += 6.0 * sure
        made[split] = Ledger(logits, labels, [0.5, 1.0], split=split, network="n")
    fitted = StackingNetwork(k=4, shrinkage=1e-4).fit(made["held_out"])
    test = made["test"]

    def accuracy(answers):
        return (answers[:, 1].argmax(axis=1) == test.labels).mean()

    assert accuracy(test.logits) < 0.35
    assert accuracy(fitted.answers(test.logits)) > 0.55


def test_a_stacking_network_costs_what_its_products_cost():
    answer = StackingNetwork(k=10, hidden=16)
    assert answer.macs(0, num_classes=100) == 0
    assert answer.macs(3, num_classes=100) == 10 * (4 * 16 + 16 + 4)
    assert answer.macs(3, num_classes=6) == 6 * (4 * 16 + 16 + 4)
    with pytest.raises(ConfigError, match="`hidden` must be a whole number of at least 1, got 0"):
        StackingNetwork(hidden=0)
