"""The multi-scale dense network (Huang et al. 2018), which no library has.

Feature maps of several scales, finest first, are carried side by side. A layer adds channels to
each scale: half from the same scale, half from the next finer one through a convolution of
stride 2. Exits read the coarsest scale. The finest scale is dropped after every equal share of
the layers, and a 1x1 convolution then reduces the channels of those that remain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp import check
from offramp.errors import NetworkError
from offramp.networks.architectures.blocks import (
    SMALL_IMAGE,
    BlockNetwork,
    convolution,
    first_layers,
    initialize_convolutions,
)
from offramp.networks.heads import Pool, TwoConvHead
from offramp.networks.inputs import ImageInput
from offramp.networks.state import State, leaf_at

StepMode = Literal["even", "lin_grow"]


def _grown(before: int, after: int, factor: int, stride: int, bottleneck: bool) -> nn.Sequential:
    """A 3x3 convolution, behind a 1x1 one that narrows the input to `factor` times the output."""
    if not bottleneck:
        return nn.Sequential(*convolution(before, after, 3, stride))
    inner = min(before, factor * after)
    return nn.Sequential(*convolution(before, inner, 1), *convolution(inner, after, 3, stride))


class FirstLayer(nn.Module):
    """From images to the feature maps of all scales."""

    def __init__(self, channels: int, widths: Sequence[int], image_size: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            [
                nn.Sequential(*first_layers(channels, widths[0], image_size)),
                *(nn.Sequential(*convolution(a, b, 3, stride=2)) for a, b in pairwise(widths)),
            ]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Images to one feature map per scale, finest first."""
        maps = []
        for scale in self.scales:
            x = scale(x)
            maps.append(x)
        return maps


class DenseLayer(nn.Module):
    """Adds `growth` times the scale's factor channels to each remaining scale.

    `width` and `growth` count channels in units of a scale's factor. `factors` belong to the
    incoming scales, finest first; the `drop` finest ones do not go out.
    """

    def __init__(
        self, width: int, growth: int, factors: Sequence[int], drop: int, bottleneck: bool
    ) -> None:
        super().__init__()
        self.drop = drop
        same, down = [], []
        for scale in range(drop, len(factors)):
            factor, added = factors[scale], growth * factors[scale]
            if scale > 0:
                finer = factors[scale - 1]
                added //= 2
                down.append(_grown(width * finer, added, finer, 2, bottleneck))
            same.append(_grown(width * factor, added, factor, 1, bottleneck))
        self.same = nn.ModuleList(same)
        self.down = nn.ModuleList(down)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """From the feature maps of all scales to grown ones of the remaining scales."""
        result = []
        for index, same in enumerate(self.same):
            scale = index + self.drop
            grown = [maps[scale]]
            if scale > 0:
                # Without a dropped scale the finest one has nothing finer to read from.
                grown.append(self.down[scale - max(self.drop, 1)](maps[scale - 1]))
            result.append(torch.cat([*grown, same(maps[scale])], dim=1))
        return result


