"""An export at work decides as the network and the policy that it was made from."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import offramp
from offramp.answers import GeometricEnsemble
from offramp.arrays import softmax
from offramp.errors import (
    BudgetError,
    ConfigError,
    FileFormatError,
    MemoryLimitError,
    NetworkError,
)
from offramp.machine import physical_cores
from offramp.onnx import OnnxRunner, export
from offramp.replay import replay
from offramp.runtime import Runner, near_threshold
from offramp.runtime.runner import TOLERANCE
from offramp.thresholds.rule import OperatingPoints

from ..deployment import Clock, Simulated, joined_outputs, split_batch, without_torch

onnxruntime = pytest.importorskip("onnxruntime")

KINDS = ("cascade", "chain", "conv", "nested", "text")
BUDGETS = {2: (0.6, 0.75, 0.9), 3: (0.45, 0.6, 0.8)}


def near(world, policy, inputs):
    """Samples that rounding may send to another exit, and the exits taken on a ledger."""
    simulated = Simulated.of(world, policy, inputs, TOLERANCE)
    return simulated.near, simulated.exits


def close(one, other, error):
    np.testing.assert_allclose(one, other, rtol=error, atol=error, equal_nan=True)


def agreement(one, other, unsure):
    """Assert that two outputs agree but for unsure samples."""
    one, other = joined_outputs([one]), joined_outputs([other])
    same = one.exits == other.exits
    assert (same | unsure).all()
    close(one.logits[same], other.logits[same], 1e-4)
    close(one.scores[same], other.scores[same], 1e-3)
    close(one.confidence[same], other.confidence[same], 1e-3)
    assert np.array_equal(one.costs[same], other.costs[same])
    clear = same & (abs(other.confidence - 0.5) > 1e-3)
    assert np.array_equal(one.likely_wrong[clear], other.likely_wrong[clear])


def check_all_ways(world, runner, policy, inputs):
    """In a batch, alone and in a stream; returns how many were unsure, and the exits taken."""
    unsure, simulated = near(world, policy, inputs)
    expected = Runner(world.network, policy)(inputs)
    assert ((expected.exits.numpy() == simulated) | unsure).all()
    agreement(runner(inputs), expected, unsure)
    agreement(joined_outputs(map(runner, split_batch(inputs, 1))), expected, unsure)
    streamed = runner.stream(split_batch(inputs, 5), window=3)
    agreement(joined_outputs(streamed), expected, unsure)
    return int(unsure.sum()), set(expected.exits.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_the_export_the_runner_and_the_ledger_decide_alike(exported, kind):
    made = exported(kind)
    inputs, unsure, leaving = made.world.inputs(64), 0, set()
    for budget in BUDGETS[made.world.network.num_exits]:
        made.runner.set_budget(budget)
        policy = made.world.policy.at(budget=budget)
        more, exits = check_all_ways(made.world, made.runner, policy, inputs)
        unsure, leaving = unsure + more, leaving | exits
    assert len(leaving) > 1 and unsure < 20  # or nothing was tested


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_torch_within_rounding_whatever_decides(exported, kind):
    """Everybody goes on to the last exit: the graphs alone are compared."""
    made = exported(kind)
    inputs, runner = made.world.inputs(16), made.fresh()
    exits, seen = made.world.network.num_exits, []
    outputs = runner._outputs
    runner._outputs = lambda *parts: seen.append(outputs(*parts)) or seen[-1]
    point, everywhere = runner.operation.point, np.full(exits, np.finfo(np.float32).max)
    runner.operation.point = replace(point, decider=point.decider.at(everywhere))
    assert runner(inputs).exits.tolist() == [exits - 1] * 16
    close(np.stack(seen, axis=1), made.world.ledger(inputs).logits, 1e-4)


def own_points(policy, *thresholds):
    """The policy with operating points of our own, the cheapest first, at the first of them."""
    count, exits = len(thresholds), len(thresholds[0])
    budgets = np.arange(1, count + 1) / count
    shares = np.full((count, exits), 1 / exits)
    points = OperatingPoints(np.array(thresholds), budgets, np.zeros(count), shares, 0.5)
    return policy.with_points(points).at_point(0)


INF = float("inf")


class Asked:
    """Keeps the names of the outputs that the first graph of a runner is asked for."""

    def __init__(self, runner):
        self.graph = runner._segments[0].graph
        self.session, self.names = self.graph._session, []
        self.graph._session = self

    def run(self, names, *others):
        self.names.append(names)
        return self.session.run(names, *others)


CLOSED = {  # and whether the closed heads have to run
    "nothing looks back": ("flat", offramp.MaxProbability(), None, False),
    "heads and scores": ("cascade", offramp.scorers.Patience(), None, True),
    "answers": ("flat", offramp.Corrector(hidden=4, epochs=1), GeometricEnsemble(), True),
}


@pytest.mark.parametrize("case", CLOSED)
def test_closed_exits_disappear_and_nothing_else_changes(make_once, tmp_path, case):
    kind, scorer, answer, runs = CLOSED[case]
    world = make_once(kind, scorer, answer, exits=4)
    scores = replay(world.policy.answer, world.policy.scorer, world.val).scores[:, 1]
    some = float(scores.mean())
    rows = [[INF, x, INF, 0.0] for x in (some, INF)]
    policy = own_points(world.policy, *rows, [0.0] * 4)
    folder = export(world.network, policy, tmp_path, world.inputs(3), full=False)
    runner, inputs = OnnxRunner(folder, threads=1, clock=Clock()), world.inputs(40)
    assert [segment.exit_index for segment in runner.manifest.segments] == [1, 3]
    *_, exits = check_all_ways(world, runner, policy, inputs)
    assert exits == {1, 3}, "or nothing was tested"
    for deadline, forced in ((0.5, 40), (2.5, 0)):  # before the first exit; on the way to the last
        before = runner.stats.forced
        runner(inputs, deadline)
        assert runner.stats.forced == before + forced
    runner.set_budget(2 / 3)  # at which the first exit of the export is closed, too
    asked = Asked(runner)
    agreement(
        runner(inputs), Runner(world.network, policy.at_point(1))(inputs), np.zeros(40, bool)
    )
    assert ("logits" in asked.names[0]) == runs
    with pytest.raises(BudgetError, match=r"not in this export \(stages.0, stages.2\): export"):
        runner.set_budget(1)
    with pytest.raises(ConfigError, match="export again with full=True"):
        runner.full(inputs)
    policy.at_point(2).save(folder / runner.manifest.policy_folder)
    with pytest.raises(FileFormatError, match=r"no graphs of the exits stages.0, stages.2"):
        OnnxRunner(folder)


@hypothesis.settings(max_examples=15, derandomize=True)
@hypothesis.given(
    kind=st.sampled_from(KINDS),
    samples=st.integers(1, 40),
    seed=st.integers(0, 2**20),
    budget=st.floats(0.55, 1),
)
def test_any_batch_at_any_budget_is_decided_alike(exported, kind, samples, seed, budget):
    made = exported(kind)
    runner = Runner(made.world.network, made.world.policy.at(budget=budget))
    made.runner.set_budget(budget)
    inputs = made.world.inputs(samples, seed)
    unsure, _ = near(made.world, runner.policy, inputs)
    agreement(made.runner(inputs), runner(inputs), unsure)


def test_exports_run_bit_by_bit_alike_where_torch_cannot_be_imported(exported, tmp_path):
    """Streams, confidences and statistics, too."""
    wanted = {}
    for kind in KINDS:
        made = exported(kind)
        inputs, runner = as_arrays(made.world.inputs(40)), made.fresh()
        np.savez(tmp_path / f"{kind}.npz", **inputs)
        budgets = BUDGETS[made.world.network.num_exits]
        wanted[kind] = (str(made.folder), budgets, answers_to(runner, budgets, inputs))
    code = f"""
