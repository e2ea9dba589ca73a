"""What the paper claims, measured: on made-up networks, and on a real one where it is at hand."""

import numpy as np
import pytest

from offramp import compare, synthetic
from offramp.arrays import softmax
from offramp.errors import ConfigError
from offramp.targets import hopeless


def run(ledgers, methods):
    return compare(ledgers["held_out"], ledgers["val"], ledgers["test"], methods, seeds=2)


@pytest.fixture(scope="module")
def structured():
    return run(synthetic.ledgers(seed=0), ["baseline", "temperature", "eefp", "ccct"])


def test_with_structure_ours_predicts_failure_better_than_temperature(structured):
    gap = structured["eefp"].differences["temperature"]["eefp"]
    assert gap.low > 0.05


def test_with_structure_ours_is_more_accurate_at_a_quarter_of_the_compute(structured):
    gap = structured["eefp"].differences["temperature"]["accuracy@0.25"]
    assert gap.low > 0.03


def test_calibration_improves_ece_and_not_the_decision(structured):
    assert structured["ccct"].differences["baseline"]["ece"].high < 0
    assert structured["ccct"].differences["baseline"]["eefp"].high < 0.005


def test_without_structure_no_method_wins():
    ledgers = synthetic.ledgers(seed=0, samples=1000, structure=False)
    table = run(ledgers, ["baseline", "temperature", "eefp", "ccct"])
    for method in table.methods[1:]:
        for column, gap in method.differences["baseline"].items():
            if column != "ece":
                assert gap.low <= 0.002, (method.name, column, gap)


def test_made_up_networks_have_the_structure_that_was_asked_for():
    ledger = synthetic.ledgers(seed=5, samples=4000, hopeless=0.3, relapse=0.2)["val"]
    correct = ledger.logits.argmax(axis=2) == ledger.labels[:, None]
    assert hopeless(correct).mean() == pytest.approx(0.3, abs=0.03)
    lost_again = correct.any(axis=1) & ~correct[:, -1]
    assert 0.03 < lost_again.mean() < 0.2
    steady = synthetic.ledgers(seed=5, relapse=0.0)["val"]
    steady_correct = steady.logits.argmax(axis=2) == steady.labels[:, None]
    assert (steady_correct[:, 1:] >= steady_correct[:, :-1]).all()
    confidence = softmax(steady.logits).max(axis=2).mean(axis=0)
    assert (confidence > steady_correct.mean(axis=0)).all()


def test_made_up_networks_are_repeatable_and_their_splits_differ():
    one, two = synthetic.ledgers(seed=3, samples=20), synthetic.ledgers(seed=3, samples=20)
    for split in one:
        np.testing.assert_array_equal(one[split].logits, two[split].logits)
    assert not np.array_equal(one["val"].logits, one["test"].logits)
    other = synthetic.ledgers(seed=4, samples=20)
    assert one["val"].network != other["val"].network


@pytest.mark.parametrize("changes", [{"exits": 1}, {"classes": 7}, {"hopeless": 1.5}])
def test_impossible_made_up_networks_are_refused(changes):
    with pytest.raises(ConfigError, match=r"must be a whole number|must lie in \[0, 1\]"):
        synthetic.ledgers(**changes)


@pytest.mark.real
def test_on_a_real_network_ours_predicts_failure_better_than_temperature(real_splits):
    table = run(real_splits, ["baseline", "temperature", "eefp", "eefp-no-history"])
    for name in ("eefp", "eefp-no-history"):
        gaps = table[name].differences["temperature"]
        assert gaps["eefp"].low > 0.02
        assert gaps["accuracy@0.25"].low > 0
        assert gaps["ece"].low > 0  # better decisions with worse calibration
    assert table["temperature"].differences["baseline"]["ece"].high < 0
