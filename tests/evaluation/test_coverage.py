"""Intervals hold the true difference as often as they say; `benchmarks/coverage.py` has it all."""

import numpy as np
import pytest
import torch

from offramp import compare, synthetic
from offramp.evaluation.bootstrap import Resamples, difference, unseen_variance

BUDGETS = (0.25, 0.55, 0.85, 0.95)


def gap_of(discordant, samples=600):
    """The interval where one policy alone is right on so many samples, the other on none."""
    gaps = (torch.arange(samples) < discordant).double()
    resampled = Resamples(samples).means(gaps[:, None]).squeeze(1)
    return difference(gaps.mean().item(), resampled, unseen=unseen_variance(samples))


def test_it_takes_six_samples_to_call_a_policy_better():
    assert not gap_of(5).is_clear  # McNemar's exact test gives p = 0.06
    assert gap_of(6).is_clear  # p = 0.03


def test_without_a_sample_that_differs_the_difference_is_not_known_to_be_zero():
    gap = gap_of(0)
    assert not gap.is_clear
    assert gap.high == pytest.approx(2.77 / 600, rel=1e-3)  # a chance of exp(-2.77) = 6 %


@pytest.mark.slow
@pytest.mark.parametrize("samples", [300, 600])
def test_intervals_of_a_comparison_hold_the_true_differences(samples):
    """On test sets drawn from a population where they are known: the whole of test."""
    splits = synthetic.ledgers(seed=0, samples=5000, exits=5, classes=10)
    held_out, val = splits["held_out"].take(range(600)), splits["val"].take(range(600))
    methods = ["baseline", "break-even"]

    def differences(rows):
        table = compare(held_out, val, splits["test"].take(rows), methods, BUDGETS, 1, 300)
        found = table["break-even"].differences["baseline"]
        return [found[column] for column in table.columns if column in found]

    truth = np.array([gap.value for gap in differences(range(5000))])
    generator, draws = np.random.default_rng(samples), 120
    found = [differences(generator.integers(5000, size=samples)) for _ in range(draws)]
    ends = np.array([[(gap.low, gap.high) for gap in row] for row in found])
    covered = ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean(axis=0)
    # 95 % less three standard errors of so few draws
    assert (covered > 0.95 - 3 * (0.95 * 0.05 / draws) ** 0.5).all()
    clear = np.array([[gap.is_clear for gap in row] for row in found])
    wrong = clear & (np.sign(ends.sum(axis=2)) != np.sign(truth))
    assert wrong.mean(axis=0).max() <= 0.025
