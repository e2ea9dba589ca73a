"""`mixture`: points from a known distribution, for which the true P(y|x) can be computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offramp.data.splits import SPLITS, Data, Splits, with_default_sizes

SIZES = {"train": 4_000, "held_out": 2_000, "val": 2_000, "test": 4_000}
SHAPE = (4, 4, 2)  # classes, Gaussians per class, features
STD = 0.2  # of each Gaussian


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
        log_components = -apart.square().sum(-1) / (2 * STD**2)
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
        sizes: Samples per split, where they differ from `SIZES`.

    Example:
        >>> splits = mixture(seed=0)
        >>> splits.test.probs.shape
        torch.Size([4000, 4])
    """
    sizes = with_default_sizes(sizes, SIZES)
    centres = 4 * torch.rand(*SHAPE, generator=torch.Generator().manual_seed(seed)).double() - 2
    made = {}
    for number, split in enumerate(SPLITS):
        generator = torch.Generator().manual_seed(len(SPLITS) * seed + number)
        made[split] = _drawn(centres, split, sizes[split], generator)
    return Splits(name="mixture", seed=seed, **made)


def _drawn(centres: Tensor, split: str, size: int, generator: torch.Generator) -> MixtureData:
    classes, components, features = centres.shape
    labels = torch.randint(classes, (size,), generator=generator)
    chosen = torch.randint(components, (size,), generator=generator)
    noise = torch.randn(size, features, generator=generator)
    return MixtureData(
        inputs=centres[labels, chosen].float() + STD * noise,
        centres=centres,
        labels=labels,
        split=split,
        sample_ids=[f"{split}-{index}" for index in range(size)],
        num_classes=classes,
    )