class Transition(nn.Module):
    """1x1 convolutions that reduce the channels of every scale."""

    def __init__(self, before: int, after: int, factors: Sequence[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(*convolution(before * factor, after * factor, 1)) for factor in factors
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Feature maps of all scales, with fewer channels each."""
        return [scale(x) for scale, x in zip(self.scales, maps, strict=True)]


@dataclass(frozen=True)
class MSDNetShape:
    """The shape of an MSDNet; the defaults are the MSDNet paper's for CIFAR.

    Example:
        >>> MSDNetShape(blocks=4, step_mode="lin_grow").steps
        [1, 2, 3, 4]
    """

    blocks: int = 5  # number of blocks, and so of exits
    # `even`, every block after the first has `step` layers; or `lin_grow`, block i, counted from
    # 0, has `step` i + 1
    step_mode: StepMode = "lin_grow"
    step: int = 1
    base: int = 1  # layers of the first block
    width: int = 16  # channels of the finest scale
    growth: int = 6  # channels that a layer adds at the finest scale
    factors: Sequence[int] = (1, 2, 4)  # of width, growth and bottlenecks, per scale, finest first
    bottleneck: bool = True  # whether 1x1 convolutions come before the 3x3 ones
    reduction: float = 0.5  # share of channels kept where a scale is dropped; 0 for no transition

    def __post_init__(self) -> None:
        check.one_of("step_mode", self.step_mode, ("even", "lin_grow"), NetworkError)
        for name in ("blocks", "step", "base", "width", "growth"):
            check.whole(name, getattr(self, name), 1, NetworkError)
        if any(self.growth * factor % 2 for factor in self.factors[1:]):
            raise NetworkError(
                "half of what a scale grows by comes from the next finer scale: `growth` times "
                f"each factor but the first must be even, got {self.growth} and "
                f"{list(self.factors)}"
            )

    @property
    def steps(self) -> list[int]:
        """Number of layers in each block."""
        even = self.step_mode == "even"
        later = (self.step if even else self.step * index + 1 for index in range(1, self.blocks))
        return [self.base, *later]


class MSDNet(BlockNetwork):
    """MSDNet: dense blocks over several scales, an exit after each; above 64 px a larger stem."""

    pool = Pool("map", leaf=(-1,))

    def __init__(
        self, num_classes: int, image_size: int, shape: MSDNetShape, channels: int = 3
    ) -> None:
        super().__init__()
        self.large = image_size > SMALL_IMAGE
        smallest = 2 ** (len(shape.factors) - 1) * (4 if self.large else 1)
        if image_size % smallest:
            raise NetworkError(
                f"MSDNet with {len(shape.factors)} scales makes the image 1/{smallest} as "
                f"large: `image_size` must be a multiple of {smallest}, got {image_size}"
            )
        stem = FirstLayer(channels, [shape.width * each for each in shape.factors], image_size)
        layers, widths = _layers(shape)
        ends = list(accumulate(shape.steps))
        self.blocks = nn.ModuleList(
            nn.Sequential(*chain.from_iterable(layers[start:end]))
            for start, end in pairwise([0, *ends])
        )
        self.blocks[0].insert(0, stem)  # type: ignore[operator]
        self.classifier = self._head(widths[-1] * shape.factors[-1], num_classes)
        self.inputs = ImageInput(image_size, image_size, channels)
        initialize_convolutions(self)

    def default_head(self, state: State, num_classes: int, exit_index: int) -> TwoConvHead:
        """The paper's classifier, for the coarsest scale as it is at an exit."""
        return self._head(leaf_at(state, (-1,)).shape[1], num_classes)

    def _head(self, width: int, num_classes: int) -> TwoConvHead:
        """With 128 channels on CIFAR, as many as it reads on ImageNet."""
        hidden = width if self.large else 128
        return TwoConvHead(Pool("whole", leaf=(-1,)), width, num_classes, hidden)


def _layers(shape: MSDNetShape) -> tuple[list[list[nn.Module]], list[int]]:
    """The modules of every layer in order, and the width after it in units of a factor."""
    layers: list[list[nn.Module]] = []
    widths: list[int] = []
    width, before = shape.width, len(shape.factors)
    for after, reduces in _scales_after(sum(shape.steps), len(shape.factors)):
        factors = shape.factors[-before:]
        modules: list[nn.Module] = [
            DenseLayer(width, shape.growth, factors, before - after, shape.bottleneck)
        ]
        width += shape.growth
        if reduces and shape.reduction > 0:
            reduced = math.floor(width * shape.reduction)
            modules.append(Transition(width, reduced, shape.factors[-after:]))
            width = reduced
        layers.append(modules)
        widths.append(width)
        before = after
    return layers, widths


def _scales_after(layers: int, scales: int) -> list[tuple[int, bool]]:
    """For every layer the number of scales that it hands on, and whether a transition follows."""
    share = math.ceil(layers / scales)
    result = []
    for layer in range(layers):
        kept = scales - layer // share
        # The last layers hand on only what a later exit can still see.
        seen = min(kept, layers - layer)
        result.append((seen, layer > 0 and kept < scales - (layer - 1) // share))
    return result


def msdnet(num_classes: int, image_size: int, channels: int = 3, **shape: Any) -> MSDNet:  # noqa: ANN401
    """MSDNet in the paper's form for CIFAR, or above 64 px in its form for ImageNet.

    `shape` sets fields of `MSDNetShape`. For large images the defaults are four scales of the
    factors 1-2-4-4, 32 channels and growth 16.
    """
    large = {"width": 32, "growth": 16, "factors": (1, 2, 4, 4)}
    defaults = large if image_size > SMALL_IMAGE else {}
    return MSDNet(num_classes, image_size, MSDNetShape(**{**defaults, **shape}), channels)
