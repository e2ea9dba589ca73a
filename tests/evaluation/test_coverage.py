"""Intervals hold the true difference as often as they say; `benchmarks/coverage.py` has it all."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from offramp import synthetic
from offramp.evaluation.bootstrap import Resamples, difference, unseen_variance


def gap_of(discordant, samples=600):
    """The interval where one policy alone is right on so many samples, the other on none."""
    gaps = np.arange(samples) < discordant
    resampled = Resamples(samples).means(gaps[:, None])[:, 0]
    return difference(gaps.mean(), resampled, unseen=unseen_variance(samples))


def test_it_takes_six_samples_to_call_a_policy_better():
    assert not gap_of(5).is_clear  # McNemar's exact test gives p = 0.06
    assert gap_of(6).is_clear  # p = 0.03


def test_without_a_sample_that_differs_the_difference_is_not_known_to_be_zero():
    gap = gap_of(0)
    assert not gap.is_clear
    assert gap.high == pytest.approx(2.77 / 600, rel=1e-3)  # a chance of exp(-2.77) = 6 %


@pytest.fixture(scope="module")
def simulation():
    """The benchmark that simulates test sets, as a module."""
    path = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("samples", [300, 1000])
def test_intervals_hold_the_true_differences(samples, simulation):
    """Of accuracies at six budgets, EEFP and ECE, on test sets drawn from a known population."""
    splits = synthetic.ledgers(seed=0, samples=5000, exits=5, classes=10)
    replays = simulation.replays(splits, "baseline,temperature,eefp-logistic")
    draws = 60
    covered, wrong, _ = simulation.simulate(replays, samples, draws, 200)["library"].swapaxes(0, 1)
    # 95 % less three standard errors of so few draws
    assert np.nanmin(covered) > 95 - 300 * (0.95 * 0.05 / draws) ** 0.5
    assert np.nanmean(covered) > 94
    assert np.nanmean(wrong) < 2.5
