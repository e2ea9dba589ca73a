"""A profile measures what a runner really does, and its costs are what batches really take."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import offramp
from offramp.answers import CurrentExit
from offramp.batch_times import BatchTimes
from offramp.costs import Costs
from offramp.errors import ConfigError, FileFormatError, NetworkError, OriginError
from offramp.networks import EarlyExitNetwork
from offramp.networks.heads import LinearHead, Pool
from offramp.replay import replay
from offramp.runtime import Runner
from offramp.timing import Profile, profile
from offramp.timing.runners import Opener, plain_policy

SECONDS = {"stage": (1.0, 0.5), "head": (0.25, 0.125)}  # per call, per row


class Clock:
    """A clock that moves when something runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(nn.Module):
    def __init__(self, inner, clock, kind):
        super().__init__()
        self.inner, self.clock, self.seconds = inner, clock, SECONDS[kind]
        self.reads_logits = False

    def forward(self, x, *before):
        self.clock.now += self.seconds[0] + self.seconds[1] * len(x)
        return self.inner(x, *before)


def slow_network(clock, exits=3):
    torch.manual_seed(0)
    stages = [Slow(nn.Linear(4, 4), clock, "stage") for _ in range(exits)]
    heads = [Slow(LinearHead(Pool("flat"), 4, 3), clock, "head") for _ in range(exits)]
    return EarlyExitNetwork(stages, heads, 3, offramp.networks.inputs.TensorInput((4,)))


def made(stages=((1.0, 2.0), (3.0, 4.0)), overheads=((0.2, 0.0), (0.4, 0.0)), sizes=(1, 4)):
    return Profile(
        "torch", 1, "cpu", "a machine", "n", [0, 1], "", list(sizes), [2.5, 6.0],
        [list(row) for row in stages], [list(row) for row in overheads],
        [[2 * each for each in row] for row in overheads], [0.0] * 2, [0.0] * 2,
    )  # fmt: skip


def test_a_profile_has_the_seconds_of_stages_and_overheads():
    clock = Clock()
    network = slow_network(clock)
    found = profile(network, batch_size=[1, 8], seconds=0, clock=clock)
    assert found.sizes == [1, 2, 4, 8]
    stage, head = SECONDS["stage"], SECONDS["head"]
    for row, size in enumerate(found.sizes):
        one, overhead = stage[0] + stage[1] * size, head[0] + head[1] * size
        # The last head runs without exits, too, and belongs to the last stage.
        assert found.stages[row] == pytest.approx([one, one, one + overhead])
        assert found.overheads[row] == pytest.approx([overhead, overhead, 0])
        assert found.full[row] == pytest.approx(3 * one + overhead)


def test_single_samples_are_timed_on_the_way_that_single_samples_take(monkeypatch):
    network = slow_network(Clock())
    answer_one, sizes = Runner._answer_one, []

    def watched(runner, point, state):
        sizes.append(len(state))
        return answer_one(runner, point, state)

    monkeypatch.setattr(Runner, "_answer_one", watched)
    found = profile(network, batch_size=1, seconds=0, progress=False)
    assert found.sizes == [1, 2]  # two, to compare single samples with
    assert len(sizes) > 100 and set(sizes) == {1}


class Disturbed(Clock):
    """A clock by which single samples take longer than two at once."""

    def add(self, rows):
        self.now += 3.0 if rows == 1 else 2.0


def test_seconds_of_single_samples_that_do_not_fit_are_doubted(capsys):
    clock = Disturbed()
    network = slow_network(clock)
    for module in network.modules():
        if isinstance(module, Slow):
            module.register_forward_pre_hook(lambda module, given: clock.add(len(given[0])))
    profile(network, batch_size=1, seconds=0, clock=clock)
    text = " ".join(capsys.readouterr().err.split())
    assert "note: one sample took" in text and "--clock process" in text
    clock = Clock()
    profile(slow_network(clock), batch_size=1, seconds=0, clock=clock)
    assert "in doubt" not in capsys.readouterr().err


