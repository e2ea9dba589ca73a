"""`mixture`: points from a known distribution, for which the true P(y|x) can be computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offramp import check
from offramp.data.splits import SPLITS, LabelledData, Splits, with_default_sizes

SIZES = {"train": 4_000, "held_out": 2_000, "val": 2_000, "test": 4_000}


@dataclass(frozen=True, eq=False)
class Mixture:
    """Every class is a mixture of round Gaussians; all classes are equally likely.

    Args:
        centres: float64 `[K, J, D]`: J Gaussians per class.
        std: Their standard deviation.

    Example:
        >>> two = Mixture(torch.tensor([[[-1.0]], [[1.0]]]), std=1.0)
        >>> two.probs(torch.tensor([[0.0], [3.0]]))
        tensor([[0.5000, 0.5000],
                [0.0025, 0.9975]], dtype=torch.float64)
    """

    centres: Tensor
    std: float

    def __post_init__(self) -> None:
        check.shape("centres", self.centres, "K", "J", "D")
        check.positive("std", self.std)

    @classmethod
    def random(
        cls, seed: int = 0, classes: int = 4, components: int = 4, features: int = 2
    ) -> "Mixture":
        """Centres drawn uniformly from a square: easy regions and hard ones."""
        generator = torch.Generator().manual_seed(seed)
        centres = 4 * torch.rand(classes, components, features, generator=generator).double() - 2
        return cls(centres, std=0.2)

    def probs(self, inputs: Tensor) -> Tensor:
        """The true P(y|x), float64 `[n, K]`, from inputs `[n, D]`."""
        apart = inputs.double()[:, None, None] - self.centres.double()  # [n, K, J, D]
        log_components = -apart.square().sum(-1) / (2 * self.std**2)
        return log_components.logsumexp(-1).softmax(-1)  # all else is the same for all classes

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs float32 `[n, D]` and labels `[n]`."""
        classes, components, features = self.centres.shape
        labels = torch.randint(classes, (count,), generator=generator)
        chosen = torch.randint(components, (count,), generator=generator)
        noise = torch.randn(count, features, generator=generator)
        inputs = self.centres[labels, chosen].float() + self.std * noise
        return inputs, labels


@dataclass(frozen=True, eq=False, kw_only=True)
class MixtureData(LabelledData):
    """One split of `mixture`.

    Attributes:
        inputs: float32 `[N, D]`.
        labels, split, sample_ids, num_classes, class_names: See `Data`.
        distribution: What they are drawn from.
        probs: float64 `[N, K]`, the true P(y|x).
    """

    inputs: Tensor = field(repr=False)
    distribution: Mixture = field(repr=False)

    @property
    def probs(self) -> Tensor:
        """The true P(y|x), float64 `[N, K]`."""
        return self.distribution.probs(self.inputs)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        return self.inputs[position], int(self.labels[position])

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[n, D]` and labels `[n]`."""
        return self.inputs[index], self.labels[index]


def mixture(
    seed: int = 0, sizes: Mapping[str, int] | None = None, distribution: Mixture | None = None
) -> Splits:
    """Draw the four splits from one distribution.

    Args:
        seed: Of the samples, and of the distribution where none is given.
        sizes: Samples per split, where they differ from `SIZES`.
        distribution: By default four classes of four Gaussians in the plane.

    Example:
        >>> splits = mixture(seed=0)
        >>> splits.test.probs.shape
        torch.Size([4000, 4])
    """
    sizes = with_default_sizes(sizes, SIZES)
    distribution = distribution or Mixture.random(seed)
    made = {}
    for number, split in enumerate(SPLITS):
        generator = torch.Generator().manual_seed(len(SPLITS) * seed + number)
        inputs, labels = distribution.draw(sizes[split], generator)
        made[split] = MixtureData(
            inputs=inputs,
            labels=labels,
            distribution=distribution,
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(len(labels))],
            num_classes=len(distribution.centres),
        )
    return Splits(name="mixture", seed=seed, **made)
