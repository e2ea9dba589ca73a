"""The drift alarm: its false-alarm rate over a whole stream, and what it finds."""

import numpy as np
import pytest

import offramp
from offramp.answers import CurrentExit
from offramp.decide import Decider
from offramp.runtime import Runner
from offramp.runtime.drift import DriftAlarm, _largest_mean, _tilts, entropy_radius
from offramp.runtime.prepared_points import PreparedPoint
from offramp.thresholds.rule import exits_taken

TRUTH = np.array([0.35, 0.25, 0.15, 0.15, 0.1])


def point(shares, val_samples, index=0, is_open=None):
    """An operating point at which val took these shares."""
    exits = len(shares)
    is_open = [True] * exits if is_open is None else is_open
    thresholds = np.where(is_open, 0.5, np.inf)
    return PreparedPoint(
        index=index,
        decider=Decider(CurrentExit(), offramp.MaxProbability(), thresholds),
        costs=(1.0,) * exits,
        expected_cost=1.0,
        expected_shares=tuple(shares),
        val_samples=val_samples,
    )


def drawn(rng, truth, val_samples, index=0):
    """The same with the shares of a val that was drawn from the truth."""
    return point(rng.multinomial(val_samples, truth) / val_samples, val_samples, index)


def rings(rng, points, stream, rate, batches=150):
    """Whether an alarm is ever raised; the point may be moved by what has happened."""
    alarm, now = DriftAlarm(len(TRUTH), rate), 0
    for _ in range(batches):
        exits = rng.choice(len(TRUTH), size=20, p=stream[now])
        alarm.add(points[now], exits.tolist())
        if alarm.alarm:
            return True
        if len(points) > 1:
            now = int(np.clip(now + ((exits == 0).sum() > 8) - ((exits == 4).sum() > 3), 0, 2))
    return False


# Exits at three operating points, the cheapest last.
TRUTHS = [TRUTH, np.array([0.3, 0.2, 0.2, 0.15, 0.15]), np.array([0.45, 0.25, 0.1, 0.1, 0.1])]


@pytest.mark.parametrize("val_size", [60, 3000])
@pytest.mark.parametrize("moves", [False, True], ids=["one point", "moving"])
def test_false_alarms_over_a_whole_stream_are_rarer_than_the_rate(val_size, moves):
    rng, found = np.random.default_rng(0), 0
    for _ in range(60):
        truths = TRUTHS if moves else TRUTHS[:1]
        points = [drawn(rng, truth, val_size, index) for index, truth in enumerate(truths)]
        found += rings(rng, points, truths, rate=0.2)
    # Of 60 streams, a rate of 0.2 gives more than 20 with a probability of 0.5 %.
    assert found <= 20


@pytest.mark.parametrize("moves", [False, True], ids=["one point", "moving"])
def test_drift_is_found_soon(moves):
    rng, found = np.random.default_rng(2), 0
    change = np.array([-0.15, -0.05, 0, 0.05, 0.15])
    for _ in range(10):
        truths = TRUTHS if moves else TRUTHS[:1]
        points = [drawn(rng, truth, 3000, index) for index, truth in enumerate(truths)]
        found += rings(rng, points, truths + change, rate=0.01, batches=50)
    assert found == 10


def test_the_radius_covers_the_error_of_estimated_shares():
    rng = np.random.default_rng(1)
    for size in (20, 500):
        shares = rng.multinomial(size, TRUTH, size=4000) / size
        with np.errstate(divide="ignore", invalid="ignore"):
            far = size * np.nansum(shares * np.log(shares / TRUTH), axis=1)
        assert (far > entropy_radius(len(TRUTH), rate=0.1)).mean() <= 0.1


def test_the_bound_holds_for_every_compatible_distribution():
    rng = np.random.default_rng(0)
    values, shares, slack = np.exp(_tilts(4)), np.array([0.6, 0.3, 0.1, 0.0]), 0.02
    bound = _largest_mean(values, shares, slack)
    others = rng.dirichlet(np.full(4, 2.0), size=20_000)
    others = np.concatenate([0.8 * shares + 0.2 * others, 0.95 * shares + 0.05 * others])
    seen = shares > 0
    divergence = (shares[seen] * np.log(shares[seen] / others[:, seen])).sum(1)
    means = others[divergence <= slack] @ values.T
    assert len(means) > 100 and (means <= bound + 1e-9).all()
    assert (bound < values @ shares * 1.3).all()  # and it is no more than a little above


