"""What a runner does with a batch."""

import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp import MaxProbability, Policy
from offramp.confidence import Confidence
from offramp.errors import (
    BudgetError,
    ConfigError,
    MemoryLimitError,
    NetworkError,
    NotFittedError,
    OriginError,
    OriginWarning,
)
from offramp.networks.inputs import AnyInput
from offramp.runtime import Runner
from offramp.runtime.output import OUTPUT_COLUMNS, RECORD_FIELDS, OutputBuffer

from ..deployment import Clock


class Recorder(nn.Module):
    """Notes the number of samples that a stage or a head sees."""

    def __init__(self, module):
        super().__init__()
        self.module, self.seen = module, []
        self.reads_logits = getattr(module, "reads_logits", False)

    def forward(self, state, *rest):
        self.seen.append(state)
        return self.module(state, *rest)

    def sizes(self):
        return [len(each) for each in self.seen]


def watched(world):
    """The same network with its stages and heads watched; it has the same weights."""
    network = world.network
    stages = [Recorder(stage) for stage in network.stages]
    heads = [Recorder(head) for head in network.heads]
    spied = offramp.networks.EarlyExitNetwork(stages, heads, network.num_classes)
    return spied.eval(), stages, heads


def unsigned(policy):
    """The policy for a network that is the same but has other names for its weights."""
    other = copy(policy)
    other.network = None
    return other


def with_thresholds(policy, thresholds):
    """The policy at an operating point of our own."""
    points = policy.points
    rows = np.array([thresholds])
    own = type(points)(rows, points.budgets[:1], points.accuracies[:1], points.shares[:1], 0.5)
    other = unsigned(policy)
    other._points, other.selected = own, 0
    return other


INF = float("inf")


@pytest.fixture
def quiet(recwarn):
    """For policies that do not say which network they are for."""
    warnings.simplefilter("ignore", OriginWarning)


def test_stages_see_only_the_samples_that_stay(world, quiet):
    network, stages, _ = watched(world)
    output = Runner(network, unsigned(world.policy))(world.inputs(50))
    staying = [int((output.exits >= exit_index).sum()) for exit_index in range(network.num_exits)]
    assert [watch.sizes() for watch in stages] == [[size] if size else [] for size in staying]
    assert staying[0] > staying[-1] > 0


def test_every_answer_is_written_once(world, monkeypatch):
    written = []
    write = OutputBuffer.write

    def noting(self, rows, *rest, **options):
        written.extend(rows.tolist())
        write(self, rows, *rest, **options)

    monkeypatch.setattr(OutputBuffer, "write", noting)
    for deadline in (None, 1.5):
        output = Runner(world.network, world.policy, clock=Clock())(world.inputs(50), deadline)
        assert sorted(written) == list(range(50))
        assert len(output.exits.unique()) > 1
        written.clear()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_stages_and_heads_run_in_inference_mode_and_the_caller_does_not(world, quiet, precision):
    network, stages, heads = watched(world)
    Runner(network, unsigned(world.policy), precision=precision)(world.inputs(8))
    seen = [state for watch in (*stages[1:], *heads) for state in watch.seen]
    assert seen and all(state.is_inference() for state in seen)
    assert not torch.is_inference_mode_enabled()


def test_nothing_is_gathered_when_nobody_leaves(world, quiet):
    network, stages, _ = watched(world)
    policy = with_thresholds(world.policy, [1e9, 1e9, 1e9, -INF])
    made = []
    stages[0].module.register_forward_hook(lambda module, x, out: made.append(out))
    Runner(network, policy)(world.inputs(8))
    assert stages[1].seen[0] is made[0]


def test_a_closed_exits_head_is_skipped_where_nothing_reads_it(world, quiet):
    network, _, heads = watched(world)
    policy = with_thresholds(world.policy, [INF, 0.0, INF, 0.0])
    Runner(network, policy)(world.inputs(8))
    assert [len(watch.seen) for watch in heads] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("kind", "scorer", "answer", "run"),
    [
        ("flat", offramp.MaxProbability(), offramp.answers.ProductOfExperts(), [1, 1, 1, 1]),
        ("flat", offramp.scorers.Patience(), None, [1, 1, 0, 1]),
        ("cascade", offramp.MaxProbability(), None, [1, 1, 1, 1]),
        ("flat", offramp.MaxProbability(), offramp.answers.VectorScaling(), [0, 1, 0, 1]),
    ],
    ids=["answer", "scorer", "cascade", "none"],
)
def test_a_closed_exits_head_runs_where_something_reads_it(make, quiet, kind, scorer, answer, run):
    world = make(kind, scorer, answer)
    network, _, heads = watched(world)
    policy = with_thresholds(world.policy, [INF, 1e9, INF, 0.0])
    output = Runner(network, policy)(world.inputs(8))
    assert [len(watch.seen) for watch in heads] == run
    answers = world.policy.answer.answers(world.ledger(world.inputs(8)).logits)
    np.testing.assert_allclose(output.logits, answers[:, -1], rtol=1e-5, atol=1e-5)


