"""Small made-up ledgers for all tests."""

import pytest
import torch

from offramp import synthetic

torch.set_num_threads(1)  # two threads per worker fight for the cores


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def splits():
    """Small made-up ledgers with structure."""
    return synthetic.ledgers(seed=0, samples=600, exits=5, classes=10)
