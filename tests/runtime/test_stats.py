"""The drift alarm: its false-alarm rate over a whole stream, and what it finds."""

import numpy as np
import pytest
import torch

import offramp
from offramp.runtime import Runner
from offramp.runtime.drift import DriftAlarm, entropy_radius
from offramp.thresholds.rule import exits_taken

TRUTH = np.array([0.35, 0.25, 0.15, 0.15, 0.1])


def alarmed(rng, truth, val_size, stream, rate, batch=20):
    """Whether an alarm is ever raised, looked at after every batch."""
    val = rng.multinomial(val_size, truth) / val_size
    alarm = DriftAlarm(val, val_size, rate)
    for counts in rng.multinomial(batch, stream, size=150):
        alarm.add(counts)
        if alarm.check():
            return True
    return False


@pytest.mark.parametrize("val_size", [60, 3000])
def test_false_alarms_over_a_whole_stream_are_rarer_than_the_rate(val_size):
    rng = np.random.default_rng(0)
    found = sum(alarmed(rng, TRUTH, val_size, TRUTH, rate=0.2) for _ in range(60))
    # Of 60 streams, a rate of 0.2 gives more than 20 with a probability of 0.5 %.
    assert found <= 20


def test_the_radius_covers_the_error_of_estimated_shares():
    rng = np.random.default_rng(1)
    for size in (20, 500):
        shares = rng.multinomial(size, TRUTH, size=4000) / size
        with np.errstate(divide="ignore", invalid="ignore"):
            far = size * np.nansum(shares * np.log(shares / TRUTH), axis=1)
        assert (far > entropy_radius(len(TRUTH), rate=0.1)).mean() <= 0.1


def test_drift_is_found_soon():
    rng = np.random.default_rng(2)
    drifted = np.array([0.2, 0.2, 0.15, 0.2, 0.25])
    found = sum(alarmed(rng, TRUTH, 3000, drifted, rate=0.01) for _ in range(10))
    assert found == 10


def test_shares_tuned_on_the_same_val_raise_no_false_alarm_either():
    """Thresholds are chosen on val, so that its shares are not those of a fresh sample."""
    rng = torch.Generator().manual_seed(3)
    found = 0
    for _ in range(40):
        scores = torch.rand(400, 4, generator=rng)
        thresholds = scores.quantile(0.6, dim=0).double()
        shares = torch.bincount(exits_taken(scores, thresholds).long(), minlength=4) / 400
        alarm = DriftAlarm(shares.tolist(), 400, rate=0.2)
        for _ in range(40):
            fresh = torch.rand(100, 4, generator=rng)
            exits = exits_taken(fresh, thresholds).long()
            alarm.add(torch.bincount(exits, minlength=4).tolist())
        found += alarm.check()
    assert found <= 14  # a rate of 0.2 gives more with a probability of 0.8 %


def test_an_exit_that_was_empty_on_val_is_no_alarm_by_itself():
    alarm = DriftAlarm([0.5, 0.5, 0.0], samples=100, rate=0.05)
    alarm.add([49, 50, 1])
    assert not alarm.check()
    alarm.add([0, 0, 60])
    assert alarm.check()


def test_a_closed_exit_costs_no_evidence():
    shares, counts = [0.5, 0.0, 0.5], [400, 0, 200]
    seen = DriftAlarm(shares, 500, 0.01)
    closed = DriftAlarm(shares, 500, 0.01, is_open=[True, False, True])
    for alarm in (seen, closed):
        alarm.add(counts)
    assert closed.log_evidence > seen.log_evidence


def test_one_open_exit_never_drifts():
    alarm = DriftAlarm([1.0, 0.0], 50, is_open=[True, False])
    alarm.add([1000, 0])
    assert not alarm.check() and alarm.log_evidence == 0.0


def test_an_alarm_stays_on():
    alarm = DriftAlarm([0.5, 0.5], 1000, rate=0.01)
    alarm.add([200, 0])
    assert alarm.check()
    alarm.add([0, 200])
    assert alarm.check()


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
