"""The rivals keep the library's promises, and are found by their names as plug-ins."""

import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from offramp import OnnxRunner, Policy, Runner, compare, export
from offramp.answers import ClassWiseEnsemble
from offramp.methods import find_methods
from offramp.networks import build
from offramp.record import record
from offramp.testing import check_answer, check_scorer, check_threshold_method
from offramp_paper.rivals import (
    BEYOND,
    ExitUtility,
    Gates,
    PerformanceControl,
    StackingNetwork,
    assigned_sweep,
)


@pytest.mark.parametrize("scorer", [ExitUtility(), Gates(), PerformanceControl()], ids=str)
def test_scorers_keep_every_promise(scorer):
    check_scorer(scorer)


def test_the_answer_and_the_thresholds_keep_every_promise():
    check_answer(StackingNetwork())
    check_threshold_method(assigned_sweep)


def test_every_method_is_found_by_its_name():
    for name in ("pcee", "eenet", "gates", "stacking", "eefp-stacking"):
        assert [each.name for each in find_methods([name], num_classes=10)] == [name]
    assert [each.name for each in find_methods(["beyond"], num_classes=10)] == list(BEYOND)


def test_methods_and_thresholds_of_the_package_are_compared(splits):
    methods = ["pcee", "gates", "baseline:assigned"]
    table = compare(*splits.values(), methods=methods, seeds=2, resamples=20)
    assert [len(method.curves) for method in table.methods] == [1, 2, 1]


def test_the_command_line_knows_them():
    code = "from offramp.registry import check_methods; check_methods(['beyond', 'eefp:assigned'])"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("scorer", "answer"),
    [
        (Gates(hidden=4, epochs=1, history=True), ClassWiseEnsemble()),
        (ExitUtility(hidden=4, epochs=1), StackingNetwork(k=2, hidden=4)),
    ],
    ids=["gates", "utility"],
)
def test_a_graph_decides_as_the_runner_does(scorer, answer, tmp_path):
    network = build("convnet", num_classes=4, image_size=16, width=4, depth=2)
    images, labels = torch.rand(240, 3, 16, 16), torch.randint(4, (240,))
    held_out, val = (
        record(network, TensorDataset(images[rows], labels[rows]), split, progress=False)
        for split, rows in (("held_out", slice(120)), ("val", slice(120, 240)))
    )
    policy = Policy(scorer, answer).fit(held_out).tune(val).at(budget=0.7)
    folder = export(network, policy, tmp_path / "onnx", images[:3], full=False)
    here, there = Runner(network, policy)(images), OnnxRunner(folder, threads=1)(images)
    assert (here.exits == there.exits).double().mean() > 0.95  # logits differ in their last digits
    assert len(here.exits.unique()) > 1
