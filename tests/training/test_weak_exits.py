"""After training, exits that are far below a simple alternative are named."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp.errors import WeakExitWarning


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


def corners(samples=400):
    """Images with a bright corner: the mean over all positions cannot tell which one it is."""
    images, labels = 0.1 * torch.rand(samples, 3, 12, 12), torch.arange(samples) % 4
    for number, label in enumerate(labels.tolist()):
        row, column = 6 * (label // 2), 6 * (label % 2)
        images[number, :, row : row + 6, column : column + 6] += 1
    return TensorDataset(images, labels)


def trained(head, epochs, data=None, **settings):
    data = data or corners()
    network = offramp.attach(backbone(), head=head, example=data[:2][0])
    config = offramp.TrainConfig(epochs=epochs, patience=None, device="cpu", **settings)
    offramp.train(network, data, config=config, freeze_backbone=True, progress=False)
    return network


def test_an_exit_near_chance_is_named_with_the_head_that_would_help():
    with pytest.warns(WeakExitWarning, match=r"exit 0 \(1\) is right for .*chance: .*mixed-pool"):
        trained("pooled-linear", 3)


def test_an_exit_that_was_trained_too_little_is_told_to_train_longer():
    with pytest.warns(WeakExitWarning, match=r"exit 0 .*a linear regression for .*--epochs"):
        trained("mixed-pool", 1, learning_rate=1e-6)


@pytest.mark.parametrize("samples", [400, 90])
def test_exits_that_are_as_good_or_samples_that_are_too_few_raise_no_warning(samples):
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakExitWarning)
        trained(None, 30 if samples == 400 else 1, corners(samples), learning_rate=0.05)


def test_tokens_flat_features_and_heads_of_ones_own_are_compared_too():
    class Own(nn.Module):
        reads_logits = False

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, state, before=None):
            return self.linear(state)

    torch.manual_seed(0)
    x = torch.randn(300, 6)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    layers = [nn.Linear(6, 6), nn.Linear(6, 6)]
    network = offramp.attach(layers, num_classes=2, head=lambda *_: Own(), example=x[:2])
    config = offramp.TrainConfig(epochs=1, patience=None, learning_rate=1e-6, device="cpu")
    with torch.no_grad():
        network.heads[0].linear.weight.mul_(-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WeakExitWarning)
        offramp.train(network, data, config=config, freeze_backbone=True, progress=False)
    assert all("exit 0" in str(each.message) for each in caught)
