"""A run that is killed at any moment is resumed to bitwise the same weights."""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from offramp.errors import ConfigError, FileFormatError
from offramp.files import write_sealed
from offramp.networks import build
from offramp.registry import OBJECTIVES
from offramp.training import TrainConfig, train
from offramp.training.checkpoint import RunFiles

SCRIPT = Path(__file__).with_name("run_training.py")


def start(folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OFFRAMP_SLOWLY": "1"}
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder, "interrupted"], env=environment, stderr=subprocess.PIPE
    )


def place(folder):
    path = folder / "checkpoint" / "checkpoint.json"
    return json.loads(path.read_text())["place"] if path.exists() else {"epoch": -1, "step": 0}


def wait_for(folder, epoch, step):
    deadline = time.monotonic() + 180
    while (now := place(folder)) and (now["epoch"], now["step"]) < (epoch, step):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def fingerprint(folder):
    return json.loads((folder / "result-0.json").read_text())["network"]["fingerprint"]


def test_killed_runs_end_with_the_same_weights(tmp_path):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    pieces.mkdir()
    process = start(pieces)
    run = runpy.run_path(str(SCRIPT))["main"]
    run(whole, "interrupted")
    wait_for(pieces, epoch=1, step=3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    run(pieces, "interrupted")
    assert fingerprint(pieces) == fingerprint(whole)
    first, second = (
        [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        for folder in (whole, pieces)
    )
    assert [r["accuracy"] for r in first] == [r["accuracy"] for r in second]
    assert [r["loss"] for r in first] == [r["loss"] for r in second]


class Killed(BaseException):
    pass


def with_dropout():
    torch.manual_seed(3)
    network = build("convnet", num_classes=3, image_size=8, width=4, head="cascade")
    network.stages[1].append(nn.Dropout(0.2))
    return network


@pytest.mark.parametrize(
    ("objective", "freeze", "averaging"),
    [*((name, False, 0.9) for name in OBJECTIVES), ("joint", False, 0.0), ("joint", True, 0.9)],
)
def test_every_objective_goes_on_from_every_checkpoint(
    objective, freeze, averaging, data, tmp_path, monkeypatch
):
    config = TrainConfig(
        averaging=averaging,
        head_rate=2.0,
        epochs=2,
        batch_size=20,
        learning_rate=0.01,
        checkpoint_seconds=0,
        channels_last=True,
        tensorboard=False,
    )
    whole = with_dropout()
    train(whole, data, objective, config, freeze_backbone=freeze)
    save, lives = RunFiles.save, 4

    def save_and_die(self, *content):
        nonlocal lives
        save(self, *content)
        lives -= 1
        if not lives:
            lives = 4
            raise Killed

    monkeypatch.setattr(RunFiles, "save", save_and_die)
    for _ in range(20):
        network = with_dropout()
        try:
            history = train(
                network, data, objective, config, folder=tmp_path, freeze_backbone=freeze
            )
        except Killed:
            continue
        break
    assert history.resumed
    assert network.fingerprint() == whole.fingerprint()


class Jittered(Dataset):
    """Images that are read with noise, from all sources of randomness that there are."""

    def __init__(self, data):
        self.images, self.labels = data.tensors

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, position):
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return self.images[position] + 0.1 * noise, self.labels[position]


class Listed(TensorDataset):
    """The positions that were asked for, in batches."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.asked = []

    def batch(self, index):
        self.asked += index.tolist()
        return self[index]


def test_a_run_goes_on_with_any_number_of_workers(data, tmp_path, monkeypatch):
    config = TrainConfig(epochs=2, batch_size=8, checkpoint_seconds=0, tensorboard=False)
    data, whole = Jittered(data), with_dropout()
    train(whole, data, config=config)
    deaths = iter([3, 9, 1])  # in the middle of epochs
    save, steps = RunFiles.save, 0

    def save_and_die(self, *content):
        nonlocal steps
        save(self, *content)
        steps -= 1
        if not steps:
            raise Killed

    monkeypatch.setattr(RunFiles, "save", save_and_die)
    for workers in (2, 0, 1):
        steps = next(deaths)
        with pytest.raises(Killed):
            train(with_dropout(), data, config=replace(config, workers=workers), folder=tmp_path)
        assert place(tmp_path)["step"] > 0
    steps, network = 0, with_dropout()
    history = train(network, data, config=replace(config, workers=2), folder=tmp_path)
    assert history.resumed
    assert network.fingerprint() == whole.fingerprint()


def test_what_was_trained_on_before_is_not_read_again(data, tmp_path, monkeypatch):
    config = TrainConfig(epochs=1, batch_size=8, patience=None, checkpoint_seconds=0)
    listed = Listed(*data.tensors)
    save = RunFiles.save

    def save_and_die(self, where, *content):
        save(self, where, *content)
        if where.step == 3 and len(listed.asked) == 24:
            raise Killed

    monkeypatch.setattr(RunFiles, "save", save_and_die)
    with pytest.raises(Killed):
        train(with_dropout(), listed, config=config, folder=tmp_path)
    train(with_dropout(), listed, config=config, folder=tmp_path)
    assert sorted(listed.asked) == list(range(64))


def test_a_finished_run_is_not_run_again(convnet, data, quick, tmp_path):
    train(convnet, data, config=quick, folder=tmp_path)
    torch.manual_seed(9)
    other = build("convnet", num_classes=3, image_size=8, width=4)
    history = train(other, data, config=quick, folder=tmp_path)
    assert history.resumed
    assert len(history) == quick.epochs
    assert other.fingerprint() == convnet.fingerprint()


def test_a_folder_with_another_run_is_refused(convnet, data, quick, tmp_path):
    train(convnet, data, config=quick, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"objective.*use the same ones to resume it"):
        train(convnet, data, "distillation", quick, folder=tmp_path)
    other = TrainConfig(epochs=3, batch_size=16, learning_rate=0.02)
    with pytest.raises(ConfigError, match=r"learning_rate: 0.01 there, 0.02 here"):
        train(convnet, data, config=other, folder=tmp_path)
    wider = build("convnet", num_classes=3, image_size=8, width=8)
    with pytest.raises(ConfigError, match="network: "):
        train(wider, data, config=quick, folder=tmp_path)


def test_a_damaged_checkpoint_is_refused(convnet, data, quick, tmp_path):
    train(convnet, data, config=quick, folder=tmp_path)
    path = tmp_path / "checkpoint" / "checkpoint.json"
    meta = json.loads(path.read_text())
    del meta["place"]
    write_sealed(path, meta)
    with pytest.raises(FileFormatError, match="is not a complete checkpoint"):
        train(convnet, data, config=quick, folder=tmp_path)
    (next((tmp_path / "checkpoint").glob("*.safetensors"))).write_bytes(b"")
    with pytest.raises(FileFormatError, match="truncated"):
        train(convnet, data, config=quick, folder=tmp_path)


def test_a_checkpoint_without_a_tensor_is_refused(convnet, tmp_path):
    from offramp.training.checkpoint import fill

    with pytest.raises(FileFormatError, match="the checkpoint does not fit this network"):
        fill(convnet, {}, "network.")


def test_no_pickle_is_written(convnet, data, quick, tmp_path):
    train(convnet, data, config=quick, folder=tmp_path)
    kinds = {path.suffix for path in (tmp_path / "checkpoint").iterdir()}
    assert kinds == {".json", ".safetensors"}
