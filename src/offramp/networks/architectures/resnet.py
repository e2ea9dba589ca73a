"""Residual networks with basic blocks: ResNet-18 and -34, and the thin ones for CIFAR."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.architectures.blocks import (
    SMALL_IMAGE,
    BlockNetwork,
    PooledClassifier,
    first_layers,
    initialize_convolutions,
)
from offramp.networks.inputs import ImageInput


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016, figure 5, left)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C', H', W']`."""
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        return torch.relu(y)


class ResNet(BlockNetwork):
    """A residual network of basic blocks in groups; each group but the first halves the image.

    Up to 64 px the stem is one 3x3 convolution without a max-pool, above it is the usual 7x7 one.
    """

    before = ("stem",)

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        image_size: int,
        channels: int = 3,
    ) -> None:
        super().__init__()
        smallest = 2 ** (len(depths) - 1)
        if image_size < smallest:
            raise NetworkError(
                f"a residual network of {len(depths)} groups halves the image "
                f"{len(depths) - 1} times: `image_size` must be at least {smallest}, got "
                f"{image_size}"
            )
        self.stem = nn.Sequential(*first_layers(channels, widths[0], image_size))
        blocks = []
        before = widths[0]
        for group, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for index in range(depth):
                blocks.append(BasicBlock(before, width, stride=2 if group and not index else 1))
                before = width
        self.blocks = nn.ModuleList(blocks)
        self.classifier = PooledClassifier(before, num_classes)
        self.inputs = ImageInput(image_size, image_size, channels)
        initialize_convolutions(self)


resnet18 = partial(ResNet, (2, 2, 2, 2), (64, 128, 256, 512))
resnet34 = partial(ResNet, (3, 4, 6, 3), (64, 128, 256, 512))


def thin_resnet(
    num_classes: int, image_size: int, channels: int = 3, depth: int = 20, width: int = 16
) -> ResNet:
    """The thin ResNet for CIFAR (He et al. 2016, section 4.2): three groups of (depth - 2) / 6.

    The shortcuts that change the size are 1x1 convolutions, not padded identities. Images have at
    most 64 px; the second and third groups have twice and four times `width` channels.
    """
    if depth < 8 or (depth - 2) % 6:
        raise NetworkError(f"`depth` must be 6 n + 2, such as 20, 32, 44 or 56, got {depth}")
    if image_size > SMALL_IMAGE:
        raise NetworkError(
            f"a thin ResNet is for images of up to {SMALL_IMAGE} px, got {image_size}; resize "
            "them, or build resnet18"
        )
    depths = ((depth - 2) // 6,) * 3
    return ResNet(depths, (width, 2 * width, 4 * width), num_classes, image_size, channels)
