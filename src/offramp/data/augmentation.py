"""The paper's training augmentation (Appendix C), as tensor operations on a batch.

The paper names the operations, but not their strength and order; those are ours.
"""

from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor
from torch.nn import functional

from offramp import check
from offramp.errors import ConfigError


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a batch of images, and the targets that belong to them.

    Called with images, labels, K and a generator, it returns images and float targets `[n, K]`
    that sum to one. Every image is resized, shifted and turned in one interpolation, its contrast
    is changed, a rectangle may be erased, and it may be mixed with another image of the batch.
    The targets belong to the input and hold for every exit. All randomness comes from the
    generator. It is for training only: other splits and recording do not use it.

    Args:
        resize: Smallest and largest factor by which an image is enlarged; equal sides.
        crop: How far the crop may reach over the edge, as a share of the side (0.125 is the
            padding of 4 around 32 pixels). What is outside is 0: the mean of normalised images.
        rotation: Largest angle in degrees.
        contrast: Contrast is multiplied by a factor between `1 - contrast` and `1 + contrast`.
        erasing: Probability that a rectangle (2 % to 25 % of the area) is set to 0.
        mixup: Probability that an image is blended with another one (Zhang et al. 2018).
        cutmix: Probability that a rectangle is replaced by that of another one (Yun et al. 2019).
        alpha: Shares of the two images are drawn from Beta(alpha, alpha).
        flip: Probability of a horizontal flip. Not in the paper, so 0 by default.

    Raises:
        ConfigError: A setting with an impossible value.

    Example:
        >>> augment = Augmentation(mixup=0.5, cutmix=0.5)
        >>> generator = torch.Generator().manual_seed(0)
        >>> images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
        >>> inputs, targets = augment(images, labels, 3, generator)
        >>> inputs.shape, targets.sum(1)
        (torch.Size([4, 3, 8, 8]), tensor([1., 1., 1., 1.]))
    """

    resize: tuple[float, float] = (0.9, 1.25)
    crop: float = 0.125
    rotation: float = 10.0
    contrast: float = 0.3
    erasing: float = 0.25
    mixup: float = 0.25
    cutmix: float = 0.25
    alpha: float = 1.0
    flip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("crop", "contrast", "erasing", "mixup", "cutmix", "flip"):
            check.within(name, getattr(self, name), 0, 1)
        if self.mixup + self.cutmix > 1:
            raise ConfigError(
                "an image is mixed in one way: `mixup` + `cutmix` must be at most 1, got "
                f"{self.mixup} + {self.cutmix}"
            )
        if not 0 < self.resize[0] <= self.resize[1]:
            raise ConfigError(f"`resize` must be 0 < smallest <= largest, got {self.resize}")
        check.positive("alpha", self.alpha)

    @classmethod
    def none(cls) -> "Augmentation":
        """Every change off; the targets are one-hot."""
        return cls((1.0, 1.0), crop=0, rotation=0, contrast=0, erasing=0, mixup=0, cutmix=0)

    @classmethod
    def light(cls) -> "Augmentation":
        """Shifts and horizontal flips only: for networks too small to learn from mixed images.

        Example:
            >>> Augmentation.light().crop, Augmentation.light().flip, Augmentation.light().mixup
            (0.125, 0.5, 0)
        """
        return replace(cls.none(), crop=0.125, flip=0.5)

    def __call__(
        self, inputs: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Change a batch.

        Args:
            inputs: Float `[n, C, H, W]`, normalised.
            labels: int64 `[n]`, or probabilities `[n, K]`.
            num_classes: K.
            generator: The only source of randomness, on the CPU.

        Returns:
            Inputs `[n, C, H, W]` and float32 targets `[n, K]`.

        Raises:
            ConfigError: The inputs are not images.
        """
        if inputs.ndim != 4:
            raise ConfigError(
                f"augmentation is for images [n, C, H, W], got {list(inputs.shape)}; train "
                "without it on other data"
            )
        draw = _Draw(generator, len(inputs), inputs.device)
        inputs = self._moved(inputs, draw)
        if self.contrast:
            factor = draw.uniform(1 - self.contrast, 1 + self.contrast)[:, None, None, None]
            inputs = torch.lerp(inputs.mean((1, 2, 3), keepdim=True), inputs, factor)
        if self.erasing:
            share = draw.uniform(0.02, 0.25) * (draw.uniform(0, 1) < self.erasing)
            inputs = inputs.masked_fill(draw.boxes(share, inputs.shape[2:])[:, None], 0)
        targets = as_probabilities(labels, num_classes)
        if self.mixup or self.cutmix:
            return self._mixed(inputs, targets, draw)
        return inputs, targets

    def _moved(self, inputs: Tensor, draw: "_Draw") -> Tensor:
        """Resize, crop, rotate and flip: one affine map per image, one interpolation."""
        if self.resize == (1, 1) and not (self.crop or self.rotation or self.flip):
            return inputs
        side = 1 / draw.uniform(*self.resize)  # of the window, as a share of the image
        room = (1 - side).clamp(min=0) + 2 * self.crop
        shift = torch.stack([draw.uniform(-1, 1) * room, draw.uniform(-1, 1) * room], 1)
        if self.resize == (1, 1) and not self.rotation:
            # By whole pixels: any other shift would blur the image, and no other split is blurred
            pixel = 2 / torch.tensor([inputs.shape[3], inputs.shape[2]], device=inputs.device)
            shift = (shift / pixel).round() * pixel
        angle = torch.deg2rad(draw.uniform(-self.rotation, self.rotation))
        mirror = 1 - 2 * (draw.uniform(0, 1) < self.flip).float()
        cos, sin = angle.cos() * side, angle.sin() * side
        # The grid is in units of half the width or height: correct for the aspect ratio
        aspect = inputs.shape[2] / inputs.shape[3]
        rows = [
            torch.stack([cos * mirror, -sin * aspect, shift[:, 0]], 1),
            torch.stack([sin * mirror / aspect, cos, shift[:, 1]], 1),
        ]
        grid = functional.affine_grid(
            torch.stack(rows, 1).to(inputs.dtype), list(inputs.shape), align_corners=False
        )
        return functional.grid_sample(inputs, grid, align_corners=False)

    def _mixed(self, inputs: Tensor, targets: Tensor, draw: "_Draw") -> tuple[Tensor, Tensor]:
        partner = draw.order()
        kind = draw.uniform(0, 1)
        other = draw.beta(self.alpha)  # the partner's share
        blend = torch.where(kind < self.mixup, other, 0)
        is_cut = (kind >= self.mixup) & (kind < self.mixup + self.cutmix)
        box = draw.boxes(other * is_cut, inputs.shape[2:])  # [n, H, W]
        weight = torch.maximum(blend[:, None, None], box.to(blend.dtype))
        mixed = torch.lerp(inputs, inputs[partner], weight[:, None].to(inputs.dtype))
        # Counted in pixels, since a box is smaller where it is cut off at the edge
        share = weight.mean((1, 2))[:, None]
        return mixed, torch.lerp(targets, targets[partner], share)


