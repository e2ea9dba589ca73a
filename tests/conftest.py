import os
from pathlib import Path

import hypothesis
import pytest
import torch

from offramp import synthetic
from offramp.ledger_files import load_ledgers

# Two threads per worker fight for the cores, which makes small problems far slower.
torch.set_num_threads(1)

# Fits take a second or so where the machine is busy; a test's time is not what is tested.
hypothesis.settings.register_profile("offramp", deadline=None, max_examples=40)
hypothesis.settings.load_profile("offramp")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def splits():
    """Small made-up ledgers with structure."""
    return synthetic.ledgers(seed=0, samples=600, exits=5, classes=10)


@pytest.fixture(scope="session")
def real_splits():
    """The real nine-exit CIFAR-100 network's ledgers, where they are at hand."""
    root = os.environ.get("OFFRAMP_DATA")
    folder = Path(root or "") / "ledgers" / "cifar100-thin"
    if not root or not folder.is_dir():
        pytest.skip("OFFRAMP_DATA has no ledgers/cifar100-thin")
    return load_ledgers(folder, network="cifar100-thin")
