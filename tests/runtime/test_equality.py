"""There is one decision: whatever decides on the same logits decides alike, to the last bit."""

import warnings
from copy import copy
from dataclasses import dataclass, replace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import Phase
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp import synthetic
from offramp.arrays import Array
from offramp.networks import EarlyExitNetwork
from offramp.replay import replay
from offramp.runtime import Cascade, Member, Runner
from offramp.thresholds.rule import OperatingPoints

from .. import registered
from ..deployment import (
    NETWORKS,
    Lookup,
    Simulated,
    joined_outputs,
    split_batch,
    stored_network,
)
from ..registered import quick

SCORERS = list(map(quick, registered.SCORERS))
TOLERANCE = 1e-5  # of a score; float32 noise in networks as small as these is below 1e-6
EXITS, CLASSES, POINTS = 4, 23, 3  # so many classes that the top five are not sorted out of all
ALONE = 6  # samples of a batch that are decided one by one, too


@pytest.fixture(scope="module")
def network():
    return stored_network(EXITS, CLASSES)


@pytest.fixture(scope="module")
def ledgers(network):
    made = synthetic.ledgers(seed=0, samples=150, exits=EXITS, classes=CLASSES)
    origin = network.fingerprint()
    made["test"].logits[::3] = made["test"].logits[::3].round()  # ties
    return {
        split: offramp.Ledger(
            ledger.logits, ledger.labels, ledger.cost_model, split=split, network=origin
        )
        for split, ledger in made.items()
    }


@pytest.fixture(scope="module")
def graphs(network, ledgers, tmp_path_factory):
    """The network in ONNX Runtime, with the logits of every exit, for any policy."""
    pytest.importorskip("onnxruntime")
    from offramp.onnx import export

    policy, logits = fitted(ledgers, offramp.scorers.Patience(), None), ledgers["val"].logits
    folder = tmp_path_factory.mktemp("export")
    return export(network, policy, folder, torch.from_numpy(logits[:3]), False, "all", full=False)


def fitted(ledgers, scorer, answer):
    """At thresholds that are scores of samples: the last bit of any of them decides."""
    (policy,) = offramp.Policy(scorer, answer).fit_seeds(ledgers["held_out"], [0])
    scores = replay(policy.answer, policy.scorer, ledgers["test"]).scores.astype(np.float64)
    rows = np.random.default_rng(0).integers(len(scores), size=(POINTS, EXITS))
    thresholds = scores[rows, np.arange(EXITS)]
    thresholds[0, 0] = np.inf  # a closed exit
    shares, budgets = np.full((POINTS, EXITS), 1 / EXITS), np.arange(1, POINTS + 1) / POINTS
    points = OperatingPoints(thresholds, budgets, np.zeros(POINTS), shares, 0.5)
    return policy.with_points(points).at_point(0)


def in_onnx(graphs, policy):
    """The same graphs with another policy beside them."""
    from offramp.onnx import OnnxRunner
    from offramp.onnx.manifest import Manifest

    policy.save(graphs / "policy-00000000")
    manifest = Manifest.read(graphs)
    replace(manifest, policy=policy.fingerprint(), policy_folder="policy-00000000").write(graphs)
    return OnnxRunner(graphs, threads=1)


@dataclass
class Wanted:
    """What a replay says of samples, at the exits that they take."""

    exits: Array
    scores: Array
    answers: Array

    @classmethod
    def of(cls, policy, ledger) -> "Wanted":
        found = policy.replay(ledger)
        rows, answers = np.arange(len(ledger)), policy.answer.answers(ledger.logits)
        return cls(found.exits, found.scores[rows, found.exits], answers[rows, found.exits])

    def check(self, output, way):
        same(output.exits, self.exits, way)
        same(output.scores, self.scores, way)
        same(output.logits, self.answers, way)


def same(found, wanted, way):
    __tracebackhide__ = True
    assert np.array_equal(found, wanted), f"{way}: {found} and not {wanted}"