def test_channels_last_is_kept_when_shrinking(world, quiet):
    network, stages, _ = watched(world)
    before = Runner(world.network, world.policy)(world.inputs(30))
    output = Runner(network, unsigned(world.policy), channels_last=True)(world.inputs(30))
    assert torch.equal(before.exits, output.exits)
    for watch in stages:
        for state in watch.seen:
            assert state.is_contiguous(memory_format=torch.channels_last)
    world.network.to(memory_format=torch.contiguous_format)


def test_padding_is_trimmed_to_the_longest_text_that_stays(make, quiet):
    world = make("text", exits=3)
    network, stages, _ = watched(world)
    network.inputs = world.network.inputs
    inputs = world.inputs(30)
    output = Runner(network, unsigned(world.policy))(inputs)
    lengths = inputs["attention_mask"].sum(1)
    for exit_index in (1, 2):
        (state,) = stages[exit_index].seen
        staying = lengths[output.exits >= exit_index]
        assert state["mask"].shape == (len(staying), int(staying.max()))
    assert len(stages[2].seen[0]["mask"]) < 30


def test_a_sample_with_nan_or_infinite_inputs_fails_alone(world):
    inputs = world.inputs(12)
    runner = Runner(world.network, world.policy)
    whole = runner(inputs)
    broken = inputs.clone()
    broken[3, 0, 2, 2] = torch.nan
    broken[7, 1, 0, 0] = torch.inf
    output = runner(broken)
    assert output.failed.nonzero().squeeze(1).tolist() == [3, 7]
    assert output.predictions[3] == -1 and output.exits[3] == -1 and output.costs[3] == 0
    assert output.confidence[3].isnan() and output.logits[3].isnan().all()
    fine = ~output.failed
    assert torch.equal(output.exits[fine], whole.exits[fine])
    torch.testing.assert_close(output.logits[fine], whole.logits[fine])
    assert runner.stats.failed == 2 and runner.stats.samples == 22


def test_a_sample_that_overflows_inside_the_network_fails_alone(make, quiet):
    world = make("flat")
    inputs = world.inputs(6)
    inputs[2] = 1e38  # finite, but the first linear layer overflows
    world.network.stages[0][1] = nn.Identity()
    nn.init.constant_(world.network.stages[0][0].weight, 100.0)
    runner = Runner(world.network, unsigned(world.policy))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, arrays = runner(inputs), runner(inputs.numpy())
        assert output.confidence[2].isnan() and np.isnan(arrays.confidence[2])
    assert output.failed.tolist() == [False, False, True, False, False, False]
    assert not output.confidence[output.failed.logical_not()].isnan().any()


def test_a_batch_of_failing_samples_and_an_empty_batch_have_outputs(world):
    runner = Runner(world.network, world.policy)
    output = runner(torch.full((3, 3, 8, 8), torch.nan))
    assert output.failed.all() and not output.likely_wrong.any()
    empty = runner(torch.empty(0, 3, 8, 8))
    assert len(empty) == 0 and repr(empty) == "RunOutput(no samples)"
    assert runner.stats.samples == 0


@pytest.mark.parametrize(("deadline", "deepest"), [(0.5, 0), (1.5, 1), (2.5, 2), (99, 3)])
def test_a_deadline_answers_everything_with_the_exit_reached(world, deadline, deepest):
    inputs = world.inputs(40)
    free = Runner(world.network, world.policy)(inputs)
    runner = Runner(world.network, world.policy, clock=Clock())
    output = runner(inputs, deadline=deadline)
    assert torch.equal(output.exits, free.exits.clamp(max=deepest))
    assert not output.failed.any()
    logits = world.ledger(inputs).logits[np.arange(40), output.exits]
    np.testing.assert_allclose(output.logits, logits, rtol=1e-5, atol=1e-5)
    forced = free.exits > deepest
    assert runner.stats.forced == int(forced.sum())
    assert not (output.likely_wrong & forced).any()