import json
import numpy as np
from offramp import OnnxRunner

{inspect.getsource(answers_to)}
found = {{}}
for kind, folder, budgets in {[(kind, *parts[:2]) for kind, parts in wanted.items()]}:
    batch = dict(np.load(kind + ".npz"))
    found[kind] = answers_to(OnnxRunner(folder, threads=1), budgets, batch)
print(json.dumps(found))
"""
    command = [sys.executable, "-c", code]
    alone = subprocess.run(
        command, cwd=tmp_path, env=without_torch(tmp_path), capture_output=True, text=True
    )
    assert alone.returncode == 0, alone.stderr
    found = json.loads(alone.stdout)
    for kind, (*_, expected) in wanted.items():
        assert found[kind] == expected, kind
        assert len({number for each in expected for number in each["exits"]}) > 1


def as_arrays(inputs):
    parts = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    return {name: part.numpy() for name, part in parts.items()}


def answers_to(runner, budgets, batch):
    """Everything that comes out, as text that is compared bit by bit."""
    rows, found = (slice(20), slice(20, 40)), []
    halves = [{name: part[half] for name, part in batch.items()} for half in rows]
    for budget in budgets:
        runner.set_budget(budget)
        once = runner(batch)
        columns = [output.columns() for output in runner.stream(halves)]
        found.append(
            {
                "exits": once.exits.tolist(),
                "logits": once.logits.tobytes().hex(),
                "scores": once.scores.tobytes().hex(),
                "confidence": once.confidence.tobytes().hex(),
                "records": repr(once.records()),
                "stream": [column.tobytes().hex() for each in columns for column in each.values()],
                "stats": str(runner.stats),
                "full": runner.full(batch).tobytes().hex(),
            }
        )
    return found


def test_another_program_can_run_the_files_as_they_are_documented(exported):
    """With JSON, safetensors and ONNX Runtime alone."""
    made = exported("nested")
    inputs = made.world.inputs(40)
    folder, about = made.folder, json.loads((made.folder / "export.json").read_text())
    policy = folder / about["policy_folder"]
    selected = json.loads((policy / "policy.json").read_text())["selected"]
    (tensors,) = policy.glob("*.safetensors")
    thresholds = load_file(tensors)["points.thresholds"][selected]
    thresholds[-1] = -np.inf  # the last exit always stops
    state, left, exits = [inputs.numpy()], np.arange(40), np.full(40, -1)
    for segment in about["segments"]:
        graph, end = segment["graph"], segment["heads"][-1]
        session = onnxruntime.InferenceSession(folder / graph["file"])
        *state, logits = session.run(
            graph["outputs"], dict(zip(graph["inputs"], state, strict=True))
        )
        top = softmax(logits[:, -1].astype(np.float64)).max(axis=1)
        stops = np.log(top / (1 - top)) >= thresholds[end]
        exits[left[stops]] = end
        left, state = left[~stops], [part[~stops] for part in state]
    unsure, wanted = near(made.world, made.world.policy, inputs)
    assert ((exits == wanted) | unsure).all() and len(set(exits.tolist())) > 1


def test_a_runner_prints_as_a_few_lines(exported):
    text = repr(exported("conv").runner)
    assert text.startswith("OnnxRunner(")
    assert "of the network without exits" in text
    assert len(text.splitlines()) == 3


def test_arrays_are_answered_with_arrays_and_tensors_with_the_same_tensors(exported):
    made = exported("conv")
    inputs = made.world.inputs(12)
    inputs[3] = torch.inf
    arrays, tensors = made.runner(inputs.numpy()), made.runner(inputs)
    assert int(arrays.failed.sum()) == 1
    for name, column in {**tensors.columns(), "logits": tensors.logits}.items():
        own = arrays.columns().get(name, arrays.logits)
        assert isinstance(own, np.ndarray) and isinstance(column, torch.Tensor)
        assert own.dtype == column.numpy().dtype, name
        assert np.array_equal(own, column, equal_nan=own.dtype.kind == "f"), name
    assert arrays.records() == tensors.records() == tensors[:].records()
    one, other = made.runner.stream([inputs[:4].numpy(), inputs[4:]], window=2)
    assert isinstance(one.logits, np.ndarray) and isinstance(other.logits, torch.Tensor)
    assert [*one.records(), *other.records()] == arrays.records()


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_without_exits_is_there_for_comparison(exported, kind):
    made = exported(kind)
    inputs = made.world.inputs(5)
    close(
        made.runner.full(inputs), Runner(made.world.network, made.world.policy).full(inputs), 1e-4
    )


class Noting(TorchDispatchMode):
    """Notes what torch computes."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_torch_leaves_the_cores_to_onnx_runtime_while_graphs_run(exported):
    """It computes nothing: its threads would spin on, on the cores of ONNX Runtime."""
    made, exits = exported("conv"), set()
    inputs, runner = made.world.inputs(40), made.fresh()
    with Noting() as torch_did:
        for budget in BUDGETS[made.world.network.num_exits]:
            runner.set_budget(budget)
            exits |= set(runner(inputs).exits.numpy().tolist())
    assert torch_did.seen <= {"detach", "lift_fresh"}  # views of arrays, and arrays as tensors
    assert len(exits) > 1  # rows were moved


