"""Scorers in closed form: break-even prices, and a corrector for a few hundred samples."""

import numpy as np
import pytest

from offramp import Ledger, MaxProbability, Policy, metrics
from offramp.answers import GeometricEnsemble
from offramp.arrays import sigmoid
from offramp.errors import ConfigError, NotFittedError
from offramp.scorers import BreakEven, History, LogisticCorrector
from offramp.scorers.break_even import PRICE_GRID, log_break_even
from offramp.scorers.ridge import fit_logistic
from offramp.zoo import cifar100

BOTH = [BreakEven(), LogisticCorrector()]
NAMES = {"ids": lambda scorer: type(scorer).__name__}


def history_of(ledger, until=None):
    history = History(ledger.logits, ledger.logits)
    return history if until is None else history.until(until)


def fit(scorer, ledger):
    return scorer.clone().fit(history_of(ledger), ledger.labels, ledger.costs)


@pytest.fixture(scope="module")
def few():
    """300 samples to fit on and 1,500 to measure on, of a real network."""
    shipped = cifar100()
    return shipped["held_out"].take(np.arange(300)), shipped["val"]


def eefp(scorer, held_out, val):
    policy = Policy(scorer).fit_seeds(held_out, [0])[0]
    found = policy.replay(val, "val")
    return metrics.eefp(found.scores[:, :-1], found.stop_targets[:, :-1]).mean()


def test_with_few_samples_the_logistic_corrector_beats_max_probability(few):
    assert eefp(LogisticCorrector(), *few) > eefp(MaxProbability(), *few) + 0.002


@pytest.mark.real
def test_with_few_samples_break_even_prices_beat_max_probability(real_splits):
    few = real_splits["held_out"].take(np.arange(300)), real_splits["val"]
    found = {}
    for name, scorer, thresholds in (
        ("baseline", MaxProbability(), "geometric"),
        ("break-even", BreakEven(), "shared"),
    ):
        policy = Policy(scorer, GeometricEnsemble(shrinkage=0.02)).fit_seeds(few[0], [0])[0]
        tuned = policy.tune(few[1].take(np.arange(300)), thresholds)
        curve = tuned.replay(few[1], "val", allow_split="val").curve
        found[name] = sum(curve.at(budget).accuracy for budget in (0.25, 0.5, 0.75)) / 3
    assert found["break-even"] > found["baseline"] + 0.005


@pytest.mark.parametrize("scorer", BOTH, **NAMES)
def test_saturated_samples_stay_apart(scorer, splits):
    fitted = fit(scorer, splits["held_out"])
    sure = np.zeros((3, 1, splits["held_out"].num_classes), np.float32)
    sure[:, 0, 0] = [300, 301, 302]
    scores = fitted.score_at(History(sure, sure))
    assert len(np.unique(scores)) == 3


@pytest.mark.parametrize("scorer", BOTH, **NAMES)
def test_the_cost_is_that_of_the_features_and_the_coefficients(scorer):
    plain = scorer.clone(history=False, classes=False)
    outputs = 12 if isinstance(scorer, BreakEven) else 1
    assert plain.macs(0, 10) == 8 * outputs + 60
    assert scorer.macs(3, 10) == (8 + 5 + 10) * outputs + 60 + 8
    assert scorer.macs(0, 2000) == (8 + 5) * outputs + 12000 + 2  # too many classes to look at


@pytest.mark.parametrize("scorer", BOTH, **NAMES)
def test_there_is_none_at_the_last_exit_and_none_before_the_fit(scorer, splits):
    held_out = splits["held_out"]
    with pytest.raises(NotFittedError):
        scorer.clone().score_at(history_of(held_out, 0))
    with pytest.raises(ConfigError, match=f"no {type(scorer).__name__} at exit 4: it was fitted"):
        fit(scorer, held_out).score_at(history_of(held_out, 4))


def test_the_break_even_price_lies_where_the_gain_is_zero():
    wanted = np.linspace(-4, 1, 7)
    gains = (np.log(PRICE_GRID) - wanted[:, None]) * np.linspace(0.1, 2, 7)[:, None]
    assert np.allclose(log_break_even(gains), wanted)


def test_break_even_prices_go_on_beyond_the_grid():
    low, high = np.log(PRICE_GRID)[[0, -1]]
    always = np.array([[0.1] * 12, [0.2] * 12])
    assert log_break_even(always).tolist() == pytest.approx([low - 0.5, low - 1.0])
    assert log_break_even(-always).tolist() == pytest.approx([high + 0.5, high + 1.0])


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])  # from hardly curved to saturated
def test_a_logistic_regression_ends_where_its_gradient_is_zero(scale):
    rng = np.random.default_rng(0)
    design = scale * rng.normal(size=(400, 6))
    target = design[:, 0] + rng.normal(size=400) > 0
    penalties = np.array([0.01, 1, 1, 1, 10, 1e-5])
    weights = fit_logistic(design, target.astype(np.float64), penalties)
    gradient = design.T @ (sigmoid(design @ weights) - target) + penalties * weights
    assert np.abs(gradient).max() < 1e-3 * len(design) * scale


@pytest.mark.parametrize("scorer", BOTH, **NAMES)
def test_a_class_that_is_never_right_is_given_up_sooner(scorer):
    """However sure two answers are: they differ in their classes alone."""
    rng, samples = np.random.default_rng(0), np.arange(2000)
    first = rng.integers(20, size=2000)
    logits = np.zeros((2000, 2, 20))
    logits[samples, 0, first] = 2.0  # exit 0 is unsure of everything
    # Exit 1 knows all classes but the first, of which it is as unsure as of another.
    later = np.where(first == 0, 0, rng.integers(20, size=2000))
    logits[samples, 1, later] = np.where(first == 0, 0.0, 6.0)
    labels = np.where(first == 0, rng.integers(1, 20, size=2000), later)
    held_out = Ledger(logits, labels, [1.0, 2.0], split="held_out")
    scores = fit(scorer, held_out).score_at(history_of(held_out, 0))
    assert scores[first == 0].mean() > scores[first != 0].max()