def check_runner(runner, logits, wanted, way):
    """In a batch, one by one and in a stream."""
    wanted.check(runner(logits), f"{way}, a batch")
    alone = joined_outputs(runner(logits[row : row + 1]) for row in range(len(logits[:ALONE])))
    few = Wanted(*(part[:ALONE] for part in vars(wanted).values()))
    few.check(alone, f"{way}, one by one")
    parts = np.split(logits, range(5, len(logits), 5))
    wanted.check(joined_outputs(runner.stream(parts, window=3)), f"{way}, a stream")


def check_session(policy, logits, wanted):
    for row, sample in enumerate(logits[:ALONE]):
        session = policy.start()
        while not session.observe(sample[session.stage + 1]):
            pass
        assert session.stage == wanted.exits[row]
        assert session.answer == wanted.answers[row].argmax()
        assert session.score in (wanted.scores[row], None)


def check_batch_session(policy, logits, wanted):
    session = policy.start(len(logits))
    while len(session.left):
        stage = session.stages.max() + 1
        session.observe(logits[session.left, stage])
    same(session.stages, wanted.exits, "sessions in step")
    same(session.answers, wanted.answers.argmax(axis=1), "sessions in step")
    early = wanted.exits < EXITS - 1
    same(session.scores[early], wanted.scores[early], "sessions in step")


def check_cascade(cascade, policy, logits, wanted):
    policy = copy(policy)
    policy.network = cascade.fingerprint()
    found = cascade.run(logits, policy)
    same([each.stage for each in found], wanted.exits, "a cascade")
    same([each.answer for each in found], wanted.answers.argmax(axis=1), "a cascade")


@pytest.mark.parametrize("answer", registered.ANSWERS, ids=repr)
@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
def test_the_same_logits_are_decided_alike_to_the_last_bit(
    network, graphs, ledgers, scorer, answer
):
    policy, test = fitted(ledgers, scorer, answer), ledgers["test"]
    runners = {"Runner": Runner(network, policy), "OnnxRunner": in_onnx(graphs, policy)}
    cascade, exits = Cascade([Member(network)]), set()
    somebody = st.lists(st.integers(0, len(test) - 1), min_size=1, max_size=70)

    @hypothesis.settings(max_examples=3, derandomize=True, database=None, phases=[Phase.generate])
    @hypothesis.given(rows=somebody, point=st.integers(0, POINTS - 1))
    def check(rows, point):
        at, logits = policy.at_point(point), test.logits[rows]
        wanted = Wanted.of(at, test.take(rows))
        for way, runner in runners.items():
            runner.set_budget((point + 1) / POINTS)
            check_runner(runner, logits, wanted, way)
        check_session(at, logits, wanted)
        check_batch_session(at, logits, wanted)
        check_cascade(cascade, at, logits, wanted)
        exits.update(wanted.exits.tolist())

    check()
    assert len(exits) > 1  # or nothing was tested


MARK = 1e6  # a logit that heads below turn into something worse


class Broken(Lookup):
    """The head of an exit some of whose logits overflow."""

    def __init__(self, exit_index, far):
        super().__init__(exit_index)
        self.far = far

    def forward(self, logits, _=None):
        found = super().forward(logits)
        return torch.where(found == MARK, self.far, found)


@pytest.mark.parametrize(
    ("scorer", "answer"), registered.each_once(SCORERS, registered.ANSWERS), ids=repr
)
@pytest.mark.parametrize("far", [np.inf, np.nan, 3e38], ids=str)
def test_logits_that_overflow_fail_alone_and_without_a_word(ledgers, scorer, answer, far):
    policy = copy(fitted(ledgers, scorer, answer))
    heads = [Broken(exit_index, far) for exit_index in range(EXITS)]
    network = EarlyExitNetwork([nn.Identity() for _ in heads], heads, CLASSES)
    policy.network = network.fingerprint()
    logits = ledgers["test"].logits[:20].copy()
    wanted = Runner(network, policy)(logits)
    logits[7, :, 3] = MARK
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Runner(network, policy)(logits)
        alone = Runner(network, policy)(logits[7:8])
    others = np.arange(20) != 7
    assert np.array_equal(found.exits[others], wanted.exits[others])
    assert np.array_equal(found.scores[others], wanted.scores[others])
    assert np.array_equal(found.failed, ~others) or far == 3e38  # whose answer may be finite
    assert found.failed[7] == alone.failed[0] and not wanted.failed.any()


