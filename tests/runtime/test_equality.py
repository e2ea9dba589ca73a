"""Runner, stream, batch size 1 and the simulation on a ledger decide alike."""

from dataclasses import dataclass, field

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import offramp
from offramp.replay import replay
from offramp.runtime import Runner

from .. import registered
from ..deployment import Simulated, joined_outputs, split_batch
from ..registered import each_once, quick

SCORERS = list(map(quick, registered.SCORERS))
TOLERANCE = 1e-5  # of a score; float32 noise in networks as small as these is below 1e-6
KINDS = ("flat", "cascade", "nested", "conv", "chain")


@dataclass
class Count:
    samples: int = 0
    near: int = 0
    changed: int = 0
    exits: set = field(default_factory=set)

    def check(self, expected, output):
        differs = output.exits != expected.exits
        self.samples += len(output)
        self.near += int(expected.near.sum())
        self.changed += int(differs.sum())
        self.exits |= set(output.exits.tolist())
        assert not (differs & ~expected.near).any()
        same = ~differs
        torch.testing.assert_close(
            output.logits[same], expected.logits[same], rtol=1e-4, atol=1e-4
        )


def check_all_ways(world, policy, samples, count, window=3):
    inputs = world.inputs(samples)
    expected = Simulated.of(world, policy, inputs, TOLERANCE)
    runner = Runner(world.network, policy)
    count.check(expected, runner(inputs))
    count.check(expected, joined_outputs(runner(one) for one in split_batch(inputs, 1)))
    count.check(expected, joined_outputs(runner.stream(split_batch(inputs, 5), window)))


def test_random_networks_policies_and_batches_decide_alike_in_every_way(make):
    count = Count()

    @hypothesis.settings(max_examples=25, derandomize=True)
    @hypothesis.given(
        kind=st.sampled_from(KINDS),
        scorer=st.sampled_from(SCORERS),
        answer=st.sampled_from(registered.ANSWERS),
        exits=st.integers(2, 5),
        classes=st.integers(2, 6),
        seed=st.integers(0, 1000),
        point=st.integers(0, 20),
        samples=st.integers(1, 33),
    )
    def check(kind, scorer, answer, exits, classes, seed, point, samples):
        world = make(kind, scorer, answer, exits, classes, seed)
        check_all_ways(world, world.policy.at_point(point * 10), samples, count)

    check()
    print(  # noqa: T201 - how much the equality leaves open is to be seen
        f"\n{count.samples} decisions in float32: {count.near} within {TOLERANCE} of a threshold, "
        f"{count.changed} of them changed"
    )
    assert len(count.exits) == 5, "the examples must use all exits"
    # Scorers that were hardly trained give all samples nearly the same score.
    assert count.near < 0.3 * count.samples


@pytest.mark.parametrize(
    ("scorer", "answer"),
    each_once(SCORERS, registered.ANSWERS),
    ids=lambda part: type(part).__name__,
)
def test_every_registered_part_decides_alike_in_every_way(make, scorer, answer):
    count = Count()
    world = make("nested", scorer, answer, exits=3, seed=1)
    for budget in (0.6, 0.9):
        check_all_ways(world, world.policy.at(budget=budget), 20, count)
    assert len(count.exits) > 1  # or nothing was tested


@pytest.mark.parametrize(
    "scorer", [offramp.MaxProbability(), offramp.Corrector(hidden=8, epochs=1)]
)
def test_texts_of_different_length_decide_alike_in_every_way(make, scorer):
    count = Count()
    world = make("text", scorer, exits=3)
    check_all_ways(world, world.policy, 24, count)
    assert len(count.exits) == 3


def test_what_is_simulated_for_a_budget_is_what_runs(world):
    inputs = world.inputs(400)
    ledger = world.ledger(inputs)
    for budget in (0.4, 0.6, 0.8):
        runner = Runner(world.network, world.policy.at(budget=budget))
        simulated = offramp.evaluate(world.policy.at(budget=budget), ledger)
        runner(inputs)
        assert runner.stats.mean_cost == pytest.approx(simulated.mean_cost, abs=0.005)
        assert runner.stats.exit_shares == pytest.approx(simulated.exit_shares, abs=0.01)


def test_bfloat16_changes_few_decisions_and_the_rate_is_printed(world):
    inputs = world.inputs(400)
    exact = Runner(world.network, world.policy)(inputs)
    half = Runner(world.network, world.policy, precision="bfloat16")(inputs)
    changed = (exact.exits != half.exits).double().mean().item()
    print(f"\nbfloat16: {changed:.2%} of the exits changed")  # noqa: T201
    assert half.logits.dtype == torch.float32
    assert not torch.equal(exact.logits, half.logits)
    assert changed < 0.25


def test_bfloat16_is_for_the_network_and_not_for_the_decision(make):
    world = make("conv", offramp.Corrector(hidden=8, epochs=1), offramp.answers.MatrixScaling())
    inputs = world.inputs(60)
    data = TensorDataset(inputs, torch.zeros(60, dtype=torch.long))
    options = {"costs": world.costs, "precision": "bfloat16", "progress": False}
    ledger = offramp.record(world.network, data, "test", **options)
    scores = replay(world.policy.answer, world.policy.scorer, ledger).scores
    output = Runner(world.network, world.policy, precision="bfloat16")(inputs)
    first = output.exits == 0  # the same batch so far, and so the same logits
    assert 0 < first.sum() < 60
    torch.testing.assert_close(output.scores[first], scores[first, 0], rtol=1e-6, atol=1e-6)


def test_identical_logits_decide_bitwise_alike(world):
    """On the same batch, runner and ledger see the same numbers where nobody leaves early."""
    policy = world.policy.at_point(len(world.policy.points) - 1)
    inputs = world.inputs(20)
    ledger = world.ledger(inputs)
    output = Runner(world.network, policy)(inputs)
    last = output.exits == world.network.num_exits - 1
    if last.all():
        assert torch.equal(output.logits, ledger.logits[:, -1])
    assert torch.equal(output.exits, policy.decide(ledger).long())