def test_a_budget_in_seconds_is_what_batches_take():
    clock = Clock()
    network = slow_network(clock)
    data = torch.utils.data.TensorDataset(torch.randn(600, 4), torch.arange(600) % 3)
    ledger = offramp.record(network, data, "all", progress=False)
    found = profile(network, batch_size=8, seconds=0, clock=clock)
    held_out, val, _ = found.timed(ledger, 8).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    for budget in (0.5, 0.7, 0.9):
        chosen = policy.at(budget=budget)
        promised = float(policy.points.budgets[chosen.selected])
        assert found.predicted_share(chosen, 8) == pytest.approx(promised)
        runner, spent, full = Runner(network, chosen), 0.0, 0.0
        for rows in torch.randperm(600)[:592].split(8):
            start = clock()
            runner(data.tensors[0][rows])
            middle = clock()
            runner.full(data.tensors[0][rows])
            spent, full = spent + middle - start, full + clock() - middle
        assert spent / full == pytest.approx(promised, rel=0.06)  # other samples than val's


def test_costs_of_single_samples_are_proportional_and_of_batches_are_not():
    found = made()
    where = "torch, 1 thread, cpu, a machine, batches of 1"
    single, times = found.at(1), found.at(4)
    assert single.costs == Costs((1.0, 2.0), (0.2, 0.0), 2.5, "seconds")
    assert single.costs_of(reads_back=True) == Costs((1.0, 2.0), (0.4, 0.0), 2.5, "seconds")
    assert single.origin == where and single.stages.shape == (2, 1)
    assert times.costs.stages.tolist() == pytest.approx([0.75, 1.0])
    assert times.reference == pytest.approx(1.5)
    # One of four rows is left at the second exit, on average: what that takes is the mean over
    # how many are left, none of them included.
    left, heads_run = np.array([[1.0, 0.25]]), np.ones((1, 2), bool)
    per_sample = times.cumulative_at(left, heads_run)[0]
    rows = np.random.default_rng(0).binomial(4, 0.25, 200_000)
    second = np.interp(rows, [0, 1, 4], [0, 2.0, 4.0]).mean() / 4
    assert float(per_sample[1] - per_sample[0]) * 0.25 == pytest.approx(second, rel=0.01)


def test_kept_exits_take_their_joined_stages():
    stages = np.broadcast_to([[1.0], [2.0], [3.0]], (3, 11))
    kept = BatchTimes(stages, np.zeros((3, 11)), 5.5).keep([1, 2])
    assert kept.costs.stages.tolist() == [3.0, 3.0]
    whole = np.ones((1, 2))
    assert kept.cumulative_at(whole, whole > 0).tolist() == [[3.0, 6.0]]


def test_the_network_without_exits_takes_what_it_was_measured_to_take():
    times = made().at(4)
    assert float(times.costs.cumulative[-1]) > times.reference  # stages take longer in pieces
    whole = np.ones((1, 1))
    for kept in (times.keep([1]), BatchTimes.proportional(times.costs.keep([1]))):
        assert kept.costs.cumulative.tolist() == pytest.approx([times.reference])
        taken = kept.cumulative_at(whole, whole > 0)
        assert taken.tolist() == [pytest.approx([times.reference])]
    assert float(times.costs.alone[-1]) == times.reference


def test_a_closed_exit_has_no_overhead():
    splits = offramp.synthetic.ledgers(seed=0, samples=200, exits=4)
    costs = Costs((1.0,) * 4, (0.5, 0.5, 0.5, 0.0), unit="seconds")
    timed = {split: ledger.with_costs(costs) for split, ledger in splits.items()}
    policy = offramp.Policy(offramp.MaxProbability()).fit(timed["held_out"])
    policy = policy.tune(timed["val"], "geometric")
    closed, last = np.array([[np.inf, np.inf, np.inf, 0.0]]), np.array([[0.0, 0.0, 0.0, 1.0]])
    replay = policy.replay(timed["test"])
    assert replay.price.at(closed, last)[0, -1] == 1.0
    opened = replay.price.at(np.zeros_like(closed), last)[0, -1]
    assert opened == pytest.approx(1.375, abs=1e-3)  # and what decisions take here