def test_threads_are_the_cores_of_the_process_unless_given(exported):
    made = exported("conv")
    assert made.fresh().threads == 1
    assert OnnxRunner(made.folder).threads == physical_cores()
    with pytest.raises(ConfigError, match="`threads` must be a whole number of at least 1, got 0"):
        OnnxRunner(made.folder, threads=0)


def test_a_broken_sample_fails_alone(exported):
    made = exported("conv")
    inputs = made.world.inputs(5)
    inputs[2, 0, 0, 0] = torch.nan
    output = made.runner(inputs)
    assert output.failed.tolist() == [False, False, True, False, False]
    rest = made.runner(inputs[[0, 1, 3, 4]])
    assert torch.equal(output.exits[[0, 1, 3, 4]], rest.exits)
    assert output.exits[2] == -1 and output.costs[2] == 0


def test_nothing_is_an_empty_answer(exported):
    output = exported("conv").runner(torch.zeros(0, 3, 8, 8))
    assert len(output) == 0 and output.logits.shape == (0, 3)


@pytest.mark.parametrize("deadline", [0.5, 1.5, 99])
def test_a_deadline_forces_what_it_forces_in_the_runner(exported, deadline):
    made = exported("conv")
    policy = made.world.policy.at(budget=0.6)
    inputs = made.world.inputs(24)
    own = made.fresh(clock=Clock())
    own.set_budget(0.6)
    runner = Runner(made.world.network, policy, clock=Clock())
    free = Runner(made.world.network, policy)(inputs)
    assert len(free.exits.unique()) == 3, "some leave before the deadline"
    expected, output = runner(inputs, deadline), own(inputs, deadline)
    unsure, _ = near(made.world, policy, inputs)
    agreement(output, expected, unsure)
    assert own.stats.forced == runner.stats.forced
    with pytest.raises(ConfigError, match="`deadline` must be above 0, got 0"):
        own(inputs, deadline=0)


