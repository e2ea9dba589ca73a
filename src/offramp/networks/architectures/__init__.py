"""The architectures that `offramp.build` makes by name: one module each, and a line below."""

from collections.abc import Callable

from torch import nn

from offramp.networks.architectures.convnet import ConvNet
from offramp.networks.architectures.efficientnet import EfficientNet, efficientnet_b2
from offramp.networks.architectures.msdnet import msdnet
from offramp.networks.architectures.resnet import resnet18, resnet34, thin_resnet
from offramp.networks.architectures.vit import vit_mini, vit_small, vit_tiny

__all__ = ["ARCHITECTURES"]

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "resnet34": resnet34,
    "resnet18": resnet18,
    "vit-mini": vit_mini,
    "vit-tiny": vit_tiny,
    "vit-small": vit_small,
    "efficientnet-b0": EfficientNet,
    "efficientnet-b2": efficientnet_b2,
    "msdnet": msdnet,
    "thin-resnet": thin_resnet,
    "convnet": ConvNet,
}
"""By name; each is built from a number of classes and an image size alone."""
