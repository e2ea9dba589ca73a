"""What an export writes, and what it refuses to read."""

import hashlib
import json
import shutil
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import offramp
from offramp import report
from offramp.cli.app import app
from offramp.errors import ConfigError, FileFormatError, NetworkError
from offramp.files import write_sealed
from offramp.onnx import OnnxRunner, export
from offramp.onnx.cut import NotCuttableError, Traced
from offramp.onnx.export import Tracing, _own_files
from offramp.onnx.manifest import Manifest
from offramp.progress import Progress
from offramp.timing.runners import plain_policy

exporting = import_module("offramp.onnx.export")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


def test_the_policy_in_an_export_is_the_one_that_was_exported(exported):
    made = exported("conv")
    manifest, policy = Manifest.read(made.folder), made.world.policy
    loaded = manifest.load_policy(made.folder)
    assert loaded.fingerprint() == policy.fingerprint() == manifest.policy
    assert np.array_equal(loaded.thresholds, policy.thresholds)
    assert np.array_equal(loaded.cost_shares, policy.cost_shares)
    assert (loaded.selected, loaded.network) == (policy.selected, manifest.network)
    assert manifest.network == made.world.network.fingerprint()
    assert manifest.reads_outputs == (False,) * 3


def names_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_an_export_replaces_the_older_one_and_nothing_else(exported, make, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    older = names_in(folder)
    (folder / "policy-mine").mkdir()
    for name in ("notes.txt", "policy-mine/notes.txt"):
        (folder / name).write_text("mine")
    corrupted(folder, "version", 1)  # an export that can no longer be read is replaced, too
    world = make("flat", exits=2)
    export(world.network, world.policy, folder, world.inputs(3), full=False)
    manifest = Manifest.read(folder)
    (tensors,) = (folder / manifest.policy_folder).glob("*.safetensors")
    policy = {f"{manifest.policy_folder}/{name}" for name in ("policy.json", tensors.name)}
    graphs = {graph.file for graph in manifest.graphs}
    own = {"export.json", *policy, *graphs}
    assert names_in(folder) == own | {"notes.txt", "policy-mine/notes.txt"}
    assert own & older == {"export.json"}
    assert OnnxRunner(folder, threads=1).policy.fingerprint() == world.policy.fingerprint()


@pytest.mark.parametrize("where", [(Manifest, "write"), (offramp.Policy, "save")], ids=str)
def test_an_interrupted_export_leaves_the_older_one_as_it_is(
    exported, make, tmp_path, monkeypatch, where
):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    before = {name: (folder / name).read_bytes() for name in names_in(folder)}
    folders = [path for path in folder.iterdir() if path.is_dir()]
    world, method = make("flat", exits=2), getattr(*where)

    def interrupted(self, target):
        if method is offramp.Policy.save:
            method(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(*where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(world.network, world.policy, folder, world.inputs(3), full=False)
    assert {name: (folder / name).read_bytes() for name in names_in(folder)} == before
    assert [path for path in folder.iterdir() if path.is_dir()] == folders
    assert OnnxRunner(folder, threads=1).policy.exits == (0, 1, 2)


@pytest.mark.parametrize(
    "older",
    [[], 3, {"policy_folder": 3}, {"policy_folder": ".."}, {"policy_folder": "policy-0/../x"}],
    ids=repr,
)
def test_only_what_an_export_can_have_written_is_replaced(tmp_path, older):
    (tmp_path / "export.json").write_text(json.dumps(older))
    assert _own_files(tmp_path) == []


class Strange(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x  # a graph cannot look at values


@pytest.mark.parametrize("kind", ["conv", "nested", "chain", "cascade", "text"])
def test_a_network_is_traced_once_whatever_graphs_are_cut_out_of_it(
    make, tmp_path, monkeypatch, kind
):
    world, traced = make(kind, exits=4), []
    trace = exporting._content

    def counted(module, what, is_text):
        traced.append(what)
        return trace(module, what, is_text)

    monkeypatch.setattr(exporting, "_content", counted)
    tracing = Tracing(world.network, None if kind == "text" else world.inputs(3))
    policies = [world.policy]
    if kind != "cascade":  # whose heads need all those before
        policies += [plain_policy(world.network, kept) for kept in ([1, 3], [2])]
    for number, policy in enumerate(policies):
        tracing.export(policy, tmp_path / str(number), Progress(), points="all")
        x = world.inputs(5)
        runner = OnnxRunner(tmp_path / str(number), threads=1)
        own = offramp.Runner(world.network, policy)
        assert torch.allclose(runner(x).logits, own(x).logits, atol=1e-4)
        assert torch.allclose(runner.full(x), own.full(x), atol=1e-4)
    assert traced == ["the network"]


def test_a_network_that_cannot_be_cut_is_traced_graph_by_graph(make, tmp_path, monkeypatch):
    def part(*parts):
        raise NotCuttableError("something")

    monkeypatch.setattr(Traced, "part", part)
    world = make("conv", exits=2)
    folder = export(world.network, world.policy, tmp_path / "out", world.inputs(3), progress=False)
    x = world.inputs(5)
    wanted = offramp.Runner(world.network, world.policy)(x).logits
    assert torch.allclose(OnnxRunner(folder)(x).logits, wanted, atol=1e-4)


def test_a_part_of_a_graph_needs_all_that_leads_to_it():
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    described = [helper.make_tensor_value_info(name, kind, None) for name in ("x", "y", "z")]
    nodes = [
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("Add", ["negative", "y"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "whole", described[:2], described[2:])
    traced = Traced(helper.make_model(graph).SerializeToString())
    example = {"state": torch.zeros(2), "out": torch.zeros(2)}
    sizes = {"state": {0: "batch"}}
    with pytest.raises(NotCuttableError, match="y"):
        traced.part({"state": ("negative",)}, {"out": ("z",)}, example, sizes)
    part = traced.part({"state": ("x",)}, {"out": ("negative",)}, example, sizes)
    (node, _) = onnx.load_model_from_string(part).graph.node
    assert (node.op_type, list(node.input)) == ("Neg", ["state"])


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


def test_an_export_is_not_written_among_somebodys_own_files(make, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    world = make("flat", exits=2)
    with pytest.raises(FileFormatError, match=r"holds other things .thesis.tex. and no export"):
        export(world.network, world.policy, tmp_path, world.inputs(3))
    assert names_in(tmp_path) == {"thesis.tex"}


def test_a_policy_for_answers_without_logits_is_refused_at_once(make, tmp_path):
    world = make("flat", exits=2)
    said = {"confidence": [[0.3, 0.9], [0.8, 0.9]] * 30, "correct": [[False, True]] * 60}
    ledger = offramp.Ledger.from_answers(**said, costs=[1, 2], split="all")
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at_point(0)
    with pytest.raises(NetworkError, match=r"without logits, .* policy.start\(\)"):
        export(world.network, policy, tmp_path / "out", world.inputs(3))
    assert not (tmp_path / "out").exists()


CORRUPTIONS = {
    "../stage.onnx": ("segments.0.graph.file", r"graph.file` must be a text matching regex"),
    "/etc/passwd.onnx": ("segments.0.graph.file", r"graph.file` must be a text matching regex"),
    "a\\b.onnx": ("segments.0.graph.file", r"graph.file` must be a text matching regex"),
    "..onnx": ("segments.0.graph.file", r"graph.file` must be a text matching regex"),
    "stage-0.pkl": ("segments.0.graph.file", r"graph.file` must be a text matching regex"),
    "missing.onnx": ("segments.0.graph.file", "is missing, though the description names it"),
    "0" * 64: ("segments.0.graph.sha256", "is damaged: its content is not what was written"),
    "beef": (
        "segments.0.graph.sha256",
        "graph.sha256` must be a text matching regex",
    ),
}


def corrupted(folder, place, value):
    description = json.loads((folder / "export.json").read_text())
    *way, last = place.split(".")
    part = description
    for key in way:
        part = part[int(key) if key.isdigit() else key]
    part[int(last) if last.isdigit() else last] = value
    write_sealed(folder / "export.json", description)


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
        ("segments", [], "`segments` must be a list of length >= 1"),
        (
            "segments.0.graph.bytes",
            True,
            "graph.bytes` must be a whole number, got true",
        ),
        (
            "segments.0.state",
            [[None]],
            r"state\[0\]\[0\]` must be a whole number or a text",
        ),
        ("segments.0.heads", [9], r"must have exits in order, .* got \[9, 1, 2\]"),
        ("segments.0.heads", [-1], r"must have exits in order, .* got \[-1, 1, 2\]"),
        ("segments.0.heads", [], r"`segments\[0\].heads` must be a list of length >= 1"),
        ("segments.1.heads", [1, 0], r"must have exits in order, .* got \[0, 1, 0, 2\]"),
        ("segments.2.heads", [1], r"and end with the last of the 3, got \[0, 1, 1\]"),
        ("segments.0.graph.outputs", ["logits"], "the graph of exit 0 does not fit the others"),
        ("segments.1.graph.inputs", ["state_0", "x"], "graph of exit 1 does not fit the others"),
        ("exit_names", ["only"], "must have exits in order, and end with the last of the 1"),
        ("reads_outputs", [False], "`reads_outputs` must have 3 values"),
        ("reads_outputs.1", 0, r"`reads_outputs\[1\]` must be true or false, got"),
        ("policy", None, "`policy` must be a text, got nothing"),
        ("policy_folder", "../policy-00000000", "`policy_folder` must be a text matching regex"),
        ("policy_folder", "policy", "`policy_folder` must be a text matching regex"),
        ("inputs", {"kind": "os.system"}, "unknown inputs"),
        ("version", 1, "has format version 1, .* reads version 5; make the export again"),
        ("format", "offramp-policy", "was not written by offramp as an export"),
    ],
)
def test_a_damaged_description_is_refused(exported, tmp_path, place, value, message):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    corrupted(folder, place, value)
    with pytest.raises(FileFormatError, match=message):
        OnnxRunner(folder)


def with_another(change):
    """Replace the policy in a folder by a changed one."""

    def changed(folder):
        policy = offramp.Policy.load(folder)
        (change(policy) or policy).save(folder)

    return changed


def moved(policy):
    points = policy.points
    thresholds = points.thresholds.copy()
    thresholds[7, 0] = np.nextafter(thresholds[7, 0], np.inf)
    return policy.with_points(replace(points, thresholds=thresholds)).at_point(policy.selected)


def refitted(policy):
    policy.scorer.output_biases_ = policy.scorer.output_biases_ + np.float32(1)


def flipped(folder):
    (path,) = folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


REFUSED = {
    "missing": (shutil.rmtree, "no policy at .*policy-[0-9a-f]{8}: there is nothing"),
    "other thresholds": (with_another(moved), "is not the policy that was exported"),
    "another scorer": (with_another(refitted), "is not the policy that was exported"),
    "no point": (
        with_another(lambda policy: policy.with_points(policy.points)),
        "must be at an operating point of 3 exits",
    ),
    "damaged": (flipped, "is damaged: its content is not what was written"),
    "no JSON": (lambda folder: (folder / "policy.json").write_text("{"), "is not valid JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_any_other_policy_than_the_exported_one_is_refused(exported, tmp_path, case):
    change, message = REFUSED[case]
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    change(folder / Manifest.read(folder).policy_folder)
    for read in (OnnxRunner, report.inspect):
        with pytest.raises(FileFormatError, match=message):
            read(folder)


def test_the_folder_of_another_policy_is_refused(exported, make, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    make("conv", exits=3).policy.save(folder / "policy-00000000")
    corrupted(folder, "policy_folder", "policy-00000000")
    with pytest.raises(FileFormatError, match="policy-00000000 is not the policy that was exp"):
        OnnxRunner(folder)


def test_a_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"no export at .*: export.json is missing"):
        OnnxRunner(tmp_path)


def replaced(folder, content):
    """Put another graph in the place of the first, with a description that vouches for it."""
    stage = json.loads((folder / "export.json").read_text())["segments"][0]["graph"]
    (folder / stage["file"]).write_bytes(content)
    corrupted(folder, "segments.0.graph.bytes", len(content))
    corrupted(folder, "segments.0.graph.sha256", hashlib.sha256(content).hexdigest())


def test_a_graph_that_asks_for_other_files_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    stage = Manifest.read(folder).segments[0].graph
    model = onnx.load_model(folder / stage.file)
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "../../../../etc/passwd")
    replaced(folder, model.SerializeToString())
    with pytest.raises(
        FileFormatError, match="refers to data in another file, which is never opened"
    ):
        OnnxRunner(folder)


def test_a_graph_that_is_a_link_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    path = folder / Manifest.read(folder).segments[0].graph.file
    path.rename(tmp_path / "elsewhere.onnx")
    path.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(FileFormatError, match="is a symbolic link out of its folder"):
        OnnxRunner(folder)


def test_points_are_checked_before_anything_is_written(make, tmp_path):
    world = make("flat", exits=2)
    with pytest.raises(ConfigError, match="`points` must be one of selected, all, got 'some'"):
        export(world.network, world.policy, tmp_path / "out", world.inputs(3), points="some")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_graph_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported("conv").folder, tmp_path / "export")
    replaced(folder, b"import os")
    with pytest.raises(FileFormatError, match=r"is not an ONNX graph|cannot be run by ONNX"):
        OnnxRunner(folder)


def test_a_graph_of_another_stage_is_refused(exported, tmp_path):
    made = exported("conv")
    folder = shutil.copytree(made.folder, tmp_path / "export")
    last = Manifest.read(folder).segments[-1].graph
    replaced(folder, (folder / last.file).read_bytes())
    with pytest.raises(FileFormatError, match="must have the outputs next_0, logits, got logits"):
        OnnxRunner(folder)


def test_inspect_describes_an_export(exported):
    facts, exits = report.inspect(exported("conv").folder)
    assert "201" in [cell.text for row in facts.rows for cell in row]
    assert [row[0].text for row in exits.rows] == ["stages.0", "stages.1", "stages.2"]


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
    assert "3 graphs and export.json written to export/" in run.output
    assert np.array_equal(OnnxRunner("export").thresholds, policy.at(budget=0.9).thresholds)
