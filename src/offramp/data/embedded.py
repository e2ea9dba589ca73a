"""Data sets that are made on demand: `cluttered-digits` and `mixture`.

`cluttered-digits` are the 1,797 digits that scikit-learn ships, on a cluttered canvas. They are
placed at random scale and position, among fragments of other digits. Some are printed in the
colour of their class, which any exit can see; for the others the shape has to be read, which
needs depth. A known share shows two digits on top of each other, and either may be the label: no
exit can know.

`mixture` are points from a known distribution, for which the true P(y|x) can be computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from offramp import check
from offramp.data.decoding import Normalization
from offramp.data.images_and_texts import ImageData
from offramp.data.splits import SPLITS, Data, Splits, shuffled, with_default_sizes

DIGIT_CLASSES = 10
CANVAS = 20  # pixels
DIGIT_SIZES = {"train": 15_000, "held_out": 3_000, "val": 3_000, "test": 5_000}
# The share of the digits that each split draws from.
DIGIT_POOLS = {"train": 0.58, "held_out": 0.13, "val": 0.13, "test": 0.16}
DIGIT_NORMALIZATION = Normalization(mean=(0.1,) * 3, std=(0.25,) * 3)


@dataclass(frozen=True)
class Difficulty:
    """How hard the images are. Lengths are shares of the canvas, brightness is 0 to 1.

    Attributes:
        extent: Smallest and largest side of a digit.
        tilt: Largest rotation in radians.
        clutter: Fragments of other digits on every canvas.
        ink: Smallest and largest brightness of digits and fragments.
        noise: Standard deviation of the noise.
        coloured: Share of digits in the colour of their class; all else has random colours.
        undecidable: Share of images with two digits of different classes on top of each other,
            in one random colour.
    """

    extent: tuple[float, float] = (0.6, 0.85)
    tilt: float = 0.15
    clutter: int = 1
    ink: tuple[float, float] = (0.7, 1.0)
    noise: float = 0.03
    coloured: float = 0.46
    undecidable: float = 0.06

    def __post_init__(self) -> None:
        for name in ("coloured", "undecidable"):
            check.within(name, getattr(self, name), 0, 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class DigitsData(ImageData):
    """Images of `cluttered-digits`, and what is known of how they were made.

    Attributes:
        undecidable: bool `[N]`: two digits on top of each other, the label is one of them.
        coloured: bool `[N]`: the digit has the colour of its class.
        sources: int64 `[N, 2 + clutter]`: positions in scikit-learn's digits of the digit, of
            the one on top of it (used where `undecidable`) and of the fragments.
    """

    undecidable: Tensor = field(repr=False)
    coloured: Tensor = field(repr=False)
    sources: Tensor = field(repr=False)


def cluttered_digits(
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    image_size: int = CANVAS,
    difficulty: Difficulty | None = None,
) -> Splits:
    """Make the four splits; the source digits of each are its own.

    Args:
        seed: The same seed gives the same images.
        sizes: Samples per split, where they differ from `DIGIT_SIZES`.
        image_size: Height and width of the canvas in pixels.
        difficulty: How hard the images are.

    Raises:
        ConfigError: A size below one, or an impossible canvas.

    Example:
        >>> splits = cluttered_digits(sizes={"train": 100, "val": 50})
        >>> splits
        Splits('cluttered-digits', seed=0, train: 100, held_out: 3000, val: 50, test: 5000)
        >>> splits.train[0][0].shape
        torch.Size([3, 20, 20])
    """
    sizes = with_default_sizes(sizes, DIGIT_SIZES)
    check.whole("image_size", image_size, 8)  # the pixels of a digit
    from sklearn.datasets import load_digits  # here, to keep `import offramp` light

    bunch = load_digits()
    digits = torch.from_numpy(bunch.images).float()[:, None] / 16  # [1797, 1, 8, 8]
    labels = torch.from_numpy(bunch.target)
    pools = _pools(labels, seed)
    made = {}
    for number, split in enumerate(SPLITS):
        generator = torch.Generator().manual_seed(len(SPLITS) * seed + number)
        painter = _Painter(digits, labels, image_size, difficulty or Difficulty(), generator)
        made[split] = painter.data(split, pools[split], sizes[split])
    return Splits(name="cluttered-digits", seed=seed, **made)


def _pools(labels: Tensor, seed: int) -> dict[str, Tensor]:
    """Distribute the digits of every class over the splits."""
    pools: dict[str, list[Tensor]] = {split: [] for split in SPLITS}
    for label in range(DIGIT_CLASSES):
        members = (labels == label).nonzero()[:, 0]
        order = members[shuffled([f"digit-{member}" for member in members.tolist()], seed)]
        bounds = torch.tensor(list(DIGIT_POOLS.values())).cumsum(0)[:-1] * len(order)
        shares = order.tensor_split(bounds.round().long())
        for split, share in zip(DIGIT_POOLS, shares, strict=True):
            pools[split].append(share)
    return {split: torch.cat(shares) for split, shares in pools.items()}


class _Place(NamedTuple):
    """Where digits go: centres `[n, 2]` in [-1, 1], sides `[n]` as shares, angles `[n]`."""

    centre: Tensor
    extent: Tensor
    angle: Tensor

    def put(self, patches: Tensor, image_size: int) -> Tensor:
        """Patches `[n, 1, 8, 8]` on empty canvases `[n, 1, S, S]`."""
        cos, sin = self.angle.cos() / self.extent, self.angle.sin() / self.extent
        turn = torch.stack([torch.stack([cos, sin], 1), torch.stack([-sin, cos], 1)], 1)
        theta = torch.cat([turn, -(turn @ self.centre[:, :, None])], 2)  # [n, 2, 3]
        size = [len(patches), 1, image_size, image_size]
        grid = functional.affine_grid(theta, size, align_corners=False)
        return functional.grid_sample(patches, grid, align_corners=False)


@dataclass(frozen=True)
class _Painter:
    digits: Tensor
    labels: Tensor
    image_size: int
    difficulty: Difficulty
    generator: torch.Generator

    def data(self, split: str, pool: Tensor, count: int) -> DigitsData:
        hard = self.difficulty
        first = pool[self._below(len(pool), count)]
        labels = self.labels[first]
        second = self._of_another_class(labels, pool)
        undecidable = self._uniform(0, 1, count) < hard.undecidable
        # The colour of a class would give away which of two digits is meant
        coloured = (self._uniform(0, 1, count) < hard.coloured) & ~undecidable
        canvas = self._pair(first, second, undecidable, coloured)
        fragments = [pool[self._below(len(pool), count)] for _ in range(hard.clutter)]
        for chosen in fragments:
            canvas = torch.maximum(canvas, self._fragment(chosen))
        canvas += hard.noise * torch.randn(canvas.shape, generator=self.generator)
        return DigitsData(
            pixels=(canvas.clamp(0, 1) * 255).round().to(torch.uint8),
            labels=labels,
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(count)],
            num_classes=DIGIT_CLASSES,
            class_names=[str(label) for label in range(DIGIT_CLASSES)],
            normalization=DIGIT_NORMALIZATION,
            undecidable=undecidable,
            coloured=coloured,
            sources=torch.stack([first, second, *fragments], 1),
        )

    def _pair(self, first: Tensor, second: Tensor, both: Tensor, coloured: Tensor) -> Tensor:
        """Canvases `[n, 3, S, S]` with one digit, or two where `both`."""
        count = len(first)
        extent = self._uniform(*self.difficulty.extent, count)
        centre = self._uniform(-1, 1, count, 2) * (1 - extent)[:, None]
        angle = self._uniform(-self.difficulty.tilt, self.difficulty.tilt, count)
        # The two digits are treated alike: nothing tells which one is the label
        apart = 0.1 * self._uniform(-1, 1, count, 2) * (extent * both)[:, None]
        hue = torch.where(coloured, self.labels[first] / DIGIT_CLASSES, self._uniform(0, 1, count))
        ink = _colour(hue) * self._ink(count)
        canvas = _Place(centre + apart, extent, angle).put(self.digits[first], self.image_size)
        other = _Place(centre - apart, extent, angle).put(self.digits[second], self.image_size)
        return ink * torch.maximum(canvas, other * both[:, None, None, None])

    def _fragment(self, chosen: Tensor) -> Tensor:
        """Canvases `[n, 3, S, S]` with a quarter of a digit, small and at any angle."""
        count = len(chosen)
        corner = self._below(5, count, 2)[:, :, None]
        inside = (torch.arange(8) >= corner) & (torch.arange(8) < corner + 4)  # [n, 2, 8]
        window = inside[:, None, 0, :, None] & inside[:, None, 1, None, :]
        place = _Place(
            self._uniform(-1, 1, count, 2),
            self._uniform(0.3, 0.5, count),
            self._uniform(0, 2 * torch.pi, count),
        )
        ink = _colour(self._uniform(0, 1, count)) * self._ink(count)
        return ink * place.put(self.digits[chosen] * window, self.image_size)

    def _of_another_class(self, labels: Tensor, pool: Tensor) -> Tensor:
        """For every label, a random digit of the pool that has another one."""
        chosen = pool[self._below(len(pool), len(labels))]
        while bool((same := self.labels[chosen] == labels).any()):
            chosen[same] = pool[self._below(len(pool), int(same.sum()))]
        return chosen

    def _ink(self, count: int) -> Tensor:
        return self._uniform(*self.difficulty.ink, count)[:, None, None, None]

    def _uniform(self, low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(*size, generator=self.generator)

    def _below(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=self.generator)


def _colour(hue: Tensor) -> Tensor:
    """Pure colours `[n, 3, 1, 1]` from hues `[n]` in [0, 1)."""
    k = (torch.tensor([5.0, 3.0, 1.0]) + 6 * hue[:, None]) % 6
    return (1 - torch.minimum(k, 4 - k).clamp(0, 1))[:, :, None, None]


MIXTURE_SIZES = {"train": 4_000, "held_out": 2_000, "val": 2_000, "test": 4_000}
MIXTURE_CLASSES, GAUSSIANS, FEATURES = 4, 4, 2  # GAUSSIANS: of each class
MIXTURE_STD = 0.2  # of each Gaussian


@dataclass(frozen=True, eq=False, kw_only=True)
class MixtureData(Data):
    """One split of `mixture`.

    Attributes:
        inputs: float32 `[N, D]`.
        labels, split, sample_ids, num_classes, class_names: See `Data`.
        centres: `[K, J, D]`, of the J Gaussians of each class.
    """

    inputs: Tensor = field(repr=False)
    centres: Tensor = field(repr=False)

    @property
    def probs(self) -> Tensor:
        """The true P(y|x), float64 `[N, K]`."""
        apart = self.inputs.double()[:, None, None] - self.centres.double()  # [N, K, J, D]
        log_components = -apart.square().sum(-1) / (2 * MIXTURE_STD**2)
        return log_components.logsumexp(-1).softmax(-1)  # all else is the same for all classes

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[n, D]` and labels `[n]`."""
        return self.inputs[index], self.labels[index]