def test_shares_tuned_on_the_same_val_raise_no_false_alarm_either():
    """Thresholds are chosen on val, so that its shares are not those of a fresh sample."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(40):
        scores = rng.random((400, 4))
        thresholds = np.quantile(scores, 0.6, axis=0)
        shares = np.bincount(exits_taken(scores, thresholds), minlength=4) / 400
        alarm, tuned = DriftAlarm(4, rate=0.2), point(shares.tolist(), 400)
        for _ in range(40):
            fresh = rng.random((100, 4))
            alarm.add(tuned, exits_taken(fresh, thresholds).tolist())
        found += alarm.alarm
    assert found <= 14  # a rate of 0.2 gives more with a probability of 0.8 %


def test_an_exit_that_was_empty_on_val_is_no_alarm_by_itself():
    alarm, seen = DriftAlarm(3, rate=0.05), point([0.5, 0.5, 0.0], 100)
    alarm.add(seen, [0] * 49 + [1] * 50 + [2])
    assert not alarm.alarm
    alarm.add(seen, [2] * 60)
    assert alarm.alarm


def test_a_closed_exit_costs_no_evidence():
    shares, exits = [0.5, 0.0, 0.5], [0] * 400 + [2] * 200
    evidence = []
    for is_open in ([True, True, True], [True, False, True]):
        alarm = DriftAlarm(3, 0.01)
        alarm.add(point(shares, 500, is_open=is_open), exits)
        evidence.append(alarm.log_evidence)
    assert evidence[1] > evidence[0]


def test_one_open_exit_never_drifts():
    alarm = DriftAlarm(2)
    alarm.add(point([0.0, 1.0], 50, is_open=[False, True]), [1] * 1000)
    assert not alarm.alarm and alarm.log_evidence == pytest.approx(0, abs=1e-6)


def test_an_alarm_stays_on():
    alarm, even = DriftAlarm(2, rate=0.01), point([0.5, 0.5], 1000)
    alarm.add(even, [0] * 200)
    assert alarm.alarm
    alarm.add(even, [1] * 200)
    assert alarm.alarm and alarm.log_evidence < np.log(2 / 0.01)


def test_a_single_val_sample_says_next_to_nothing():
    """It stands for policies that do not know on how many samples they were tuned."""
    alarm = DriftAlarm(2, rate=0.2)
    alarm.add(point([0.5, 0.5], 1), [0] * 50 + [1] * 4950)
    assert not alarm.alarm


def test_a_runner_raises_the_alarm_on_other_data_and_not_on_the_same_kind(make):
    world = make("conv", exits=3)
    calm, upset = (Runner(world.network, world.policy) for _ in range(2))
    for seed in range(20):
        calm(world.inputs(50, seed=1000 + seed))
        upset(3 * world.inputs(50, seed=1000 + seed))
    assert not calm.stats.drift
    assert upset.stats.drift and "DRIFT" in str(upset.stats)
    upset.set_budget(0.9)
    assert upset.stats.drift, "an alarm outlives a change of the budget"
    assert calm.stats.false_alarm_rate == 0.01


def test_batches_cut_by_a_deadline_are_left_out_of_the_alarm(make):
    world = make("conv")
    late = Runner(world.network, world.policy, clock=iter(range(10**6)).__next__)
    for seed in range(30):
        late(world.inputs(50, seed=seed), deadline=0.5)
    assert late.stats.exit_shares[0] == 1.0
    assert not late.stats.drift and late.stats.log_evidence == 0.0


def test_stats_before_the_first_sample(world):
    stats = Runner(world.network, world.policy).stats
    assert np.isnan(stats.mean_cost) and stats.samples == 0 and not stats.drift
    assert stats.expected_shares.sum().item() == pytest.approx(1)
    assert stats.expected_cost == pytest.approx(world.policy.points.budgets[world.policy.selected])
    assert isinstance(world.policy, offramp.Policy)


def test_the_radius_of_nine_exits():
    assert entropy_radius(cells=9, rate=0.005) == pytest.approx(21.0, abs=0.05)
