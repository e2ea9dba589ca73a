"""Stages and heads of a chain: networks that look at the same images one after the other.

On the way through all networks but the last, the state holds the images beside the network's own
state, since the next network begins with them.
"""

from copy import copy
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from offramp.networks.heads import Head, Pool
from offramp.networks.inputs import KEPT
from offramp.networks.state import State

INNER = "inner"  # beside the images: the state of the network that is running


class FirstStage(nn.Module):
    """A network's first stage, which takes the images at the network's own size.

    Args:
        stage: From images to a state.
        size: Height and width of the images that it takes.
        keeps_images: Whether another network comes later.
    """

    def __init__(self, stage: nn.Module, size: tuple[int, int], keeps_images: bool) -> None:
        super().__init__()
        self.stage, self.size, self.keeps_images = stage, size, keeps_images

    def forward(self, state: dict[str, State]) -> State:
        """From `{"images": ...}`, and whatever another network has left beside them."""
        images = cast(Tensor, state[KEPT])
        inner: State = self.stage(at_size(images, self.size))
        return {KEPT: images, INNER: inner} if self.keeps_images else inner


class LaterStage(nn.Module):
    """A stage that leaves the images as they are."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, state: dict[str, State]) -> State:
        """From a state beside images to the next one."""
        return {KEPT: state[KEPT], INNER: self.stage(state[INNER])}


def beside_images(head: Head) -> Head:
    """The same head, with the same weights, for a state beside images."""
    inner = copy(head)
    pool = head.pool
    mask = None if pool.mask is None else (INNER, *pool.mask)
    inner.pool = Pool(pool.kind, (INNER, *pool.leaf), mask)
    return inner


def at_size(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `[n, C, H, W]` at another size; averaged where that fits, which is fastest.

    Example:
        >>> import torch
        >>> at_size(torch.rand(2, 3, 8, 8), (4, 4)).shape
        torch.Size([2, 3, 4, 4])
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    cells = height // size[0], width // size[1]
    if (cells[0] * size[0], cells[1] * size[1]) == (height, width):
        return avg_pool2d(images, cells)
    return interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
