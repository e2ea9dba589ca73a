"""Guarantees: bounds that hold, a scan that stops in time, and samples that are used once."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from offramp import Corrector, Costs, Guarantee, Ledger, MaxProbability, Policy, certify, evaluate
from offramp.answers import ProductOfExperts
from offramp.arrays import softmax
from offramp.bounds import (
    SPENT,
    betting,
    certified,
    conformal,
    exact,
    hoeffding_bentkus,
    net_p_value,
    p_value,
    upper_bounds,
)
from offramp.errors import (
    ConfigError,
    GuaranteeError,
    GuaranteeWarning,
    LedgerError,
    NotFittedError,
    SplitError,
)
from offramp.guarantees import losses_of
from offramp.registry import LOSSES
from offramp.report.inspect import inspect
from offramp.synthetic import ledgers
from offramp.thresholds import exits_taken
from offramp.thresholds.geometric import geometric_sweep

DRAWS, SAMPLES, DELTA = 1000, 200, 0.1
# What 1,000 draws may show of a true rate of 0.1, with probability 0.999.
MOST = DELTA + 3.1 * (DELTA * (1 - DELTA) / DRAWS) ** 0.5


@pytest.fixture(scope="module")
def world():
    """A finite world: losses and costs of 9 policies on 5,000 samples; truth is their mean.

    The path goes from the full network to the first exit; calibration sets are drawn from the
    samples with replacement, so that the true risk of every policy is known exactly.
    """
    ledger = ledgers(seed=7, samples=5000, hopeless=0.1)["val"]
    scores = softmax(ledger.logits).max(axis=2)
    costs = ledger.costs / ledger.reference_cost
    points = geometric_sweep(scores, scores > 0, costs, 25)[::-1][8::2]  # safest first
    exits = exits_taken(scores, points).T
    right = ledger.heads_correct
    losses = 1.0 * (right[:, -1:] & ~np.take_along_axis(right, exits, axis=1))
    spent = ((costs - costs[0]) / (costs[-1] - costs[0]))[exits]
    return losses, spent


def draws_of(values):
    """`[SAMPLES, DRAWS * P]`: every calibration set, side by side."""
    index = np.random.default_rng(0).integers(len(values), size=(SAMPLES, DRAWS))
    return values[index].reshape(SAMPLES, -1)


def chosen_risks(bounds, truth, epsilon, off_by_one=0):
    """True risk of what is returned from each draw; zero where nothing is."""
    risks = []
    for row in bounds.reshape(DRAWS, -1):
        count = certified(row, epsilon) + off_by_one
        risks.append(truth[min(count, len(truth)) - 1] if count else 0.0)
    return np.array(risks)


@pytest.mark.parametrize("bound", [exact, betting, hoeffding_bentkus])
def test_certified_losses_exceed_epsilon_in_at_most_delta_of_the_draws(world, bound):
    losses, _ = world
    truth = losses.mean(axis=0)
    bounds = bound(draws_of(losses), DELTA)
    for epsilon in (0.05, 0.1):
        risks = chosen_risks(bounds, truth, epsilon)
        assert (risks > epsilon).mean() <= MOST
        assert risks.mean() > 0.3 * epsilon  # and the promise is not kept by doing nothing


@pytest.mark.parametrize("bound", [betting, hoeffding_bentkus])
def test_certified_costs_exceed_the_budget_in_at_most_delta_of_the_draws(world, bound):
    _, spent = world
    cheapest_first = spent[:, ::-1]
    truth = cheapest_first.mean(axis=0)
    bounds = bound(draws_of(cheapest_first), DELTA)
    risks = chosen_risks(bounds, truth, 0.4)
    assert (risks > 0.4).mean() <= MOST
    assert risks.mean() > 0.2


@pytest.fixture(scope="module")
def net_world():
    """The same policies' net losses in a world where early exits get much right alone."""
    ledger = ledgers(seed=7, samples=5000, hopeless=0.1, relapse=0.25)["val"]
    scores = softmax(ledger.logits).max(axis=2)
    points = geometric_sweep(scores, scores > 0, ledger.costs / ledger.reference_cost, 25)[::-1]
    exits = exits_taken(scores, points[8::2]).T
    right = 1.0 * ledger.heads_correct
    return right[:, -1:] - np.take_along_axis(right, exits, axis=1)


