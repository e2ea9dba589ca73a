"""A budget that is held while inputs change."""

from types import SimpleNamespace

import numpy as np
import pytest

import offramp
from offramp.errors import ConfigError, GuaranteeWarning
from offramp.runtime.hold_budget import BudgetController

from ..deployment import stored_network


@pytest.fixture(scope="module")
def world():
    ledgers = offramp.synthetic.ledgers(seed=0)
    network = stored_network(ledgers["val"].num_exits, ledgers["val"].num_classes)
    policy = offramp.Policy(offramp.MaxProbability()).fit(ledgers["held_out"])
    policy = policy.tune(ledgers["val"])
    policy.network = network.fingerprint()
    return SimpleNamespace(network=network, policy=policy, logits=ledgers["test"].logits)


def send(runner, logits, samples, seed=0):
    """Samples at random, in batches; the mean cost of the last half."""
    batches = drawn(logits, samples, seed)
    costs = np.concatenate([runner(batch).costs for batch in batches])
    return float(costs[samples // 2 :].mean())


def drawn(logits, samples, seed=0):
    """Samples at random, 20 at a time."""
    rows = np.random.default_rng(seed).integers(len(logits), size=(samples // 20, 20))
    return [logits[index] for index in rows]


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
    batches = drawn(0.6 * world.logits, 4000)
    costs = np.concatenate([output.costs for output in held.stream(batches, window=4)])
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


def points(lowest, highest):
    budgets = np.linspace(lowest, highest, 1001)
    return SimpleNamespace(
        table=SimpleNamespace(budgets=budgets, accuracies=budgets),
        ends=(lowest, highest),
        within=lambda cost: int(np.flatnonzero(budgets <= cost + 1e-9)[-1]),
    )


@pytest.mark.parametrize(("cost", "message"), [(0.9, "costs more than"), (0.3, "costs less than")])
def test_a_budget_out_of_reach_is_said(cost, message):
    """As for an export that has the exits of a few points only."""
    controller, now = BudgetController(points(0.5, 0.7), 500, window=100), 500
    for _ in range(40):
        now = controller.add(now, 10, 10 * cost)
    held = controller.report(now)
    assert held.at_limit and held.recent_cost == pytest.approx(cost)
    assert message in str(held)


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("batch", [1, 32, 500])
def test_errors_fall_without_changing_their_sign(slope, batch):
    """As fast as stated: to exp(-4 slope) within a window."""
    controller = BudgetController(points(0.1, 1.0), 500, window=1000)
    budgets = np.linspace(0.1, 1, 1001)
    now, errors = 500, []
    for _ in range(1000 // batch):
        cost = 0.65 + slope * (float(budgets[now]) - controller.budget)  # 0.1 too dear at first
        errors.append(cost - controller.budget)
        now = controller.add(now, batch, batch * cost)
    assert min(errors) > -0.003 * slope  # the distance of two points
    assert (np.diff(errors) < 0.003 * slope).all()
    if batch < 500:
        assert errors[-1] < 0.1 * np.exp(-4 * slope) + 0.01
