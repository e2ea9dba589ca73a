"""What is computed elsewhere than on the CPU: everything reaches the device, and nothing is mixed.

The tests run on a device that pretends, where results must be the CPU's to the last bit, and with
`pytest -m gpu` on a real GPU, where they must be close. The former has a process of its own, since
PyTorch wants to know all devices before it first computes gradients.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import offramp
from offramp import machine
from offramp.arrays import as_numpy
from offramp.cli.app import app
from offramp.data import Augmentation
from offramp.decide import Decider
from offramp.errors import ConfigError
from offramp.files import read_folder
from offramp.networks.attach import stage_seconds
from offramp.runtime import Runner
from offramp.runtime.runner import _decides_on as decides_on
from offramp.timing import BenchConfig, bench
from offramp.training import TrainConfig

from .cli.test_predict_bench import SPLITS
from .deployment import joined_outputs, make_world, split_batch
from .pretend import register

# The function of the same name hides the module.
load_module = import_module("offramp.data.load")
ATTENTION = 1e-5  # error where attention is one operation on the CPU, and several elsewhere


@dataclass(frozen=True)
class Place:
    """A device, and how far results on it may be from the CPU's."""

    name: str
    error: float = 0.0

    def check_close(self, found, expected, least=0.0):
        error = max(self.error, least)
        found, expected = as_numpy(found), as_numpy(expected)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=error, atol=error)

    def check_network(self, network):
        assert {str(each.device) for each in network.state_dict().values()} == {self.name}


def real_gpu():
    found = machine.devices()[0]
    if found == "cpu":
        pytest.skip("no GPU that torch can use")
    return Place(str(machine.find_device(found)), error=2e-3)


IS_PRETENDED = "OFFRAMP_PRETENDED_DEVICE" in os.environ
if IS_PRETENDED:
    register()