@pytest.mark.parametrize("bound", [exact, betting])
def test_certified_net_losses_exceed_epsilon_in_at_most_delta_of_the_draws(net_world, bound):
    truth = net_world.mean(axis=0)
    assert truth.min() < -0.01  # some exits in the middle are better than the full network
    bounds = bound(draws_of(net_world), DELTA, signed=True)
    for epsilon in (0.05, 0.1):
        assert (chosen_risks(bounds, truth, epsilon) > epsilon).mean() <= MOST


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_the_exact_test_of_net_losses_keeps_its_level_whatever_share_differs(share):
    """The least mean that is too large, with samples that gain and lose in any proportion."""
    rng, epsilon = np.random.default_rng(1), 0.05
    chances = [(share - epsilon) / 2, 1 - share, (share + epsilon) / 2]
    gained, _, lost = rng.multinomial(400, chances, size=20_000).T
    rejected = net_p_value(lost, gained, 400, epsilon, DELTA) <= DELTA
    assert rejected.mean() <= DELTA
    if share < 0.45:  # beyond one half nothing is certified by it
        assert rejected.mean() > DELTA / 2


def test_the_exact_test_is_the_sum_of_its_samples():
    """The chance of a small net number, by adding one sample after the other."""
    samples, epsilon, delta = 200, 0.15, 0.2
    differ = scipy.special.bdtri(20, samples, SPENT * delta)  # what is known of 20 that differ
    one = [(differ - epsilon) / 2, 1 - differ, (differ + epsilon) / 2]
    chances = np.ones(1)
    for _ in range(samples):
        chances = np.convolve(chances, one)
    expected = chances[: samples + 10 + 1].sum() + SPENT * delta
    assert net_p_value(15, 5, samples, epsilon, delta)[0] == pytest.approx(expected)


def test_what_only_an_early_exit_gets_right_offsets_what_only_the_full_network_does():
    losses = np.repeat([[1.0], [-1.0], [0.0]], [60, 60, 1880], axis=0)
    for bound, most in ((exact, 0.012), (betting, 0.016)):
        assert bound(losses, 0.1, signed=True)[0] < most
        assert bound(np.maximum(losses, 0), 0.1)[0] > 0.03
    assert hoeffding_bentkus(losses, 0.1, signed=True)[0] > 0.03


def test_samples_that_do_not_count_change_no_bound():
    losses = np.repeat([[1.0], [0.0]], [10, 190], axis=0)
    padded = np.append(losses, np.full((300, 1), np.nan), axis=0)
    for bound in (exact, hoeffding_bentkus):
        assert bound(padded, 0.1) == pytest.approx(bound(losses, 0.1))
    assert 0.05 < betting(padded, 0.1)[0] < 0.1
    for bound in (exact, betting, hoeffding_bentkus):
        assert bound(np.full((5, 1), np.nan), 0.1)[0] == pytest.approx(1)


def test_half_of_delta_each_keeps_both_promises_at_once(world):
    losses, spent = world
    epsilon, budget = 0.12, 0.6
    wanted = Guarantee(epsilon=epsilon, budget=budget, delta=DELTA)
    loss_bounds, cost_bounds = (
        np.maximum.accumulate(betting(draws_of(x), wanted.level).reshape(DRAWS, -1), axis=1)
        for x in (losses, spent[:, ::-1])
    )
    true_loss, true_cost = losses.mean(axis=0), spent.mean(axis=0)
    broken, found = 0, 0
    for loss_row, cost_row in zip(loss_bounds, cost_bounds, strict=True):
        cheapest = certified(loss_row, epsilon) - 1  # counted from the safe end
        costliest = len(cost_row) - certified(cost_row, budget)
        if cheapest >= costliest:
            found += 1
            broken += bool(true_loss[cheapest] > epsilon or true_cost[cheapest] > budget)
    assert found > DRAWS / 2
    assert broken / DRAWS <= MOST


