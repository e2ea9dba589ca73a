"""Many samples: a few at a time to bound memory, and in folds for cross-validation."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

NUMBERS = 4_000_000  # held in float32 at a time: 16 MB


def row_slices(samples: int, numbers_per_sample: int) -> Iterator[slice]:
    """Consecutive slices that cover all samples; they depend on the shape only.

    Example:
        >>> list(row_slices(5, numbers_per_sample=2_000_000))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, NUMBERS // numbers_per_sample)
    for start in range(0, samples, size):
        yield slice(start, min(start + size, samples))


def folds(
    samples: int, count: int, groups: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the samples into folds at random, always in the same way: the rest, and the fold.

    Args:
        samples: How many.
        count: Of folds.
        groups: `[N]`, the number of each sample's group; no group falls into two folds.
    """
    pieces = cut(samples, count, seed=0, groups=groups)
    for number, fold in enumerate(pieces):
        yield torch.cat([*pieces[:number], *pieces[number + 1 :]]), fold


def cut(
    samples: int, ends: int | Sequence[float], seed: int, groups: Tensor | None = None
) -> list[Tensor]:
    """Positions of the samples in random pieces; groups stay whole.

    Args:
        samples: How many.
        ends: How many pieces of one size; or where all but the last end, as shares of the whole.
        seed: The same seed gives the same pieces.
        groups: `[N]`, the number of each sample's group.

    Example:
        >>> groups = torch.tensor([0, 1, 0, 1])
        >>> [piece.tolist() for piece in cut(4, [0.5], seed=0, groups=groups)]
        [[0, 2], [1, 3]]
    """
    units = samples if groups is None else int(groups.max()) + 1
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    places = ends if isinstance(ends, int) else [round(units * end) for end in ends]
    pieces = list(order.tensor_split(places))
    if groups is None:
        return pieces
    return [torch.isin(groups, piece).nonzero().squeeze(1) for piece in pieces]


def stratified_cut(labels: Tensor, ends: Sequence[float], seed: int) -> list[Tensor]:
    """The same for samples with labels `[N]`: every piece has its share of every class.

    A sample too many falls to one side or the other at random, so that no piece is favoured.

    Example:
        >>> pieces = stratified_cut(torch.tensor([0, 1] * 10), [0.3, 0.6], seed=0)
        >>> [torch.tensor([0, 1] * 10)[piece].bincount().tolist() for piece in pieces]
        [[3, 3], [3, 3], [4, 4]]
    """
    generator = torch.Generator().manual_seed(seed)
    pieces: list[list[Tensor]] = [[] for _ in range(len(ends) + 1)]
    for label in labels.unique():
        positions = (labels == label).nonzero().squeeze(1)
        order = positions[torch.randperm(len(positions), generator=generator)]
        chance = float(torch.rand(1, generator=generator))
        # Rounding first: 20 times 0.3 is a hair below 6.
        places = [int(round(len(order) * end, 9) + chance) for end in ends]
        for piece, part in zip(pieces, order.tensor_split(places), strict=True):
            piece.append(part)
    return [torch.cat(parts) for parts in pieces]