def test_stats_are_those_of_the_runner(exported):
    made = exported("conv")
    policy = made.world.policy.at(budget=0.6)
    own, runner = made.fresh(), Runner(made.world.network, policy)
    own.set_budget(0.6)
    inputs = made.world.inputs(64)
    inputs[5] = torch.nan
    for each in (own, runner):
        for _ in each.stream(inputs.split(10)):
            pass
    one, other = own.stats, runner.stats
    assert (one.samples, one.failed, one.forced) == (63, 1, 0)
    unsure, _ = near(made.world, policy, inputs[np.arange(64) != 5])
    assert one.mean_cost == pytest.approx(other.mean_cost, abs=1e-9 + float(unsure.sum()) / 63)
    assert one.expected_cost == other.expected_cost
    assert np.array_equal(one.expected_shares, other.expected_shares)
    assert str(one).startswith("63 samples (1 failed, 0 out of time)")
    own.set_budget(0.8)
    assert own.stats.samples == 0


def one_sided(made, budget):
    """Samples that all leave at the exit at which the fewest do."""
    runner = made.fresh()
    runner.set_budget(budget)
    pool = made.world.inputs(200)
    exits = runner(pool).exits
    counts = exits.bincount()
    rarest = counts.masked_fill(counts == 0, 999).argmin()
    assert counts[rarest] <= 100, "or there is no drift"
    return pool[exits == rarest][:1].expand(500, -1, -1, -1)


def test_drift_raises_the_alarm_and_stays_on(exported):
    made = exported("conv")
    own = made.fresh(false_alarm_rate=0.05)
    own.set_budget(0.8)
    assert not own.stats.drift
    own(one_sided(made, 0.8))
    assert own.stats.drift and own.stats.false_alarm_rate == 0.05
    own.set_budget(0.6)
    assert own.stats.drift and own.stats.samples == 0
    with pytest.raises(ConfigError, match=r"`false_alarm_rate` must lie in \(0, 1\), got 2"):
        made.fresh(false_alarm_rate=2)


def test_broken_samples_do_not_hold_up_a_stream(exported):
    made = exported("conv")
    inputs = made.world.inputs(30)
    inputs[11] = torch.nan
    inputs[20:] = torch.inf
    outputs = list(made.fresh().stream(inputs.split(10)))
    assert [int(output.failed.sum()) for output in outputs] == [0, 1, 10]