def test_conformal_risk_control_holds_on_average_over_draws(world):
    losses, _ = world
    monotone = np.maximum.accumulate(losses, axis=1)
    truth, epsilon = losses.mean(axis=0), 0.1
    bounds = conformal(draws_of(monotone))
    risks = chosen_risks(bounds, truth, epsilon)
    assert risks.mean() <= epsilon
    # Of the losses that are bounded, nearly all of epsilon is used: a step of the path is missing.
    assert chosen_risks(bounds, monotone.mean(axis=0), epsilon).mean() > epsilon / 2
    # With probability 1 - delta it does not hold: that is what delta=None gives up.
    assert (chosen_risks(bounds, monotone.mean(axis=0), epsilon) > epsilon).mean() > 0


def test_returning_the_first_uncertified_policy_would_break_the_promise():
    """The known off-by-one: on a path with a cliff, the step after the last certified one."""
    truth = np.array([0.0, 0.02, 0.02, 0.5, 0.5])
    losses = np.random.default_rng(0).random((SAMPLES, DRAWS, 5)) < truth
    bounds = betting(losses.reshape(SAMPLES, -1), DELTA)
    assert (chosen_risks(bounds, truth, 0.1) > 0.1).mean() <= MOST
    assert (chosen_risks(bounds, truth, 0.1, off_by_one=1) > 0.1).mean() > 0.9


def test_the_scan_returns_the_last_certified_one_and_stops_at_the_first_failure():
    bounds = np.array([0.01, 0.04, 0.06, 0.03])
    assert certified(bounds, 0.05) == 2
    assert certified(bounds, 0.06) == 4
    assert certified(bounds, 0.005) == 0
    assert certified(bounds, 0.01) == 1


def test_a_later_policy_is_never_certified_past_a_failure():
    losses = np.zeros((300, 4))
    losses[:90, 1] = 1.0
    for bound in ("exact", "betting", "hoeffding-bentkus"):
        assert certified(upper_bounds(losses, 0.1, bound), 0.05) == 1
    assert certified(upper_bounds(losses, None), 0.05) == 1


@given(st.integers(0, 60), st.floats(0.01, 0.5))
def test_hoeffding_bentkus_inverts_its_p_value(total, delta):
    losses = (np.arange(60) < total)[:, None]
    bound = hoeffding_bentkus(losses, delta)[0]
    totals = np.array([float(total)])
    if bound < 1:
        assert p_value(totals, 60, bound)[0] <= delta
    if bound > 1e-6:
        assert p_value(totals, 60, bound - 1e-6)[0] > delta


@given(st.integers(1, 80), st.floats(0.02, 0.5))
def test_bounds_lie_above_the_mean_and_grow_with_confidence(total, delta):
    losses = np.zeros((80, 1))
    losses[np.random.default_rng(total).permutation(80)[:total]] = 0.7
    for bound in (betting, hoeffding_bentkus):
        mean = losses.mean()
        assert mean <= bound(losses, delta)[0] <= bound(losses, delta / 2)[0] + 1e-9


def test_betting_is_not_ruined_by_a_sorted_file():
    """In order, a gambler would lose everything to a file that begins with its losses."""
    losses = (np.arange(2000) < 100)[:, None]
    for turned in (losses, losses[::-1]):
        assert 0.05 <= float(betting(turned, 0.1)[0]) < 0.07


def test_betting_uses_a_small_variance():
    losses = 0.3 + 0.01 * np.random.default_rng(0).random((500, 1))
    assert betting(losses, 0.1)[0] < hoeffding_bentkus(losses, 0.1)[0] - 0.01


