"""An export decides as the network and the policy that it was made from."""

import hashlib
import json
import shutil

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import offramp
from offramp import report
from offramp.cli import app
from offramp.errors import BudgetError, ConfigError, FileFormatError, NetworkError
from offramp.runtime import OnnxRunner, Runner, export, near_threshold
from offramp.runtime.manifest import Manifest
from offramp.thresholds.rule import exits_taken
from offramp.tracing import trace

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

PAIRS = {
    "conv": (offramp.Corrector(hidden=8, epochs=1), offramp.GeometricEnsemble()),
    "nested": (offramp.Entropy(), offramp.MatrixScaling()),
    "cascade": (offramp.Patience(), offramp.CurrentExit()),
    "text": (offramp.Margin(), offramp.ProductOfExperts()),
}
EXITS = {"conv": 3, "nested": 2, "cascade": 3, "text": 2}  # few: exporting takes its time
BUDGETS = {2: (0.6, 0.75, 0.9), 3: (0.45, 0.6, 0.8)}


class Exported:
    """A world and its export."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.runner = OnnxRunner(folder, threads=1)


@pytest.fixture(scope="module")
def exported(make_once, tmp_path_factory):
    made = {}

    def of(kind):
        if kind not in made:
            scorer, answer = PAIRS[kind]
            world = make_once(kind, scorer, answer, exits=EXITS[kind])
            example = None if kind == "text" else world.inputs(3)
            folder = tmp_path_factory.mktemp(kind) / "export"
            made[kind] = Exported(world, export(world.network, world.policy, folder, example))
        return made[kind]

    return of


def near(world, policy, inputs):
    """Samples that rounding may send to another exit, and where the simulation sends them."""
    ledger = world.ledger(inputs)
    scores = trace(policy.answer, policy.scorer, ledger).scores
    # Patience compares predictions, and two classes may be equal but for rounding.
    top = policy.answer.answers(ledger.logits).topk(2, dim=2).values
    tied = ((top[..., 0] - top[..., 1]) < 1e-4).any(1)
    exits = exits_taken(scores, policy.thresholds).long()
    return near_threshold(scores, policy.thresholds) | tied, exits


def agreement(one, other, unsure):
    """Assert that two outputs agree but for unsure samples; return how many of them do not."""
    differs = one.exits != other.exits
    assert not (differs & ~unsure).any()
    same = ~differs
    torch.testing.assert_close(one.logits[same], other.logits[same], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.scores[same], other.scores[same], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.confidence[same], other.confidence[same], rtol=0, atol=1e-3)
    assert torch.equal(one.costs[same], other.costs[same])
    clear = same & ((other.confidence - 0.5).abs() > 1e-3)
    assert torch.equal(one.likely_wrong[clear], other.likely_wrong[clear])
    return int(differs.sum())


@pytest.mark.parametrize("kind", PAIRS)
def test_the_export_the_runner_and_the_simulation_decide_alike(exported, kind, record_property):
    made = exported(kind)
    world, inputs = made.world, made.world.inputs(64)
    changed, leaving = 0, set()
    for budget in BUDGETS[EXITS[kind]]:
        runner = Runner(world.network, world.policy.at(budget=budget))
        made.runner.set_budget(budget)
        unsure, simulated = near(world, runner.policy, inputs)
        output = made.runner(inputs)
        changed += agreement(output, runner(inputs), unsure)
        assert not ((output.exits != simulated) & ~unsure).any()
        leaving |= set(output.exits.tolist())
    record_property(f"{kind}: changed within rounding of a threshold, of 192", changed)
    assert len(leaving) > 1  # or nothing was tested


@pytest.mark.parametrize(
    ("scorer", "answer"),
    [
        (offramp.ValueOfContinuing(hidden=4, epochs=1), offramp.ClassWiseEnsemble()),
        (offramp.ExitUtility(hidden=4, epochs=1), offramp.StackingNetwork(k=2, hidden=4)),
    ],
    ids=["value", "utility"],
)
def test_small_networks_decide_alike_in_a_graph(make_once, tmp_path, scorer, answer):
    world = make_once("flat", scorer, answer, exits=3)
    exported = OnnxRunner(
        export(world.network, world.policy, tmp_path, world.inputs(3)), threads=1
    )
    inputs = world.inputs(40)
    unsure, _ = near(world, world.policy, inputs)
    output = exported(inputs)
    agreement(output, Runner(world.network, world.policy)(inputs), unsure)
    assert len(set(output.exits.tolist())) > 1  # or nothing was tested


@hypothesis.settings(max_examples=15, derandomize=True)
@hypothesis.given(
    kind=st.sampled_from(sorted(PAIRS)),
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


@pytest.mark.parametrize("kind", ["conv", "text"])
def test_a_sample_alone_is_answered_as_in_a_batch(exported, kind):
    made = exported(kind)
    inputs = made.world.inputs(6)
    unsure, _ = near(made.world, made.world.policy.at(budget=0.7), inputs)
    made.runner.set_budget(0.7)
    together = made.runner(inputs)
    for row in range(6):
        one = {k: v[row : row + 1] for k, v in inputs.items()} if kind == "text" else None
        alone = made.runner(inputs[row : row + 1] if one is None else one)
        agreement(alone, together[slice(row, row + 1)], unsure[row : row + 1])


def test_arrays_are_taken_like_tensors(exported):
    made = exported("conv")
    inputs = made.world.inputs(5)
    assert torch.equal(made.runner(inputs.numpy()).logits, made.runner(inputs).logits)


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


def test_time_that_is_up_forces_the_exit_that_was_reached(exported):
    made = exported("conv")
    late = OnnxRunner(made.folder, clock=iter(range(100)).__next__)
    output = late(made.world.inputs(8), deadline=0.5)
    assert output.exits.tolist() == [0] * 8
    limit = late.thresholds[0]
    assert not output.likely_wrong[output.scores < limit].any()  # not stopped as hopeless
    with pytest.raises(ConfigError, match="positive number of seconds, got 0"):
        late(made.world.inputs(8), deadline=0)


def test_the_budget_moves_along_the_stored_points(exported):
    made = exported("conv")
    costs = []
    for budget in (0.4, 0.9):
        made.runner.set_budget(budget)
        expected = made.world.policy.at(budget=budget).thresholds
        assert torch.equal(made.runner.thresholds, expected)  # bit by bit
        costs.append(made.runner(made.world.inputs(64)).costs.mean())
    assert costs[0] < costs[1]
    with pytest.raises(BudgetError, match="`budget` must lie in"):
        made.runner.set_budget(0.01)


def test_the_description_says_everything_bit_by_bit(exported):
    made = exported("conv")
    manifest, policy = Manifest.read(made.folder), made.world.policy
    for name, value in policy.points.tensors().items():
        assert torch.equal(getattr(manifest.points, name), value.double()), name
    assert torch.equal(manifest.costs, policy.cost_shares)
    assert manifest.network == made.world.network.fingerprint()
    assert manifest.selected == policy.selected


def test_other_shapes_are_refused(exported):
    with pytest.raises(NetworkError, match=r"shape \[3, 8, 8\], got \[3, 9, 8\]: resize"):
        exported("conv").runner(torch.zeros(2, 3, 9, 8))


def test_an_export_replaces_the_older_one_and_nothing_else(exported, tmp_path):
    made = exported("nested")
    folder = shutil.copytree(made.folder, tmp_path / "export")
    (folder / "notes.txt").write_text("mine")
    old = {path.name for path in folder.glob("*.onnx")}
    export(made.world.network, made.world.policy, folder, made.world.inputs(3))
    new = {path.name for path in folder.glob("*.onnx")}
    assert len(new) == 2 and not new & old
    assert (folder / "notes.txt").read_text() == "mine"


class Strange(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x  # a graph cannot look at values


def test_what_cannot_be_exported_is_named_and_leaves_nothing_behind(make, tmp_path):
    world = make("flat", exits=2)
    world.network.stages[1] = Strange()
    world.policy.network = world.network.fingerprint()
    with pytest.raises(NetworkError, match=r"exit 1 \(stages.1\) cannot be written as an ONNX"):
        export(world.network, world.policy, tmp_path / "out", world.inputs(3))
    assert list((tmp_path / "out").iterdir()) == []


def test_an_export_does_not_overwrite_a_policy(make, tmp_path):
    world = make("flat", exits=2)
    world.policy.save(tmp_path / "policy")
    with pytest.raises(FileFormatError, match="it holds a policy; choose another folder"):
        export(world.network, world.policy, tmp_path / "policy", world.inputs(3))


CORRUPTIONS = {
    "../stage.onnx": ("stages.0.file", "`file` must be a bare name"),
    "/etc/passwd.onnx": ("stages.0.file", "`file` must be a bare name"),
    "a\\b.onnx": ("stages.0.file", "`file` must be a bare name"),
    "..onnx": ("stages.0.file", "`file` must be a bare name"),
    "stage-0.pkl": ("stages.0.file", "`file` must be a bare name"),
    "missing.onnx": ("stages.0.file", "is missing, though the description names it"),
    "0" * 64: ("stages.0.sha256", "is truncated or was replaced"),
    "beef": ("stages.0.sha256", "`sha256` must be 64 hexadecimal digits, got 'beef'"),
}


def corrupted(folder, place, value):
    description = json.loads((folder / "export.json").read_text())
    *way, last = place.split(".")
    part = description
    for key in way:
        part = part[int(key) if key.isdigit() else key]
    part[int(last) if last.isdigit() else last] = value
    (folder / "export.json").write_text(json.dumps(description))


@pytest.mark.parametrize("value", CORRUPTIONS)
def test_files_that_are_not_the_exports_own_are_refused(exported, tmp_path, value):
    place, message = CORRUPTIONS[value]
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    corrupted(folder, place, value)
    with pytest.raises(FileFormatError, match=message):
        OnnxRunner(folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("stages", [], "`stages` must be a list of dict, and not empty"),
        ("stages.0.bytes", True, "`bytes` must be positive, got True"),
        ("stages.0.state", [[None]], "`state` must be lists of names and positions"),
        ("num_classes", "3", "`num_classes` must be positive, got '3'"),
        ("exit_names", ["only"], r"`costs` must be numbers in the shape \[1\]"),
        ("selected", 9999, "`selected` must be one of the 201 operating points, got 9999"),
        ("costs.0", "nan", "`costs` must be numbers, got"),
        ("costs.0", "-0x1p+0", "`costs` must be positive and increase"),
        ("costs.0", 0.5, "`costs` must be hexadecimal floats, such as 0x1.8p"),
        ("points.thresholds.0", "0x1p+0", "`thresholds` must be lists of numbers"),
        ("points.thresholds.0.0", "nan", "`thresholds` must be numbers, got"),
        ("points.thresholds.0.0", "0x1p+99999", "`thresholds` must be hexadecimal floats"),
        ("inputs", {"kind": "os.system"}, "unknown inputs"),
        ("version", 99, "has format version 99, and this offramp reads version 1"),
        ("format", "offramp-policy", "was not written by offramp as a export"),
    ],
)
def test_a_damaged_description_is_refused(exported, tmp_path, place, value, message):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    corrupted(folder, place, value)
    with pytest.raises(FileFormatError, match=message):
        OnnxRunner(folder)


def test_a_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"no export at .*: export.json is missing"):
        OnnxRunner(tmp_path)


def replaced(folder, content):
    """Put another graph in the place of the first, with a description that vouches for it."""
    stage = json.loads((folder / "export.json").read_text())["stages"][0]
    (folder / stage["file"]).write_bytes(content)
    corrupted(folder, "stages.0.bytes", len(content))
    corrupted(folder, "stages.0.sha256", hashlib.sha256(content).hexdigest())


def test_a_graph_that_asks_for_other_files_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    stage = Manifest.read(folder).stages[0]
    model = onnx.load_model(folder / stage.file)
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "../../../../etc/passwd")
    replaced(folder, model.SerializeToString())
    with pytest.raises(FileFormatError, match="names data in another file, which is never opened"):
        OnnxRunner(folder)


def test_a_file_that_is_no_graph_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    replaced(folder, b"import os")
    with pytest.raises(FileFormatError, match=r"is not an ONNX graph|cannot be run by ONNX"):
        OnnxRunner(folder)


def test_a_graph_of_another_stage_is_refused(exported, tmp_path):
    made = exported("conv")
    folder = shutil.copytree(made.folder, tmp_path / "export")
    last = Manifest.read(folder).stages[-1]
    replaced(folder, (folder / last.file).read_bytes())
    with pytest.raises(FileFormatError, match="must have the inputs state_0, got state_0, logits"):
        OnnxRunner(folder)


def test_inspect_describes_an_export(exported):
    facts, exits = report.inspect(exported("conv").folder)
    assert "201" in [cell.text for row in facts.rows for cell in row]
    assert [row[0].text for row in exits.rows] == ["stages.0", "stages.1", "stages.2"]


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
    runner = OnnxRunner(export(network, policy, tmp_path), threads=1)
    images = torch.randn(32, 3, 16, 16)
    ledger = offramp.record(network, TensorDataset(images, torch.zeros(32).long()), "test")
    scores = trace(policy.answer, policy.scorer, ledger).scores
    unsure = near_threshold(scores, policy.thresholds)
    agreement(runner(images), Runner(network, policy)(images), unsure)


def test_the_command_writes_an_export(tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = offramp.build("convnet", 4, 8, at=["blocks.0"]).eval()
    data = TensorDataset(torch.randn(60, 3, 8, 8), torch.arange(60) % 4)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    network.save(tmp_path / "network")
    policy.save(tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["export", "network", "policy", "--budget", "0.9"])
    assert run.exit_code == 0, run.output
    assert "2 graphs and export.json written to export/" in run.output
    assert torch.equal(OnnxRunner("export").thresholds, policy.at(budget=0.9).thresholds)
