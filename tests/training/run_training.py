"""A training run in a process of its own, to be killed; or in two processes.

Usage: run_training.py FOLDER MODE, with MODE `interrupted`, `shared`, or `shared-and-killed`, in
which the second of two processes is killed in the end.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from offramp.errors import ConfigError, OfframpError
from offramp.networks import attach
from offramp.record import record
from offramp.training import TrainConfig, train
from offramp.training.processes import Processes

torch.set_num_threads(1)


def make_data(samples=64):
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(samples) % 3
    images = torch.rand(samples, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) * 0.5
    return TensorDataset(images, labels)


def make_network(dropout):
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)]
    if dropout:
        layers[1:1] = [nn.BatchNorm2d(4), nn.Dropout(0.3)]
    return attach(nn.Sequential(*layers), example=torch.rand(2, 3, 8, 8))


def mixup(inputs, labels, num_classes, generator):
    if "OFFRAMP_SLOWLY" in os.environ:  # so that there is time to be killed
        time.sleep(0.02)
    other = torch.randperm(len(labels), generator=generator)
    hot = nn.functional.one_hot(labels, num_classes).float()
    return 0.7 * inputs + 0.3 * inputs[other], 0.7 * hot + 0.3 * hot[other]


def interrupted(folder):
    network = make_network(dropout=True)
    config = TrainConfig(epochs=4, batch_size=8, checkpoint_seconds=0, tensorboard=False)
    train(network, make_data(), "distillation", config, augment=mixup, folder=folder)
    return {"network": network}


def shared(folder):
    """Ten steps of everything, then of frozen heads; and a ledger of untrained weights."""
    whole, frozen, again, untrained = (make_network(dropout=False) for _ in range(4))
    config = TrainConfig(
        epochs=5,
        batch_size=32,
        learning_rate=0.01,
        patience=None,
        precision="float32",
        tensorboard=False,
    )
    train(whole, make_data(), config=config)
    stopping = replace(config, patience=5, stopping_share=0.5, batch_size=16)
    train(frozen, make_data(), config=stopping, freeze_backbone=True, folder=folder / "frozen")
    # The same command again finds a finished run, in all processes.
    train(again, make_data(), config=stopping, freeze_backbone=True, folder=folder / "frozen")
    # Eleven batches, so that one process has none in the last round.
    ledger = record(untrained, make_data(75), split="val", batch_size=7, progress=False)
    ledger.save(folder / f"ledger-{rank()}")
    return {"whole": whole, "frozen": frozen, "again": again}


def killed(folder):
    """First a mistake of the first process alone; then the second dies in mid-training."""

    def fail():
        raise ConfigError("nothing can be written")

    try:
        Processes.here().first(fail)
    except OfframpError as error:
        text = f"{type(error).__name__}: {error}"
        (folder / f"error-{rank()}.txt").write_text(text)

    def end(inputs, labels, num_classes, generator):
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs, labels

    config = TrainConfig(epochs=1, batch_size=32, patience=None)
    train(make_network(dropout=False), make_data(), config=config, augment=end)


def rank():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def main(folder, mode):
    networks = interrupted(folder) if mode == "interrupted" else shared(folder)
    result = {
        name: {
            "fingerprint": network.fingerprint(),
            "weights": {key: tensor.tolist() for key, tensor in network.state_dict().items()},
        }
        for name, network in networks.items()
    }
    (folder / f"result-{rank()}.json").write_text(json.dumps(result))
    if mode == "shared-and-killed":
        killed(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