def test_losses_outside_the_unit_interval_are_refused():
    with pytest.raises(LedgerError, match=r"lie in \[0, 1\], got 0 to 2"):
        betting([[0.0], [2.0]], 0.1)
    with pytest.raises(LedgerError, match=r"lie in \[-1, 1\], got -2 to 0"):
        betting([[0.0], [-2.0]], 0.1, signed=True)
    with pytest.raises(LedgerError, match="whole numbers; use `betting`"):
        exact([[0.5]], 0.1)
    with pytest.raises(LedgerError, match=r"shape \[N, P\], got \[3\]"):
        hoeffding_bentkus(np.zeros(3), 0.1)
    with pytest.raises(ConfigError, match=r"`delta` must lie in \(0, 1\), got 0"):
        betting(np.zeros((3, 1)), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "what is to be guaranteed"),
        ({"epsilon": 0.0}, r"`epsilon` must lie in \(0, 1\], got 0"),
        ({"budget": 1.5}, r"`budget` must lie in \(0, 1\], got 1.5"),
        ({"epsilon": 0.1, "delta": 1.0}, r"`delta` must lie in \(0, 1\), got 1"),
        ({"epsilon": 0.1, "loss": "hinge"}, "must be one of accuracy, .*, got 'hinge'"),
        ({"epsilon": 0.1, "bound": "normal"}, "must be one of exact, betting, hoeffding-bentkus"),
        (
            {"epsilon": 0.1, "loss": "recall"},
            "goes with loss='precision' or 'recall'; got loss='r",
        ),
        ({"epsilon": 0.1, "class_": 1}, "got loss='accuracy' and class_=1"),
        ({"epsilon": 0.1, "loss": "recall", "class_": 1, "delta": None}, "which is a ratio"),
        ({"epsilon": 0.1, "budget": 0.5, "delta": None}, "`delta` must be given"),
    ],
)
def test_impossible_guarantees_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        Guarantee(**changes)


@pytest.fixture(scope="module")
def big():
    return ledgers(seed=0, samples=2000, exits=5, classes=10)


@pytest.fixture(scope="module")
def policy(big):
    fitted = Policy(MaxProbability()).fit(big["held_out"])
    return fitted.tune(big["held_out"], "geometric", allow_split="held_out", points=51)


@pytest.mark.parametrize("loss", ["accuracy", "regret", "disagreement"])
@pytest.mark.parametrize("bound", ["exact", "betting"])
def test_a_certified_point_saves_compute_and_keeps_its_word_on_test(policy, big, loss, bound):
    wanted = Guarantee(epsilon=0.08, loss=loss, bound=bound)
    found = certify(policy, big["val"], wanted)
    outcome = evaluate(found.policy, big["test"])
    assert found.loss <= found.loss_bound <= 0.08
    assert outcome.mean_cost < 0.95
    assert outcome.full_accuracy - outcome.accuracy <= 0.08
    assert found.cost_bound is None


def test_a_path_of_smooth_thresholds_is_certified_in_the_same_way(big):
    policy = Policy(MaxProbability()).fit(big["held_out"])
    policy.tune(big["held_out"], "smooth", allow_split="held_out", points=51)
    found = certify(policy, big["val"], Guarantee(epsilon=0.08))
    outcome = evaluate(found.policy, big["test"])
    assert found.loss <= found.loss_bound <= 0.08
    assert outcome.mean_cost < 0.95
    assert outcome.full_accuracy - outcome.accuracy <= 0.08


def test_the_point_after_the_certified_one_is_not_certified(policy, big):
    found = certify(policy, big["val"], Guarantee(epsilon=0.05))
    cheaper = policy.at_point(found.policy.selected - 1)
    right = big["val"].heads_correct
    early = right[np.arange(len(right)), cheaper.decide(big["val"])]
    net = 1.0 * right[:, -1:] - early[:, None]
    assert exact(net, 0.1, signed=True)[0] > 0.05
    assert found.loss_bound <= 0.05


def test_a_certified_budget_is_kept_and_used(policy, big):
    found = certify(policy, big["val"], Guarantee(budget=0.6))
    assert found.cost <= found.cost_bound <= 0.6
    assert found.cost > 0.5
    assert evaluate(found.policy, big["test"]).mean_cost <= 0.6


def test_both_together_take_the_cheapest_point_within_both(policy, big):
    alone = certify(policy, big["val"], Guarantee(epsilon=0.1, delta=0.05))
    both = certify(policy, big["val"], Guarantee(epsilon=0.1, budget=0.9, delta=0.1))
    assert both.policy.selected == alone.policy.selected
    assert both.loss_bound <= 0.1
    assert both.cost_bound <= 0.9


def test_on_average_more_can_be_promised_than_with_confidence(policy, big):
    sure = certify(
        policy,
        big["val"],
        Guarantee(epsilon=0.05, delta=0.01, loss="regret", bound="hoeffding-bentkus"),
    )
    mean = certify(policy, big["val"], Guarantee(epsilon=0.05, delta=None, loss="regret"))
    assert mean.cost <= sure.cost
    assert "on average over draws of" in str(mean)
    assert "with confidence 0.99 on 2,000 samples" in str(sure)