def test_decisions_that_read_earlier_exits_are_charged_for_it(tmp_path):
    splits = offramp.synthetic.ledgers(seed=0, samples=200, exits=2)
    timed = splits["test"].with_costs(made().at(1))
    restored = offramp.Ledger.load(timed.save(tmp_path / "ledger"))
    assert restored.cost_model == timed.cost_model
    taken = [
        replay(CurrentExit(), scorer, restored).price.shares
        for scorer in (offramp.MaxProbability(), offramp.scorers.Patience())
    ]
    assert [shares.tolist() for shares in taken] == [
        pytest.approx([1.2 / 2.5, 3.2 / 2.5]),
        pytest.approx([1.4 / 2.5, 3.4 / 2.5]),
    ]


def test_reading_earlier_exits_is_timed():
    network = offramp.build("convnet", num_classes=4, image_size=8)
    found = profile(network, batch_size=1, seconds=0.3)
    more = np.array(found.overheads_reading_back) - np.array(found.overheads)
    assert (more >= 0).all() and more.sum() > 0
    own = offramp.Policy(offramp.scorers.Patience())
    data = torch.utils.data.TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 4)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    own = own.fit(held_out).tune(val)
    found = profile(network, own, batch_size=1, seconds=0)
    assert found.overheads_reading_back == found.overheads


def test_profiles_are_files(tmp_path):
    found = made()
    assert Profile.load(found.save(tmp_path / "profile")) == found
    replace(found, full=[1.0]).save(tmp_path / "short")
    with pytest.raises(FileFormatError, match="do not have the same sizes"):
        Profile.load(tmp_path / "short")
    with pytest.raises(FileFormatError, match="no profile at"):
        Profile.load(tmp_path)


def test_wrong_uses_are_refused():
    network = slow_network(Clock())
    with pytest.raises(ConfigError, match="`runtime` must be one of torch, onnx, got 'tpu'"):
        profile(network, runtime="tpu")
    with pytest.raises(ConfigError, match="`batch_size` must be a whole number of at least 1"):
        profile(network, batch_size=0)
    with pytest.raises(NetworkError, match=r"an EarlyExitNetwork, got Linear: .*offramp\.attach"):
        profile(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="batches of 1 to 4, got 8: measure again"):
        made().at(8)
    splits = offramp.synthetic.ledgers(seed=0, samples=50, exits=2)
    with pytest.raises(OriginError, match="profile the network that was recorded"):
        made().timed(splits["val"], 1)


def test_a_policy_of_some_exits_runs_on_the_whole_network():
    torch.manual_seed(0)
    network = offramp.build("convnet", num_classes=3, image_size=8)
    data = torch.utils.data.TensorDataset(torch.rand(90, 3, 8, 8), torch.arange(90) % 3)
    held_out, val, test = offramp.record(network, data, "all", progress=False).partition()
    few = held_out.keep_exits([1, 3])
    policy = offramp.Policy(offramp.MaxProbability()).fit(few)
    policy = policy.tune(val.keep_exits([1, 3]), "geometric").at_point(100)
    assert policy.exits == (1, 3)
    # Of a ledger with all exits, those of the policy are used.
    exits = policy.decide(test)
    assert np.array_equal(exits, policy.decide(test.keep_exits([1, 3])))
    rows = torch.tensor(test.sample_ids)
    output = Runner(network, policy)(data.tensors[0][rows])
    assert output.exits.tolist() == exits.tolist()
    found = profile(network, policy, batch_size=2, seconds=0)
    assert (found.exits, found.timed(test, 2).exits) == ([1, 3], (1, 3))


def test_a_head_that_reads_earlier_logits_keeps_their_exits():
    network = offramp.build("convnet", num_classes=3, image_size=8, head="cascade")
    assert network.keep_exits([0, 1]).num_exits == 2
    with pytest.raises(NetworkError, match="head of exit 1 reads the logits of all exits before"):
        network.keep_exits([1, 3])
    with pytest.raises(NetworkError, match=r"ascending numbers in 0\.\.3, got \[4\]"):
        network.keep_exits([4])


