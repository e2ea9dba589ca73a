"""An experiment that runs in seconds, and small stand-ins for the shipped ledgers."""

import pytest

from offramp import Costs, Ledger, synthetic, zoo
from offramp_paper.experiments.run import Options

from .tiny import tiny_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """One finished run of the tiny experiment, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, tiny_run(folder)


@pytest.fixture
def shipped(monkeypatch):
    """Small made-up ledgers in place of the shipped ones, with costs in MACs."""
    made = synthetic.ledgers(seed=0, samples=400, exits=4, classes=20)
    costs = Costs(stages=(4e6, 4e6, 4e6, 4e6), heads=(1e3, 1e3, 1e3, 1e3))
    ledgers = {}
    for split, each in made.items():
        ids = [f"{split}-{number}" for number in range(len(each))]
        ledgers[split] = Ledger(
            each.logits, each.labels, costs, split=split, network="made-up", sample_ids=ids
        )
    monkeypatch.setattr(zoo, "cifar100", lambda: {**ledgers, "network": None})
    return ledgers


@pytest.fixture
def options(tmp_path):
    """Options for a run in seconds, below a folder of its own."""
    places = {"out": tmp_path / "out", "networks": tmp_path / "networks"}
    return Options(**places, seeds=1, resamples=20)
