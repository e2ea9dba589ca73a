"""Corrupted images, to see what a shift of the inputs does: five kinds, each in five strengths."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from offramp.data import ImageData
from offramp.errors import ConfigError

# For each strength, in units of an image's own size where there are any, so that a kind means the
# same at every resolution.
NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, of the range of values
BLUR = (0.012, 0.018, 0.025, 0.035, 0.05)  # standard deviation, of the side
CONTRAST = (0.7, 0.5, 0.35, 0.22, 0.12)  # what is left of it
PIXELS = (0.95, 0.85, 0.7, 0.55, 0.4)  # what is left of the resolution
QUALITY = (40, 25, 15, 10, 6)  # of JPEG


def _noise(pixels: Tensor, strength: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return pixels + NOISE[strength] * torch.randn(pixels.shape, generator=generator)


def _blur(pixels: Tensor, strength: int, seed: int) -> Tensor:
    deviation = BLUR[strength] * pixels.shape[-1]
    reach = max(1, round(3 * deviation))
    weights = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * deviation**2))
    weights = (weights / weights.sum()).expand(3, 1, 1, -1)
    wide = pad(pixels[None], (reach, reach, reach, reach), "replicate")
    return conv2d(conv2d(wide, weights, groups=3), weights.mT, groups=3)[0]


def _contrast(pixels: Tensor, strength: int, seed: int) -> Tensor:
    mean = pixels.mean()
    return mean + CONTRAST[strength] * (pixels - mean)


def _pixelate(pixels: Tensor, strength: int, seed: int) -> Tensor:
    size = [max(1, round(PIXELS[strength] * side)) for side in pixels.shape[-2:]]
    coarse = interpolate(pixels[None], size=size, mode="bilinear", antialias=True)
    return interpolate(coarse, size=pixels.shape[-2:])[0]


def _jpeg(pixels: Tensor, strength: int, seed: int) -> Tensor:
    from PIL import Image

    array = (255 * pixels).round().byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, "JPEG", quality=QUALITY[strength])
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255


_KINDS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
}

CORRUPTIONS = tuple(_KINDS)
"""Kinds of corruption."""

STRENGTHS = (1, 2, 3, 4, 5)
"""How strong a corruption is, from hardly visible to hardly recognisable."""


def corrupted(
    data: ImageData, kind: str, strength: int, image_size: int | None = None
) -> ImageData:
    """The same split with corrupted images, each always in the same way.

    For tests of what a policy does when inputs shift: fit and tune it on clean samples.

    Args:
        data: A split of RGB images.
        kind: `noise`, `blur`, `contrast`, `pixelate` or `jpeg`.
        strength: 1 to 5.
        image_size: Side to enlarge the corrupted images to. A network for images that were
            enlarged knows no noise of single pixels: load them as they are, and enlarge them here.

    Raises:
        ConfigError: An unknown kind or strength.

    Example:
        >>> clean = ImageData(
        ...     pixels=torch.randint(256, (4, 3, 32, 32)).byte(), labels=torch.arange(4),
        ...     split="test", sample_ids=list("abcd"), num_classes=4)
        >>> inputs, labels = corrupted(clean, "blur", 3).batch(torch.tensor([2, 0]))
        >>> inputs.shape, labels
        (torch.Size([2, 3, 32, 32]), tensor([2, 0]))
    """
    if kind not in CORRUPTIONS:
        raise ConfigError(f"`kind` must be one of {', '.join(CORRUPTIONS)}, got {kind!r}")
    if strength not in STRENGTHS:
        raise ConfigError(f"`strength` must be a whole number from 1 to 5, got {strength!r}")
    pixels: Any = CorruptedPixels(data.pixels, kind, strength, image_size)
    return replace(data, pixels=pixels)


@dataclass(frozen=True, eq=False)
class CorruptedPixels:
    """Pixels of a split that are corrupted when they are read; images do not depend on others."""

    pixels: Any  # uint8 `[N, C, H, W]`, indexed by a tensor
    kind: str
    strength: int
    image_size: int | None = None

    def __getitem__(self, index: Tensor) -> Tensor:
        """Uint8 `[n, 3, H, W]` of the samples in `index [n]`."""
        change = _KINDS[self.kind]
        images = [
            change(image / 255, self.strength - 1, int(seed))
            for image, seed in zip(self.pixels[index], index, strict=True)
        ]
        changed = torch.stack(images).clamp(0, 1)
        if self.image_size is not None:
            changed = interpolate(changed, size=(self.image_size,) * 2, mode="bilinear")
        return (255 * changed).round().byte()
