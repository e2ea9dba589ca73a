"""Many samples: a few at a time to bound memory, and in folds for cross-validation."""

from collections.abc import Iterator

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


def folds(samples: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the samples into folds at random, always in the same way: the rest, and the fold."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    pieces = order.tensor_split(count)
    for number, fold in enumerate(pieces):
        yield torch.cat([*pieces[:number], *pieces[number + 1 :]]), fold
