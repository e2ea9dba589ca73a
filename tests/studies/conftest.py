"""A study that runs in seconds, and small stand-ins for the shipped ledgers."""

import pytest
import torch

from offramp import Costs, Ledger, synthetic, zoo

torch.set_num_threads(1)

TINY = """
title = "Tiny"
about = "A study for tests."

[data]
name = "cluttered-digits"
limit = 150

[network]
name = "convnet"
settings = { width = 4, depth = 3 }

[train]
epochs = 2
batch_size = 50
learning_rate = 0.01
patience = "none"
tensorboard = false
checkpoint_seconds = 0

[compare]
methods = ["baseline", "temperature", "eefp"]
seeds = 1
resamples = 20

[corrector]
hidden = 8
epochs = 1
"""


@pytest.fixture(scope="session")
def tiny_text():
    return TINY


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def shipped(monkeypatch):
    """Small made-up ledgers in place of the shipped ones, with costs in MACs."""
    made = synthetic.ledgers(seed=0, samples=400, exits=4, classes=20)
    ids = {split: [f"{split}-{n}" for n in range(len(x))] for split, x in made.items()}
    costs = Costs(stages=(4e6, 4e6, 4e6, 4e6), heads=(1e3, 1e3, 1e3, 1e3))
    ledgers = {
        split: Ledger(
            x.logits, x.labels, costs, split=split, network="made-up", sample_ids=ids[split]
        )
        for split, x in made.items()
    }
    monkeypatch.setattr(zoo, "cifar100", lambda: {**ledgers, "network": None})
    return ledgers