def test_answers_that_differ_from_the_network_are_held_against_the_network(big):
    policy = Policy(MaxProbability(), ProductOfExperts()).fit(big["held_out"])
    policy.tune(big["held_out"], allow_split="held_out", points=31)
    found = certify(policy, big["val"], Guarantee(epsilon=0.3, loss="disagreement"))
    logits, exits = big["val"].logits, found.policy.decide(big["val"])
    early = logits.cumsum(axis=1)[np.arange(len(exits)), exits].argmax(axis=1)
    assert found.loss == pytest.approx((early != logits[:, -1].argmax(axis=1)).mean())


def test_one_ledger_for_the_path_and_the_certificate_is_refused(big):
    policy = Policy(MaxProbability()).fit(big["held_out"]).tune(big["val"])
    with pytest.raises(
        SplitError,
        match=r"2000 of the 2000 .* used to tune .*; use other samples: the operating points",
    ):
        certify(policy, big["val"], Guarantee(epsilon=0.05))


def test_only_val_certifies_and_its_samples_are_used_up(policy, big):
    with pytest.raises(SplitError, match="needs the split 'val', and the ledger is 'test'"):
        certify(policy, big["test"], Guarantee(epsilon=0.05))
    with pytest.raises(SplitError, match="needs the split 'val', and the ledger is 'held_out'"):
        certify(policy, big["held_out"], Guarantee(epsilon=0.05))
    found = certify(policy, big["val"], Guarantee(epsilon=0.05))
    assert found.policy.uses[-1].step == "certify"
    with pytest.raises(SplitError, match="already used to certify"):
        evaluate(found.policy, big["val"].as_split("test"))


def test_impossible_promises_say_what_could_be_promised(policy, big):
    with pytest.raises(GuaranteeError, match="smallest epsilon that could be certified") as error:
        certify(policy, big["val"], Guarantee(epsilon=0.0001))
    smallest = float(str(error.value).split("certified is ")[1].split(":")[0])
    assert certify(policy, big["val"], Guarantee(epsilon=smallest)).loss_bound <= smallest
    with pytest.raises(GuaranteeError):
        certify(policy, big["val"], Guarantee(epsilon=smallest - 0.0002))
    with pytest.raises(GuaranteeError, match=r"smallest budget that could be certified is 0\.2"):
        certify(policy, big["val"], Guarantee(budget=0.1))


def test_a_budget_too_small_for_the_loss_says_which_epsilon_would_do(policy, big):
    with pytest.raises(GuaranteeError, match=r"within a budget of 0\.5; the smallest") as error:
        certify(policy, big["val"], Guarantee(epsilon=0.01, budget=0.5))
    smallest = float(str(error.value).split("certified is ")[1].split(":")[0])
    found = certify(policy, big["val"], Guarantee(epsilon=smallest, budget=0.5))
    assert found.cost_bound <= 0.5


def test_fitted_scorers_and_saved_policies_can_be_certified(big, tmp_path):
    policy = Policy(Corrector(epochs=1)).fit(big["held_out"])
    policy.tune(big["held_out"], allow_split="held_out", points=21)
    found = certify(policy, big["val"], Guarantee(epsilon=0.1))
    found.policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    np.testing.assert_array_equal(again.decide(big["test"]), found.policy.decide(big["test"]))
    with pytest.raises(SplitError, match="used to certify"):
        evaluate(again, big["val"].as_split("test"))


def test_mapie_says_the_same_where_both_do_the_same(world):
    methods = pytest.importorskip("mapie.risk_control.methods")
    losses, _ = world
    sample = losses[:400]
    means, epsilon = sample.mean(axis=0), 0.1
    theirs = methods.compute_hoeffding_bentkus_p_value(means, len(sample), epsilon).ravel()
    assert p_value(sample.sum(axis=0), len(sample), epsilon) == pytest.approx(theirs)
    monotone = np.maximum.accumulate(sample, axis=1)
    _, bounds = methods.get_r_hat_plus(
        monotone,
        np.linspace(0, 1, 9),
        method="crc",
        bound=None,
        delta=None,
        sigma_init=None,
    )
    assert conformal(monotone) == pytest.approx(bounds)