def test_a_deadline_at_a_closed_exit_still_answers(world, quiet):
    policy = with_thresholds(world.policy, [INF, INF, INF, 0.0])
    runner = Runner(world.network, policy, clock=Clock())
    output = runner(world.inputs(5), deadline=1.5)
    assert output.exits.tolist() == [1] * 5
    assert output.scores.isnan().all() and not output.logits.isnan().any()


def test_a_deadline_must_be_positive(world):
    with pytest.raises(ConfigError, match="`deadline` must be above 0"):
        Runner(world.network, world.policy)(world.inputs(2), deadline=0)


def test_set_budget_moves_along_the_stored_points(world):
    runner = Runner(world.network, world.policy.at(budget=0.4))
    inputs = world.inputs(200)
    cheap = runner(inputs).costs.mean()
    runner.set_budget(0.9)
    assert runner.stats.samples == 0
    dear = runner(inputs)
    assert dear.costs.mean() > cheap + 0.2
    fresh = Runner(world.network, world.policy.at(budget=0.9))(inputs)
    assert torch.equal(fresh.exits, dear.exits)
    with pytest.raises(BudgetError, match="`budget` must lie in"):
        runner.set_budget(0.01)


def test_eval_mode_is_guaranteed(world):
    runner = Runner(world.network, world.policy)
    before = runner(world.inputs(20))
    world.network.stages[1].train()
    after = runner(world.inputs(20))
    assert torch.equal(before.logits, after.logits)
    assert not any(module.training for module in world.network.modules())


def test_outputs_may_be_changed_and_carry_no_gradient(world):
    output = Runner(world.network, world.policy)(world.inputs(4))
    output.logits.add_(1.0)  # would raise on a tensor of inference mode
    assert not output.logits.requires_grad


class Branching(nn.Module):
    """Cannot be traced: what it does depends on the values."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        return self.stage(x) if x.sum() < 1e9 else x


class Asking(nn.Module):
    """Is traced as something else: what stands for a tensor there is none."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        return self.stage(x) if isinstance(x, torch.Tensor) else 2 * self.stage(x)


def test_folded_batch_norms_decide_alike_and_what_cannot_be_folded_stays(quiet):
    torch.manual_seed(0)
    network = offramp.build("thin-resnet", num_classes=4, image_size=8, at=4)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    network.stages[1], network.stages[2] = Branching(network.stages[1]), Asking(network.stages[2])
    data = TensorDataset(torch.randn(80, 3, 8, 8), torch.arange(80) % 4)
    ledger = offramp.record(network, data, split="all", progress=False)
    held_out, val, _ = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.7)
    plain, folded = Runner(network, policy, compile=False), Runner(network, policy)
    kept = [one is two for one, two in zip(plain._stages, folded._stages, strict=True)]
    assert kept == [False, True, True, False]
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.stages[0].modules())
    inputs = torch.randn(40, 3, 8, 8)
    one, two = plain(inputs), folded(inputs)
    assert torch.equal(one.exits, two.exits) and len(one.exits.unique()) > 1
    torch.testing.assert_close(one.logits, two.logits, rtol=1e-4, atol=1e-4)
    assert not torch.equal(one.logits, two.logits)


def test_without_an_example_nothing_is_folded(world):
    assert isinstance(world.network.inputs, AnyInput)
    assert Runner(world.network, world.policy)._stages == list(world.network.stages)


def test_compiled_stages_decide_alike(make):
    world = make("flat", exits=2)
    plain = Runner(world.network, world.policy)
    compiled = Runner(world.network, world.policy, compile="eager")
    for samples in (1, 7, 12):
        inputs = world.inputs(samples)
        assert torch.equal(plain(inputs).exits, compiled(inputs).exits)


@pytest.mark.slow
def test_compiling_for_real_decides_alike(make):
    world = make("flat", exits=2)
    inputs = world.inputs(9)
    compiled = Runner(world.network, world.policy, compile=True)(inputs)
    assert torch.equal(Runner(world.network, world.policy)(inputs).exits, compiled.exits)