def mixture(seed: int = 0, sizes: Mapping[str, int] | None = None) -> Splits:
    """Draw the four splits from one distribution: four classes of four Gaussians in the plane.

    All classes are equally likely. The centres are drawn uniformly from a square, so some regions
    are easy and others hard.

    Args:
        seed: Of the centres and of the samples.
        sizes: Samples per split, where they differ from `MIXTURE_SIZES`.

    Example:
        >>> splits = mixture(seed=0)
        >>> splits.test.probs.shape
        torch.Size([4000, 4])
    """
    sizes = with_default_sizes(sizes, MIXTURE_SIZES)
    generator = torch.Generator().manual_seed(seed)
    centres = (
        4 * torch.rand(MIXTURE_CLASSES, GAUSSIANS, FEATURES, generator=generator).double() - 2
    )
    made = {}
    for number, split in enumerate(SPLITS):
        generator = torch.Generator().manual_seed(len(SPLITS) * seed + number)
        labels = torch.randint(MIXTURE_CLASSES, (sizes[split],), generator=generator)
        chosen = torch.randint(GAUSSIANS, (sizes[split],), generator=generator)
        noise = torch.randn(sizes[split], FEATURES, generator=generator)
        made[split] = MixtureData(
            inputs=centres[labels, chosen].float() + MIXTURE_STD * noise,
            centres=centres,
            labels=labels,
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(len(labels))],
            num_classes=MIXTURE_CLASSES,
        )
    return Splits(name="mixture", seed=seed, **made)