def as_probabilities(targets: Tensor, num_classes: int) -> Tensor:
    """Targets as float32 `[n, K]`, from classes `[n]` or as they are.

    Example:
        >>> as_probabilities(torch.tensor([1, 0]), 3)
        tensor([[0., 1., 0.],
                [1., 0., 0.]])
    """
    if targets.is_floating_point():
        return targets.float()
    return functional.one_hot(targets.long(), num_classes).float()


NONE = None
LIGHT = Augmentation.light()
PAPER = Augmentation()


@dataclass(frozen=True)
class _Draw:
    """Random numbers for the n images of a batch, from one generator."""

    generator: torch.Generator
    count: int
    device: torch.device

    def uniform(self, low: float, high: float) -> Tensor:
        numbers = torch.rand(self.count, generator=self.generator)
        return (low + (high - low) * numbers).to(self.device)

    def order(self) -> Tensor:
        return torch.randperm(self.count, generator=self.generator).to(self.device)

    def beta(self, alpha: float) -> Tensor:
        # By its inverse distribution: torch's own Beta cannot be given a generator
        numbers = torch.rand(self.count, generator=self.generator).double().numpy()
        drawn = torch.from_numpy(scipy.special.betaincinv(alpha, alpha, numbers))
        return drawn.float().to(self.device)

    def boxes(self, share: Tensor, size: torch.Size) -> Tensor:
        """Rectangles of about these shares of the area, anywhere: bool `[n, H, W]`."""
        sides = []
        for length in size:
            half = share.sqrt() * length / 2
            centre = self.uniform(0, length)
            at = torch.arange(length, device=self.device) + 0.5
            sides.append((at - centre[:, None]).abs() < half[:, None])  # [n, length]
        return sides[0][:, :, None] & sides[1][:, None, :]