@pytest.mark.skipif(IS_PRETENDED, reason="this is that process")
def test_everything_below_on_a_device_that_pretends():
    command = [sys.executable, "-m", "pytest", "-q", "-k", "pretend", __file__]
    child = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={**os.environ, "OFFRAMP_PRETENDED_DEVICE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.returncode == 0, child.stdout
    assert "21 passed" in child.stdout, child.stdout


@pytest.fixture(params=["pretend" if IS_PRETENDED else pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    if request.param == "gpu":
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        return real_gpu()
    # PyTorch cannot ask a device that is written in Python to wait, nor use it in that mode.
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    return Place("pretend:0")


@pytest.fixture
def images():
    labels = torch.arange(48) % 3
    return TensorDataset(torch.rand(48, 3, 8, 8) + 0.5 * labels.view(-1, 1, 1, 1), labels)


def network(name="convnet", **settings):
    torch.manual_seed(3)
    return offramp.build(name, num_classes=3, image_size=8, **settings)


def test_the_device_refuses_tensors_of_the_cpu(place):
    x = torch.rand(3).to(place.name)
    assert str(x.device) == place.name
    torch.testing.assert_close((x * 2 + torch.tensor(1.0)).cpu(), x.cpu() * 2 + 1)
    for mixed in (lambda: x + torch.rand(3), lambda: torch.rand(3) * x):
        with pytest.raises(RuntimeError, match="device"):
            mixed()


TRAININGS = {
    "joint": {"augment": Augmentation(flip=0.5)},
    "gradient-equilibrium": {},
    "distillation": {"freeze_backbone": True},
    "zero-time-waste": {},
}
SETTINGS = {
    "averaging": 0.9,
    "label_smoothing": 0.1,
    "image_sizes": (8, 8),
    "channels_last": True,
}


@pytest.mark.parametrize("objective", TRAININGS)
def test_training_on_a_device_ends_with_the_weights_of_the_cpu(place, images, objective, tmp_path):
    settings = SETTINGS if objective == "joint" else {}
    options = {"epochs": 2, "batch_size": 16, "precision": "float32", "tensorboard": False}
    options |= settings
    head = "cascade" if objective == "zero-time-waste" else None
    here, there = network(head=head), network(head=head)
    chosen = TRAININGS[objective]
    offramp.train(here, images, objective, TrainConfig(device="cpu", **options), **chosen)
    config = TrainConfig(device=place.name, **options)
    history = offramp.train(there, images, objective, config, folder=tmp_path, **chosen)
    place.check_network(there)
    for name, weight in there.state_dict().items():
        place.check_close(weight, here.state_dict()[name])
    written = json.loads((tmp_path / "train.json").read_text())
    assert written["device"] == history.last["device"] == machine.describe_device(there_is(place))
    assert written["precision"] == history.last["precision"] == "float32"


def there_is(place):
    return torch.device(place.name)


class KilledError(Exception):
    pass


@dataclass(frozen=True)
class KillsItself(Augmentation):
    """An augmentation that ends the process after some steps; it is told from none by its name."""

    steps: ClassVar[list[int]] = []

    def __call__(self, *arguments):
        self.steps.append(1)
        if len(self.steps) == 4:
            raise KilledError
        return super().__call__(*arguments)


@pytest.mark.parametrize("precision", ["float16"])  # which has a scale to resume, too
def test_a_killed_run_on_a_device_ends_with_the_same_weights(place, images, precision, tmp_path):
    config = TrainConfig(
        epochs=2,
        batch_size=16,
        device=place.name,
        precision=precision,
        checkpoint_seconds=0,
        tensorboard=False,
    )
    straight, resumed = network(), network()
    KillsItself.steps[:] = range(4)
    offramp.train(straight, images, config=config, augment=KillsItself())
    KillsItself.steps.clear()
    with pytest.raises(KilledError):
        offramp.train(resumed, images, config=config, augment=KillsItself(), folder=tmp_path)
    _, tensors = read_folder(tmp_path / "checkpoint", "checkpoint", 1)
    assert "scaler.scale" in tensors
    history = offramp.train(resumed, images, config=config, augment=KillsItself(), folder=tmp_path)
    assert history.resumed and len(history) == 2
    for name, weight in resumed.state_dict().items():
        place.check_close(weight, straight.state_dict()[name])


NETWORKS = {
    "convnet": {},
    "msdnet": {"blocks": 2, "base": 2, "step": 1},
    "vit": {"width": 8, "depth": 2, "heads": 2, "patch_size": 4},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_ledger_does_not_depend_on_the_device(place, images, name):
    made = network(name, **NETWORKS[name])
    expected = offramp.record(made, images, "val", device="cpu", batch_size=20, progress=False)
    found = offramp.record(made, images, "val", device=place.name, batch_size=20, progress=False)
    place.check_network(made)
    place.check_close(found.logits, expected.logits, ATTENTION if name == "vit" else 0)
    assert np.array_equal(found.costs, expected.costs)
    assert found.recorded_on == f"{machine.describe_device(there_is(place))}, float32"
    assert expected.recorded_on == "cpu, float32"


def test_a_network_on_a_device_stays_there_unless_told_otherwise(place, images):
    made = network().to(place.name)
    ledger = offramp.record(made, images, "val", progress=False)
    assert ledger.recorded_on.startswith(place.name)
    offramp.train(made, images, config=TrainConfig(epochs=1))
    place.check_network(made)
    offramp.record(made, images, "val", device="cpu", progress=False)
    Place("cpu").check_network(made)


@pytest.mark.parametrize("kind", ["cascade", "nested", "text"])
def test_a_runner_decides_on_a_device_as_on_the_cpu(place, kind):
    world = make_world(kind, offramp.Corrector(hidden=4, epochs=1))
    inputs = world.inputs(21)
    here = Runner(world.network, world.policy)
    expected, full = here(inputs), here.full(inputs)
    runner = Runner(deepcopy(world.network), world.policy, device=place.name)
    place.check_network(runner.network)
    assert str(runner.device) == place.name
    streamed = joined_outputs(runner.stream(split_batch(inputs, 5)))
    for output in (runner(inputs), streamed):
        assert np.array_equal(output.exits, expected.exits)
        np.testing.assert_allclose(output.logits, expected.logits, rtol=1e-3, atol=1e-3)
    place.check_close(runner.full(inputs), full, ATTENTION if kind == "text" else 0)
    assert runner(inputs, deadline=1e-9).exits.max() == 0


@dataclass
class OfNumPy(offramp.Scorer):
    """A scorer of one's own that takes arrays of NumPy alone."""

    def score_at(self, history):
        return np.sort(history.answer, axis=1)[:, -1] - np.mean(history.answers, axis=(1, 2))


@pytest.mark.parametrize("kind", ["cascade", "nested"])
@pytest.mark.parametrize("scorer", [offramp.Corrector(hidden=4, epochs=1), OfNumPy()], ids=str)
def test_decisions_are_made_on_the_device_where_a_scorer_can(place, monkeypatch, kind, scorer):
    world = make_world(kind, scorer)
    inputs = world.inputs(21)
    expected = Runner(world.network, world.policy)(inputs)
    runner = Runner(deepcopy(world.network), world.policy, device=place.name)
    given, at_exit = set(), Decider.at_exit

    def noting(self, exit_index, buffer, outputs):
        found = at_exit(self, exit_index, buffer, outputs)
        parts = outputs, buffer.outputs, buffer.answers, *found
        given.update(str(part.device) for part in parts if part is not None)
        return found

    monkeypatch.setattr(Decider, "at_exit", noting)
    output = runner(inputs)
    assert given == {"cpu" if scorer == OfNumPy() else place.name}
    assert torch.equal(output.exits, expected.exits) and len(set(output.exits.tolist())) > 1
    place.check_close(output.logits, expected.logits, 1e-5)
    place.check_close(output.scores, expected.scores, 1e-4)
    assert {each.device.type for each in (output.logits, *output.taken)} == {"cpu"}


def test_numpy_decides_where_a_gpu_lacks_float64():
    policy = make_world("flat").policy
    assert not any(decides_on(torch.device(name), policy) for name in ("mps", "cpu"))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_runs_on_a_device(place, precision, world_of_images):
    world = world_of_images
    runner = Runner(deepcopy(world.network), world.policy, device=place.name, precision=precision)
    output = runner(world.inputs(9))
    assert output.logits.dtype == torch.float32
    exact = Runner(world.network, world.policy)(world.inputs(9))
    torch.testing.assert_close(output.logits, exact.logits, rtol=0.1, atol=0.3)


@pytest.fixture(scope="module")
def world_of_images():
    return make_world("conv")


def test_whatever_is_timed_is_waited_for(place, monkeypatch, world_of_images):
    world, waits = world_of_images, []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: waits.append(str(device)))
    runner = Runner(deepcopy(world.network), world.policy, device=place.name)
    bench(
        runner.network,
        world.policy,
        world.inputs(8),
        None,
        BenchConfig(["torch"], [4], seconds=0),
    )
    assert set(waits) == {place.name}
    waits.clear()
    offramp.profile(runner.network, batch_size=2, inputs=world.inputs(4), seconds=0)
    assert set(waits) == {place.name}
    waits.clear()
    stages = list(runner.network.stages)
    with torch.no_grad():
        stage_seconds(stages, world.inputs(4).to(place.name), turns=1)
    assert waits == [place.name] * (len(stages) + 2)  # before each of them, and around all


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result


def test_every_command_computes_on_the_device_and_says_so_first(place, tmp_path, monkeypatch):
    monkeypatch.setattr(load_module, "load", lambda name, **options: SPLITS)
    run, policy, used = tmp_path / "run", tmp_path / "policy", f"on {place.name} ("
    data = ["--data", "mixture", "--batch-size", 16, "--device"]

    command = ("train", "--network", "convnet", "--epochs", 1, "--out", run, *data, place.name)
    found = call(*command, "--precision", "float32")
    assert found.stderr.startswith(f"training {used}")
    found = call("record", run, "--device", place.name)
    assert found.stderr.startswith(f"recording held_out {used}")
    call("fit", run / "ledgers", "--method", "baseline", "--budget", 0.6, "--out", policy)
    found = call("predict", run, policy, "--device", place.name, "--limit", 5)
    assert found.stderr.startswith(f"running {used}")
    found = call(
        *("bench", run, policy, "--device", place.name, "--seconds", 0.1),
        *("--runtimes", "torch", "--batch-sizes", 4, "--no-cuts"),
    )
    assert found.stderr.startswith(f"running {used}")


@pytest.mark.gpu
def test_a_server_answers_from_a_gpu(tmp_path):
    """Not on the pretended device, which the server's processes do not know."""
    place = real_gpu()
    made = network()
    data = TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 3)
    held_out, val, _ = offramp.record(made, data, "all", device="cpu", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    made.save(tmp_path / "network")
    policy.at(budget=0.7).save(tmp_path / "policy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"-m offramp serve {tmp_path}/network {tmp_path}/policy --port {port}"
    process = subprocess.Popen(
        [sys.executable, *command.split(), "--device", place.name], stderr=subprocess.PIPE
    )
    try:
        body = json.dumps({"inputs": data[0][0].tolist()}).encode()
        answer = ask(f"http://127.0.0.1:{port}/predict", body, process)
        expected = Runner(made, policy.at(budget=0.7))(data[0][0][None])
        assert answer["class"] == int(expected.predictions[0])
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, printed = process.communicate(timeout=60)
    assert f"serving on {place.name}" in printed.decode()


def ask(address, body, process):
    until = time.monotonic() + 240
    while time.monotonic() < until and process.poll() is None:
        try:
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            return json.load(urllib.request.urlopen(request))
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not answer")


def test_a_device_that_is_not_there_is_refused(images):
    for name in ("cuda:99", "gpu", "meta", "cpu:x", ""):
        with pytest.raises(
            ConfigError, match=r"`device` must be auto or one of .*cpu on this mach"
        ):
            machine.find_device(name)
    with pytest.raises(ConfigError, match="got 'cuda:99'; offramp doctor says which GPUs"):
        offramp.record(network(), images, "val", device="cuda:99", progress=False)
    with pytest.raises(ConfigError, match="got 'cuda:99'"):
        offramp.train(network(), images, config=TrainConfig(device="cuda:99"))