class Hungry:
    """Asks ONNX Runtime for more memory than there is, where it gets more than eight samples."""

    def __init__(self, session):
        onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
        make, kinds = onnx.helper, onnx.TensorProto
        inputs = [make.make_tensor_value_info("shape", kinds.INT64, [2])]
        output = [make.make_tensor_value_info("filled", kinds.FLOAT, None)]
        node = make.make_node("ConstantOfShape", ["shape"], ["filled"])
        graph = make.make_graph([node], "hungry", inputs, output)
        opset = [make.make_opsetid("", 18)]
        model = make.make_model(graph, opset_imports=opset, ir_version=9)
        self.session = session
        self.hungry = runtime.InferenceSession(model.SerializeToString())

    def run(self, names, feeds, options):
        if len(next(iter(feeds.values()))) > 8:
            return self.hungry.run(None, {"shape": torch.tensor([2**20, 2**22]).numpy()})
        return self.session.run(names, feeds, options)


def test_out_of_memory_suggests_a_batch_size(exported):
    made = exported("conv")
    own = made.fresh()
    graph = own._segments[0].graph
    graph._session = Hungry(graph._session)
    with pytest.raises(MemoryLimitError, match="a batch of 20 samples: pass at most 8 at a time"):
        own(made.world.inputs(20))
    assert len(list(own.stream(made.world.inputs(20).split(8), window=1))) == 3


def test_the_budget_moves_along_the_stored_points(exported):
    made = exported("conv")
    costs = []
    for budget in (0.4, 0.9):
        made.runner.set_budget(budget)
        expected = made.world.policy.at(budget=budget).thresholds
        assert np.array_equal(made.runner.thresholds, expected)  # bit by bit
        costs.append(made.runner(made.world.inputs(64)).costs.mean())
    assert costs[0] < costs[1]
    with pytest.raises(BudgetError, match="`budget` must lie in"):
        made.runner.set_budget(0.01)


def test_other_shapes_are_refused(exported):
    with pytest.raises(NetworkError, match="for images of 8x8, got 9x8: resize"):
        exported("conv").runner(torch.zeros(2, 3, 9, 8))


ARCHITECTURES = {
    "thin-resnet": {"depth": 8},
    "vit-tiny": {"depth": 2},
    "msdnet": {"blocks": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_papers_networks_decide_alike_in_onnx(name, tmp_path):
    network = offramp.build(name, 5, 16, at=2, **ARCHITECTURES[name]).eval()
    data = TensorDataset(torch.randn(90, 3, 16, 16), torch.arange(90) % 5)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out)
    policy = policy.tune(val, "geometric").at(budget=0.8)
    runner = OnnxRunner(export(network, policy, tmp_path, full=False), threads=1)
    images = torch.randn(32, 3, 16, 16)
    ledger = offramp.record(network, TensorDataset(images, torch.zeros(32).long()), "test")
    scores = replay(policy.answer, policy.scorer, ledger).scores
    unsure = near_threshold(scores, policy.thresholds)
    agreement(runner(images), Runner(network, policy)(images), unsure)


def tokenizer(texts, padding, truncation, return_tensors, max_length):
    """As those of transformers: words become ids, with padding and a mask."""
    ids = [[3 + len(word) for word in text.split()][:max_length] for text in texts]
    longest = max(map(len, ids))
    padded = [row + [1] * (longest - len(row)) for row in ids]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
    return {"input_ids": np.array(padded), "attention_mask": np.array(mask)}


def test_runners_with_a_tokenizer_take_texts(exported):
    made = exported("text")
    texts = ["a short one", "and one that is a little longer"]
    batch = tokenizer(texts, True, True, "np", 99)
    runners = [
        offramp.Runner(made.world.network, made.world.policy, tokenizer=tokenizer),
        OnnxRunner(made.folder, tokenizer=tokenizer),
    ]
    for runner in runners:
        wanted = np.asarray(runner(batch).logits)
        assert np.allclose(np.asarray(runner(texts).logits), wanted)
        alone = runner(tokenizer(texts[1:], True, True, "np", 99)).logits
        assert np.allclose(np.asarray(runner(texts[1]).logits), np.asarray(alone))
    with pytest.raises(NetworkError, match=r"texts need a tokenizer: Runner\(\.\.\., tokenizer="):
        OnnxRunner(made.folder)(texts)