def test_a_policy_without_points_is_refused_with_a_way_to_get_them(splits):
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    with pytest.raises(NotFittedError, match=r'tune\(held_out, "geometric", allow_split'):
        certify(policy, splits["val"], Guarantee(epsilon=0.1))


def test_a_guarantee_stays_with_its_point_and_in_the_file(policy, big, tmp_path):
    found = certify(policy, big["val"], Guarantee(epsilon=0.05, delta=0.1))
    assert policy.guarantee is None, "that of the path is untouched"
    again = Policy.load(found.policy.save(tmp_path / "policy"))
    assert again.guarantee == str(found)
    assert repr(again).endswith("certified)")
    facts = inspect(tmp_path / "policy")[0]
    assert ["guarantee", str(found)] in [[cell.text for cell in row] for row in facts.rows]
    assert again.at_point(again.selected).guarantee == str(found)
    with pytest.warns(GuaranteeWarning, match=rf"point {again.selected} is certified \(mean los"):
        other = again.at_point(0)
    assert other.guarantee is None and again.guarantee is not None


def test_a_promise_is_never_stated_as_certain(policy, big):
    found = certify(policy, big["val"], Guarantee(epsilon=0.3, delta=1e-9))
    assert "with confidence 0.999999999 on" in str(found)
    with pytest.raises(ConfigError, match=r"such as offramp.Guarantee\(epsilon=0.05\), got 0.05"):
        certify(policy, big["val"], 0.05)


def test_points_from_val_are_refused_with_another_source(big):
    tuned = Policy(MaxProbability()).fit(big["held_out"]).tune(big["val"], "geometric")
    with pytest.raises(SplitError, match=r"fixed without val, .*policy.tune\(held_out"):
        certify(tuned, big["val"], Guarantee(epsilon=0.1))


def test_bounds_are_the_same_as_ever():
    number = np.arange(60.0)
    steady, rare = 0.3 * np.abs(np.sin(number * 1.7)), np.sin(number * 2.9) > 0.8
    losses = np.stack([steady, rare, np.zeros(60), number / 60], axis=1)
    found = {
        (betting, 0.1): [0.23209915, 0.36855411, 0.03978514, 0.56163229],
        (betting, 0.02): [0.26071146, 0.41306687, 0.06778738, 0.59055789],
        (hoeffding_bentkus, 0.1): [0.31157305, 0.34956208, 0.03764937, 0.62149110],
        (hoeffding_bentkus, 0.02): [0.35313136, 0.39118389, 0.06312029, 0.66075757],
    }
    for (bound, delta), expected in found.items():
        assert bound(losses, delta).tolist() == pytest.approx(expected, abs=1e-7)
    assert conformal(losses)[2:].tolist() == pytest.approx([1 / 61, 30.5 / 61])
    totals = np.array([0.0, 3.0, 6.5, 12.0])
    assert p_value(totals, 60, 0.1) == pytest.approx([0.00179701, 0.36700123, 1, 1])
    # Both ends of a bound, and a sum that is a hair above a whole number.
    assert p_value(np.array([10.0]), 10, 0.9)[0] == pytest.approx(1)
    assert p_value(totals[:2] + 1e-12, 60, 0.1) == pytest.approx([0.00179701, 0.36700123])


def test_the_bound_is_found_to_its_last_bisection():
    """Of n samples without a loss, Hoeffding's bound excludes means above 1 - delta^(1/n)."""
    exact = 1 - 0.1 ** (1 / 100)
    found = hoeffding_bentkus(np.zeros((100, 1)), 0.1)[0]
    assert exact <= found == pytest.approx(exact, abs=1e-9)


def lost_on(policy, ledger, kind):
    """What a policy loses on each sample, in a loop."""
    exits, losses = policy.decide(ledger).tolist(), []
    for logits, label, exit_index in zip(
        ledger.logits, ledger.labels.tolist(), exits, strict=True
    ):
        early, full = int(logits[exit_index].argmax()), int(logits[-1].argmax())
        regret = full == label and early != label
        sure = softmax(logits[exit_index]).max() >= 0.5
        counted = {"regret": True, "regret-sure": sure, "regret-hopeless": not sure}
        others = {
            "accuracy": float(full == label) - float(early == label),
            "disagreement": early != full,
            "precision": early != label if early == 3 else np.nan,
            "recall": early != label if label == 3 else np.nan,
        }
        losses.append(others[kind] if kind in others else regret and counted[kind])
    return np.array(losses, dtype=float)


