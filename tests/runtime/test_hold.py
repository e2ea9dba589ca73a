"""A budget that is held while inputs change, and the alarm that still rings."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import offramp
from offramp.errors import ConfigError, GuaranteeWarning
from offramp.networks import EarlyExitNetwork
from offramp.runtime.drift import MovingDriftAlarm, _largest_mean, _tilts
from offramp.runtime.hold_budget import BudgetController

RNG = np.random.default_rng(0)


class Lookup(nn.Module):
    """The head of an exit whose logits are the input, `[n, M, K]`."""

    reads_logits = False

    def __init__(self, exit_index):
        super().__init__()
        self.exit_index = exit_index

    def forward(self, logits, _=None):
        return logits[:, self.exit_index]


@pytest.fixture(scope="module")
def world():
    ledgers = offramp.synthetic.ledgers(seed=0)
    network = EarlyExitNetwork(
        [nn.Identity() for _ in range(ledgers["val"].num_exits)],
        [Lookup(exit_index) for exit_index in range(ledgers["val"].num_exits)],
        ledgers["val"].num_classes,
    )
    policy = offramp.Policy(offramp.MaxProbability()).fit(ledgers["held_out"])
    policy = policy.tune(ledgers["val"])
    policy.network = network.fingerprint()
    return SimpleNamespace(network=network, policy=policy, logits=ledgers["test"].logits.float())


def send(runner, logits, samples, seed=0):
    """Samples at random, in batches; the mean cost of the last half."""
    rows = torch.randint(len(logits), (samples,), generator=torch.Generator().manual_seed(seed))
    costs = torch.cat([runner(logits[index]).costs for index in rows.split(20)])
    return float(costs[samples // 2 :].mean())


@pytest.mark.parametrize(("scale", "harder"), [(0.6, True), (1.3, False)])
def test_the_mean_cost_returns_to_the_budget_when_inputs_change(world, scale, harder):
    policy = world.policy.at(budget=0.5)
    static = offramp.Runner(world.network, policy)
    held = offramp.Runner(world.network, policy, hold_budget=1000)
    budget = held.stats.expected_cost
    assert send(held, world.logits, 3000) == pytest.approx(budget, rel=0.02)
    assert not held.stats.drift
    missed = send(static, scale * world.logits, 6000) / budget - 1
    assert (missed > 0.1) if harder else (missed < -0.1)
    assert send(held, scale * world.logits, 6000) == pytest.approx(budget, rel=0.02)
    stats = held.stats
    assert stats.drift and static.stats.drift  # the controller does not hide it
    assert stats.held.recent_cost == pytest.approx(budget, rel=0.03)
    assert (stats.held.point_cost < budget - 0.02) == harder
    assert (stats.held.expected_loss > 0) == harder
    assert stats.held.moves > 0 and not stats.held.at_limit
    assert "budget 0.4" in str(stats) or "budget 0.5" in str(stats)
    assert held.policy.selected != policy.selected
    assert send(held, world.logits, 4000) == pytest.approx(budget, rel=0.02)


def test_a_stream_is_held_too(world):
    held = offramp.Runner(world.network, world.policy.at(budget=0.5), hold_budget=1000)
    rows = torch.randint(len(world.logits), (4000,))
    batches = (0.6 * world.logits[index] for index in rows.split(20))
    costs = torch.cat([output.costs for output in held.stream(batches, window=4)])
    assert float(costs[2000:].mean()) == pytest.approx(held.stats.held.budget, rel=0.02)


def test_another_budget_is_held_from_then_on(world):
    held = offramp.Runner(world.network, world.policy.at(budget=0.4), hold_budget=1000)
    send(held, world.logits, 200)
    held.set_budget(0.7)
    assert held.stats.samples == 0
    assert send(held, 0.8 * world.logits, 3000) == pytest.approx(held.stats.held.budget, rel=0.02)


def test_bad_windows_and_certified_points(world):
    with pytest.raises(
        ConfigError, match="`hold_budget` must be a whole number of at least 1, got -5"
    ):
        offramp.Runner(world.network, world.policy.at(budget=0.4), hold_budget=-5)
    certified = world.policy.at(budget=0.4)
    certified.guarantee = "loses at most one point"
    with pytest.warns(GuaranteeWarning, match="a budget is held by leaving it"):
        offramp.Runner(world.network, certified, hold_budget=True)


def ladder(lowest, highest):
    budgets = torch.linspace(lowest, highest, 1001, dtype=torch.float64)
    return SimpleNamespace(
        points=SimpleNamespace(budgets=budgets, accuracies=budgets),
        ends=(lowest, highest),
        within=lambda cost: int((budgets <= cost + 1e-9).nonzero()[-1]),
    )


@pytest.mark.parametrize(("cost", "message"), [(0.9, "costs more than"), (0.3, "costs less than")])
def test_a_budget_out_of_reach_is_said(cost, message):
    """As for an export that has the exits of a few points only."""
    controller, now = BudgetController(ladder(0.5, 0.7), 500, window=100), 500
    for _ in range(40):
        now = controller.add(now, 10, 10 * cost)
    held = controller.report(now)
    assert held.at_limit and held.recent_cost == pytest.approx(cost)
    assert message in str(held)


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("batch", [1, 32, 500])
def test_errors_fall_without_changing_their_sign(slope, batch):
    """As fast as stated: to exp(-4 slope) within a window."""
    controller = BudgetController(ladder(0.1, 1.0), 500, window=1000)
    budgets = torch.linspace(0.1, 1, 1001, dtype=torch.float64)
    now, errors = 500, []
    for _ in range(1000 // batch):
        cost = 0.65 + slope * (float(budgets[now]) - controller.budget)  # 0.1 too dear at first
        errors.append(cost - controller.budget)
        now = controller.add(now, batch, batch * cost)
    assert min(errors) > -0.003 * slope  # the distance of two points
    assert (np.diff(errors) < 0.003 * slope).all()
    if batch < 500:
        assert errors[-1] < 0.1 * np.exp(-4 * slope) + 0.01


def point(index, shares, val_samples=2000):
    counts = RNG.multinomial(val_samples, shares) / val_samples
    return SimpleNamespace(
        index=index,
        is_open=(True,) * len(shares),
        expected_shares=tuple(counts.tolist()),
        val_samples=val_samples,
    )


TRUTH = [np.array(row) for row in ([0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4])]


def stream(alarm, points, truth, samples):
    """Whether the alarm rings while the point is moved by what has happened."""
    now = 0
    for _ in range(samples // 20):
        counts = RNG.multinomial(20, truth[now])
        alarm.add(points[now], counts)
        now = int(np.clip(now + (counts[0] > 8) - (counts[2] > 8), 0, 2))
        if alarm.alarm:
            return True
    return False


def test_false_alarms_are_rare_while_the_point_moves():
    alarms = 0
    for _ in range(60):
        points = [point(index, shares) for index, shares in enumerate(TRUTH)]
        alarms += stream(MovingDriftAlarm(3, 3, rate=0.2), points, TRUTH, 4000)
    assert alarms <= 60 * 0.2


def test_drift_is_found_while_the_point_moves():
    points = [point(index, shares) for index, shares in enumerate(TRUTH)]
    drifted = [shares[::-1] * 0.5 + shares * 0.5 - [0.1, 0, -0.1] for shares in TRUTH]
    assert stream(MovingDriftAlarm(3, 3, rate=0.01), points, drifted, 4000)


def test_the_bound_holds_for_every_compatible_distribution():
    values, shares, slack = np.exp(_tilts(4)), np.array([0.6, 0.3, 0.1, 0.0]), 0.02
    bound = _largest_mean(values, shares, slack)
    others = RNG.dirichlet(np.full(4, 2.0), size=20_000)
    others = np.concatenate([0.8 * shares + 0.2 * others, 0.95 * shares + 0.05 * others])
    seen = shares > 0
    divergence = (shares[seen] * np.log(shares[seen] / others[:, seen])).sum(1)
    means = others[divergence <= slack] @ values.T
    assert len(means) > 100 and (means <= bound + 1e-9).all()
    assert (bound < values @ shares * 1.3).all()  # and it is no more than a little above