class Greedy(nn.Module):
    """Has memory for eight samples."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        if len(x) > 8:
            raise self.error
        return x


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_out_of_memory_suggests_a_batch_size(make, quiet, error):
    world = make("flat")
    world.network.stages[1].append(Greedy(error))
    runner = Runner(world.network, with_thresholds(world.policy, [INF, INF, INF, 0.0]))
    with pytest.raises(MemoryLimitError, match="a batch of 20 samples: pass at most 8 at a time"):
        runner(world.inputs(20))
    assert len(list(runner.stream(world.inputs(20).split(8), window=1))) == 3


def test_other_errors_are_passed_on(make, quiet):
    world = make("flat")
    world.network.stages[1].append(Greedy(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        Runner(world.network, with_thresholds(world.policy, [INF] * 3 + [0.0]))(world.inputs(20))


def test_partners_that_do_not_belong_together_are_refused(make, quiet):
    one, two, three = make("flat"), make("flat", seed=1), make("flat", exits=3)
    with pytest.raises(OriginError, match=r"for the network .* record this network"):
        Runner(two.network, one.policy)
    with pytest.raises(NetworkError, match="for 4 exits and 3 classes, and the network has 3"):
        Runner(three.network, one.policy)
    with pytest.raises(NetworkError, match=r"a runner needs an EarlyExitNetwork, got Linear"):
        Runner(nn.Linear(2, 2), one.policy)


def test_an_unknown_origin_warns(make):
    world = make("flat")
    with pytest.warns(OriginWarning, match="does not say which network it is for"):
        Runner(world.network, unsigned(world.policy))


def test_a_policy_needs_an_operating_point(make):
    world = make("flat")
    undecided = copy(world.policy)
    undecided.selected = None
    with pytest.raises(NotFittedError, match="no operating point yet"):
        Runner(world.network, undecided)


def test_settings_are_checked(world):
    with pytest.raises(
        ConfigError, match=r"`precision` must be one of auto, .*float16, got 'half'"
    ):
        Runner(world.network, world.policy, precision="half")
    with pytest.raises(ConfigError, match=r"`false_alarm_rate` must lie in \(0, 1\), got 0"):
        Runner(world.network, world.policy, false_alarm_rate=0)


def test_costs_are_what_the_policy_charges(make):
    world = make("flat", offramp.Corrector(hidden=8, epochs=1), offramp.TemperatureScaling())
    output = Runner(world.network, world.policy)(world.inputs(30).numpy())
    assert np.array_equal(output.costs, world.policy.cost_shares[output.exits])


def test_scores_are_those_of_the_exit_taken(world):
    output = Runner(world.network, world.policy)(world.inputs(30).numpy())
    last = output.exits == world.network.num_exits - 1
    assert np.isposinf(output.scores[last]).all()
    assert (output.scores[~last] >= world.policy.thresholds[output.exits[~last]]).all()


@dataclass
class Reader(offramp.MaxProbability):
    """Inherits from a scorer that reads the current exit only, and reads more."""

    def score_at(self, history):
        return history.answers.max(axis=2).mean(axis=1)


@dataclass
class Contrary(offramp.Corrector):
    """Inherits a scorer that is prepared for each exit, and scores in its own way."""

    def score_at(self, history):
        return -super().score_at(history)


def test_a_runner_scores_by_the_method_of_a_subclass(make):
    world = make("flat", Contrary(hidden=8, epochs=1))
    inputs = world.inputs(30)
    output = Runner(world.network, world.policy)(inputs.numpy())
    scores = world.policy.replay(world.ledger(inputs)).scores
    stopped = np.flatnonzero(output.stopped)
    assert len(stopped)
    wanted = scores[stopped, output.exits[stopped]]
    np.testing.assert_allclose(output.scores[stopped], wanted, rtol=1e-5, atol=1e-5)


def test_a_subclass_with_a_method_of_its_own_is_taken_to_read_history(make):
    assert Reader().reads_history and not offramp.MaxProbability().reads_history
    world = make("flat", Reader())
    assert world.policy.decider.keeps_outputs
    inputs = world.inputs(30)
    exits = Runner(world.network, world.policy)(inputs.numpy()).exits
    assert np.array_equal(exits, world.policy.decide(world.ledger(inputs)))


def test_the_network_without_exits_is_the_last_exit(make):
    for kind in ("conv", "cascade", "nested"):
        world = make(kind)
        inputs = world.inputs(6)
        full, last = Runner(world.network, world.policy).full(inputs), world.ledger(inputs).logits
        np.testing.assert_allclose(full, last[:, -1], rtol=1e-5, atol=1e-5)


def test_several_threads_may_share_a_runner(world):
    runner = Runner(world.network, world.policy)
    batches = [world.inputs(20, seed=seed) for seed in range(24)]
    expected = [runner(batch).exits for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        found = [output.exits for output in threads.map(runner, batches)]
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))
    assert runner.stats.samples == 2 * 24 * 20


def test_parts_of_an_output_are_outputs(world):
    output = Runner(world.network, world.policy)(world.inputs(9))
    part = output[2:5]
    assert len(part) == 3 and torch.equal(part.exits, output.exits[2:5])
    assert torch.equal(output[output.exits == 0].scores, output.scores[output.exits == 0])


def test_confidence_is_computed_when_read_and_at_the_operating_point_of_its_run(
    world, monkeypatch
):
    calls = []
    probability = Confidence.probability

    def counted(self, *parts):
        calls.append(len(parts[0]))
        return probability(self, *parts)

    monkeypatch.setattr(Confidence, "probability", counted)
    runner = Runner(world.network, world.policy)
    output = runner(world.inputs(20))
    assert not calls
    some = output[3:7]
    runner.set_budget(1.0)
    torch.testing.assert_close(some.confidence, output.confidence[3:7])
    assert torch.equal(some.likely_wrong, output.likely_wrong[3:7])
    assert sorted(calls) == [4, 20]  # once each, however often it is read


def test_a_pickled_output_needs_no_policy(world):
    output = Runner(world.network, world.policy)(world.inputs(9))
    copied = pickle.loads(pickle.dumps(output))
    assert isinstance(copied.confidence_source, torch.Tensor)
    for name in ("logits", "exits", "costs", "confidence", "likely_wrong"):
        assert torch.equal(getattr(copied, name), getattr(output, name))


def test_records_and_columns_say_the_same_and_failures_have_no_answer(world):
    inputs = world.inputs(12)
    inputs[5] = torch.nan
    output = Runner(world.network, world.policy)(inputs)
    records, columns = output.records(["ant", "bee", "cat"]), output.columns()
    assert tuple(records[0]) == RECORD_FIELDS and tuple(columns) == tuple(OUTPUT_COLUMNS)
    for row, record in enumerate(records):
        if row == 5:
            assert record == dict.fromkeys(RECORD_FIELDS) | {"cost": 0.0}
            assert columns["failed"][row] and columns["prediction"][row] == -1
            continue
        assert record["class"] == columns["prediction"][row]
        assert record["name"] == ["ant", "bee", "cat"][record["class"]]
        assert record["exit"] == columns["exit"][row]
        assert record["likely_wrong"] is bool(columns["likely_wrong"][row])
        for name in ("confidence", "cost"):
            assert record[name] == round(float(columns[name][row]), 6)
    assert {record["name"] for record in output.records()} == {None}
    json.dumps(records, allow_nan=False)


def test_records_of_a_policy_without_confidence_have_none(world):
    policy = copy(world.policy)
    policy.confidence = None
    records = Runner(world.network, policy)(world.inputs(3)).records()
    assert [(record["confidence"], record["likely_wrong"]) for record in records] == [
        (None, False)
    ] * 3


@pytest.mark.parametrize("kind", ["conv", "text"])
def test_arrays_are_answered_with_arrays_and_tensors_with_tensors(make, kind):
    world = make(kind, exits=3)
    tensors, runner = world.inputs(9), Runner(world.network, world.policy)
    texts = kind == "text"
    arrays = {key: x.numpy() for key, x in tensors.items()} if texts else tensors.numpy()
    one, other = runner(arrays), runner(tensors)
    for name, column in {
        **other.columns(),
        "logits": other.logits,
        "scores": other.scores,
    }.items():
        own = getattr(one, OUTPUT_COLUMNS.get(name, name))
        assert isinstance(own, np.ndarray) and isinstance(column, torch.Tensor), name
        assert own.dtype == column.numpy().dtype and np.array_equal(own, column), name
    kinds = [type(each.logits) for each in runner.stream([arrays, tensors, arrays], window=1)]
    assert kinds == [np.ndarray, torch.Tensor, np.ndarray]
    assert one.records() == other.records()