@pytest.mark.parametrize("kind", LOSSES)
def test_each_loss_counts_what_it_says(splits, kind):
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    policy.tune(splits["held_out"], "geometric", allow_split="held_out", points=9)
    class_ = 3 if kind in ("precision", "recall") else None
    found = certify(policy, splits["val"], Guarantee(0.99, loss=kind, class_=class_))
    losses = lost_on(found.policy, splits["val"], kind)
    assert found.loss == pytest.approx(np.nanmean(losses))
    assert np.nansum(losses) > 5
    assert found.samples == (~np.isnan(losses)).sum()
    along = [lost_on(policy.at_point(number), splits["val"], kind) for number in range(9)]
    bounds = exact(np.stack(along, axis=1), 0.1, signed=kind == "accuracy")
    # So large an epsilon is certified for the first exit alone, unless most samples differ there.
    first = 2 if kind == "accuracy" else 0
    assert found.policy.selected == first
    assert found.loss_bound == pytest.approx(bounds[first:].max())
    assert (bounds[:first] == 1).all()


def grouped_tokens(ledger, seed):
    """Pairs of samples, whose exits cost what a die says; the reference differs by split."""
    shape = len(ledger), ledger.num_exits
    steps = np.random.default_rng(seed).integers(1, 7 + seed, shape)
    return Ledger(
        ledger.logits,
        ledger.labels,
        Costs.from_cumulative(steps.cumsum(axis=1), "tokens"),
        split=ledger.split,
        network=ledger.network,
        groups=[f"{ledger.split} {number // 2}" for number in range(len(ledger))],
    )


def test_a_budget_of_samples_with_costs_of_their_own_is_certified_by_groups(splits):
    held_out, val = (grouped_tokens(splits[n], i) for i, n in enumerate(("held_out", "val")))
    policy = Policy(MaxProbability()).fit(held_out)
    policy.tune(held_out, "geometric", allow_split="held_out", points=21)
    with pytest.raises(ConfigError, match="--largest-cost, in tokens"):
        certify(policy, val, Guarantee(budget=0.8))
    with pytest.raises(ConfigError, match="got 3, and one of this sample costs"):
        certify(policy, val, Guarantee(budget=0.8, largest_cost=3))
    most = val.cost_model.cumulative.reshape(-1, 2, 5).mean(axis=1).max()
    with pytest.raises(ConfigError, match="and one of this sample costs"):
        certify(policy, val, Guarantee(budget=0.8, largest_cost=most - 0.1))
    found = certify(policy, val, Guarantee(budget=0.8, largest_cost=40))
    # Shares are of what held_out costs, which val has no part in.
    table, reference = val.cost_model.cumulative, held_out.reference_cost
    most, spent = 40 / reference, []
    for point in range(21):
        paid = table[np.arange(len(table)), policy.at_point(point).decide(val)]
        spent.append(paid.reshape(-1, 2).mean(axis=1) / reference)
    paid = np.stack(spent, axis=1) / most
    bounds = most * np.maximum.accumulate(betting(paid, 0.1))
    assert found.policy.selected == int((bounds <= 0.8).sum()) - 1
    assert found.cost == pytest.approx(spent[found.policy.selected].mean())
    assert found.cost_bound == pytest.approx(bounds[found.policy.selected])
    assert (found.samples, found.loss_bound) == (300, None)
    both = certify(policy, val, Guarantee(epsilon=0.5, budget=0.8, largest_cost=40))
    expected = most * betting(paid[:, : both.policy.selected + 1], 0.05).max()
    assert both.cost_bound == pytest.approx(expected)