def check_all_ways(world, policy, inputs):
    """Runs in every way decide as a replay, but for samples that rounding may send elsewhere.

    Returns how many samples these are, and the exits taken.
    """
    expected = Simulated.of(world, policy, inputs, TOLERANCE)
    runner, outputs = Runner(world.network, policy), []
    outputs.append(joined_outputs([runner(inputs)]))
    outputs.append(joined_outputs(runner(one) for one in split_batch(inputs, 1)))
    outputs.append(joined_outputs(runner.stream(split_batch(inputs, 5), window=3)))
    for output in outputs:
        alike = output.exits == expected.exits
        assert (alike | expected.near).all()
        np.testing.assert_allclose(
            output.logits[alike], expected.logits[alike], rtol=1e-4, atol=1e-4
        )
    return int(expected.near.sum()), set(expected.exits.tolist())


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_of_every_kind_decide_as_on_a_ledger(make, kind):
    exits = 3 if kind == "text" else 4
    world = make(kind, offramp.Corrector(hidden=8, epochs=20), exits=exits)
    total, near, taken = 0, 0, set()

    @hypothesis.settings(max_examples=5, derandomize=True, database=None)
    @hypothesis.given(
        samples=st.integers(1, 33), seed=st.integers(0, 999), tenth=st.integers(4, 9)
    )
    def check(samples, seed, tenth):
        nonlocal total, near
        policy = world.policy.at(budget=tenth / 10)
        found = check_all_ways(world, policy, world.inputs(samples, seed))
        total, near = total + samples, near + found[0]
        taken.update(found[1])

    check()
    assert len(taken) == exits and near < 0.1 * total  # or little was tested


def test_what_is_simulated_for_a_budget_is_what_runs(world):
    inputs = world.inputs(400)
    ledger = world.ledger(inputs)
    for budget in (0.4, 0.6, 0.8):
        runner = Runner(world.network, world.policy.at(budget=budget))
        simulated = offramp.evaluate(world.policy.at(budget=budget), ledger)
        runner(inputs)
        assert runner.stats.mean_cost == pytest.approx(simulated.mean_cost, abs=0.005)
        assert runner.stats.exit_shares == pytest.approx(simulated.exit_shares, abs=0.01)


def test_bfloat16_changes_few_decisions(world):
    inputs = world.inputs(400)
    exact = Runner(world.network, world.policy)(inputs)
    half = Runner(world.network, world.policy, precision="bfloat16")(inputs)
    assert half.logits.dtype == torch.float32
    assert not torch.equal(exact.logits, half.logits)
    assert (exact.exits != half.exits).double().mean() < 0.25


def test_bfloat16_is_for_the_network_and_not_for_the_decision(make):
    world = make("conv", offramp.Corrector(hidden=8, epochs=1), offramp.answers.MatrixScaling())
    inputs = world.inputs(60)
    data = TensorDataset(inputs, torch.zeros(60, dtype=torch.long))
    options = {"costs": world.costs, "precision": "bfloat16", "progress": False}
    ledger = offramp.record(world.network, data, "test", **options)
    scores = replay(world.policy.answer, world.policy.scorer, ledger).scores
    output = Runner(world.network, world.policy, precision="bfloat16")(inputs.numpy())
    first = output.exits == 0  # the same batch so far, and so the same logits
    assert 0 < first.sum() < 60
    assert np.array_equal(output.scores[first], scores[first, 0])