def test_bench_races_the_users_own_model_and_runners(monkeypatch):
    """The model as it was before it was cut into stages answers as the network without exits."""
    from torch import nn
    from torch.utils.data import TensorDataset

    from offramp.timing import BenchConfig, bench

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, 3)),
    )
    images, labels = torch.rand(40, 3, 8, 8), torch.arange(40) % 3
    network = offramp.attach(model, at=2, example=images[:2])
    ledger = offramp.record(network, TensorDataset(images, labels), "all", progress=False)
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    policy = policy.at(budget=1.0)
    small = offramp.build("convnet", num_classes=3, image_size=4, depth=2)
    rivals = {"mine": model, "a runner": offramp.Runner(network, policy), "small": small}
    config = BenchConfig(["torch"], [8], seconds=0.05, cuts=False)
    given = images.numpy(), labels.tolist()
    rows = {row.name: row for row in bench(network, policy, *given, config, rivals)}
    assert list(rows) == ["with exits", "without exits", "mine", "a runner", "small"]
    assert rows["mine"].accuracy == rows["without exits"].accuracy
    assert rows["a runner"].accuracy == rows["with exits"].accuracy
    config = BenchConfig(["onnx"], [8], seconds=0.05, cuts=False)
    known = profile(network, policy, batch_size=8, inputs=given[0], seconds=0)
    monkeypatch.setattr(Opener, "opened", without_export)
    found = bench(network, policy, images, labels, config, rivals, {"onnx": known})
    rows = {row.name: row for row in found}
    assert list(rows) == ["with exits", "without exits", "mine", "small"]
    assert rows["mine"].accuracy == rows["without exits"].accuracy


def test_accuracies_are_of_all_samples_however_few_are_timed():
    from offramp.timing import BenchConfig, bench

    torch.manual_seed(0)
    network = offramp.build("convnet", num_classes=3, image_size=8, at=2).eval()
    images = torch.rand(1000, 3, 8, 8)
    labels = network(images)[:, -1].argmax(1)
    labels[64:] = (labels[64:] + 1) % 3  # right for the samples that are timed first, and no more
    config = BenchConfig(["torch"], [8, 32], seconds=0, cuts=False)
    rows = bench(network, plain_policy(network), images, labels, config, progress=False)
    assert {(row.samples, row.labelled, row.accuracy) for row in rows} == {(64, 1000, 0.064)}
    plain = bench(network, plain_policy(network), images, None, config, progress=False)
    assert {(row.labelled, row.accuracy) for row in plain} == {(None, None)}
    cells = offramp.report.bench_table(rows).rows[0]
    assert cells[-1].text == "6.40% of 1,000"


@contextmanager
def without_export(opener, network, policy):
    """The runner of ONNX Runtime, without the seconds that exporting takes."""
    assert opener.runtime == "onnx"
    yield Runner(network, policy)


def test_an_export_is_made_where_onnx_runtime_is_timed():
    pytest.importorskip("onnxruntime")
    network = offramp.build("convnet", num_classes=3, image_size=8, at=2).eval()
    images = torch.rand(4, 3, 8, 8)
    with Opener("onnx", threads=1).opened(network, plain_policy(network, [1])) as runner:
        wanted = Runner(network, plain_policy(network, [1])).full(images)
        assert runner.threads == 1
        assert torch.allclose(runner.full(images), wanted, atol=1e-4)
        assert torch.allclose(runner(images).logits, wanted, atol=1e-4)


def test_a_policy_without_exits_can_be_profiled():
    network = offramp.build("convnet", num_classes=4, image_size=8).eval()
    alone = plain_policy(network, [network.num_exits - 1])
    found = profile(network, alone, batch_size=2, seconds=0)
    assert found.exits == [network.num_exits - 1]
    assert found.overheads == found.overheads_reading_back == [[0.0], [0.0]]
