"""A network that fits a data set: one way for the command line and for scripts."""

import sys

import pytest
import torch

from offramp.data import ImageData, mixture
from offramp.errors import ConfigError
from offramp.networks import build_for_data
from offramp.networks.architectures.convnet import ConvNet
from offramp.networks.backbones import Origin


def images(channels=3, height=16, width=16):
    pixels = torch.zeros(2, channels, height, width, dtype=torch.uint8)
    labels, ids = torch.tensor([0, 4]), ["a", "b"]
    return ImageData(pixels=pixels, labels=labels, split="train", sample_ids=ids, num_classes=5)


def test_size_channels_and_classes_are_those_of_the_data():
    network = build_for_data("convnet", images(), at=2, head="cascade", width=4)
    assert network.inputs.height == network.inputs.width == 16
    assert (network.num_classes, network.num_exits) == (5, 2)
    grey = ImageData(
        pixels=torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
        labels=torch.tensor([0]),
        split="train",
        sample_ids=["a"],
        num_classes=2,
        normalization=lambda pixels: pixels.float(),
    )
    assert build_for_data("convnet", grey).inputs.channels == 1


def test_weights_follow_the_seed():
    first, again, other = (build_for_data("convnet", images(), seed) for seed in (3, 3, 4))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("data", [mixture().train, images(height=8)], ids=["points", "oblong"])
def test_other_data_than_square_images_are_refused(data):
    with pytest.raises(ConfigError, match="`convnet` takes square images"):
        build_for_data("convnet", data)


def test_exits_are_attached_to_a_pretrained_model_with_the_classes_of_the_data(monkeypatch):
    pretrained = ConvNet(num_classes=10, image_size=16)
    module = sys.modules["offramp.networks.attach"]
    origin = Origin("ConvNet")
    monkeypatch.setattr(module, "pretrained_backbone", lambda name: (pretrained, origin))
    network = build_for_data("owner/model", images(), at=2)
    assert (network.num_classes, network.num_exits) == (5, 2)
    assert network.stages[0][0] is pretrained.blocks[0]