def test_what_a_certificate_says(policy, big):
    found = certify(policy, big["val"], Guarantee(epsilon=0.2, budget=0.9, loss="regret-sure"))
    assert str(found) == (
        "mean regret where it stopped as sure at most 0.2 and mean cost at most 0.9, with "
        f"confidence 0.9 on 2,000 samples; there, the regret where it stopped as sure was "
        f"{found.loss:.4f} and the cost {found.cost:.4f}"
    )
    with pytest.raises(GuaranteeError) as error:
        certify(policy, big["val"], Guarantee(epsilon=1e-6))
    assert "a mean loss of accuracy of at most 1e-06; the smallest epsilon" in str(error.value)


def later_is_worse(split, seed):
    """Four exits, of which the second is the best; the last one is the full network."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=1500)
    right = rng.random((1500, 4)) < [0.6, 0.85, 0.8, 0.75]
    logits = rng.normal(size=(1500, 4, 10))
    told = np.where(right, labels[:, None], (labels[:, None] + 1) % 10)
    np.put_along_axis(logits, told[..., None], 6 + rng.random((1500, 4, 1)), axis=2)
    costs = Costs((1.0,) * 4, (0.05,) * 4, unit="relative")
    return Ledger(logits, labels, costs, split=split, network="worse")


def test_a_policy_that_is_better_than_the_full_network_is_certified_where_it_is_cheap():
    held_out, val = later_is_worse("held_out", 0), later_is_worse("val", 1)
    policy = Policy(MaxProbability()).fit(held_out)
    policy.tune(held_out, "geometric", allow_split="held_out")
    net, regret = (
        certify(policy, val, Guarantee(0.05, loss=kind)) for kind in ("accuracy", "regret")
    )
    assert net.loss < regret.loss
    assert net.cost < regret.cost - 0.2


def test_a_policy_that_costs_more_than_the_full_network_is_refused(big):
    """Heads cost, and whoever goes to the end pays for all of them."""
    costs = Costs(stages=(1.0,) * 5, heads=(1.0,) * 5, unit="relative")
    held_out, val = (big[name].with_costs(costs) for name in ("held_out", "val"))
    policy = Policy(MaxProbability()).fit(held_out)
    policy.tune(held_out, "geometric", allow_split="held_out", points=51)
    with pytest.raises(
        GuaranteeError, match=r"takes 1\d\d\.\d% of the full network's cost, so"
    ) as error:
        certify(policy, val, Guarantee(epsilon=0.01))
    smallest = float(str(error.value).split("for less is ")[1].split(":")[0])
    assert certify(policy, val, Guarantee(epsilon=smallest)).cost <= 1
    policy = policy.with_points(replace(policy.points, thresholds=policy.points.thresholds[-1:]))
    with pytest.raises(
        GuaranteeError, match=r"no operating point costs less .* cheapest takes 16"
    ):
        certify(policy, val, Guarantee(epsilon=0.5))


def test_precision_and_recall_are_of_one_class(policy, big):
    for loss in ("precision", "recall"):
        found = certify(policy, big["val"], Guarantee(epsilon=0.45, loss=loss, class_=2))
        assert 100 < found.samples < 350
        exits = found.policy.decide(big["test"])
        named = big["test"].logits[np.arange(len(exits)), exits].argmax(axis=1) == 2
        is_class = big["test"].labels == 2
        kept = named & is_class
        assert kept.sum() / (named if loss == "precision" else is_class).sum() > 0.55
        assert "of class 2" in str(found)
    with pytest.raises(ConfigError, match=r"`class_` must lie in \[0, 9\], got 10"):
        certify(policy, big["val"], Guarantee(epsilon=0.1, loss="recall", class_=10))


def test_groups_count_with_their_samples_of_the_class(splits):
    """Of a group, the mean over its samples that count; groups without one do not."""
    held_out, val = (grouped_tokens(splits[n], i) for i, n in enumerate(("held_out", "val")))
    policy = Policy(MaxProbability()).fit(held_out)
    policy.tune(held_out, "geometric", allow_split="held_out", points=5)
    wanted = Guarantee(epsilon=0.99, loss="recall", class_=3)
    losses = losses_of(policy.replay(val, "val"), wanted)[:, 0].reshape(-1, 2)
    counted = ~np.isnan(losses).all(axis=1)
    found = certify(policy, val, wanted)
    assert (found.samples, found.policy.selected) == (counted.sum(), 0)
    assert found.loss == pytest.approx(np.nanmean(losses[counted], axis=1).mean())
