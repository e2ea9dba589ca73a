"""Small networks and data, in processes that use one thread."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from offramp.networks import EarlyExitNetwork, LinearHead, Pool, build
from offramp.training import TrainConfig

torch.set_num_threads(1)


@pytest.fixture
def linear_network():
    """Two linear stages and two linear heads, in float64 so that hand calculations are exact."""
    torch.manual_seed(1)
    network = EarlyExitNetwork(
        [nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)],
        [LinearHead(Pool("flat"), 4, 3) for _ in range(2)],
        num_classes=3,
    )
    return network.double()


@pytest.fixture
def data():
    """64 small images whose class shows in their brightness."""
    torch.manual_seed(2)
    labels = torch.arange(64) % 3
    images = torch.rand(64, 3, 8, 8) * 0.5 + labels.view(-1, 1, 1, 1) * 0.5
    return TensorDataset(images, labels)


@pytest.fixture
def convnet():
    torch.manual_seed(3)
    return build("convnet", num_classes=3, image_size=8, width=4)


@pytest.fixture
def cascade():
    torch.manual_seed(3)
    return build("convnet", num_classes=3, image_size=8, width=4, head="cascade")


@pytest.fixture
def quick():
    return TrainConfig(epochs=3, batch_size=16, learning_rate=0.01, precision="float32")
