"""Many samples: a few at a time to bound memory, and in folds for cross-validation."""

from collections.abc import Iterator, Sequence

import numpy as np

from offramp.arrays import Array, as_numpy

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


def folds(samples: int, count: int, groups: Array | None = None) -> Iterator[tuple[Array, Array]]:
    """Cut the samples into folds at random, always in the same way: the rest, and the fold.

    Args:
        samples: How many.
        count: Of folds.
        groups: `[N]`, the number of each sample's group; no group falls into two folds.
    """
    pieces = cut(samples, count, seed=0, groups=groups)
    for number, fold in enumerate(pieces):
        yield np.concatenate([*pieces[:number], *pieces[number + 1 :]]), fold


def cut(
    samples: int, ends: int | Sequence[float], seed: int, groups: Array | None = None
) -> list[Array]:
    """Positions of the samples in random pieces; groups stay whole.

    Args:
        samples: How many.
        ends: How many pieces of one size; or where all but the last end, as shares of the whole.
        seed: The same seed gives the same pieces.
        groups: `[N]`, the number of each sample's group.

    Example:
        >>> groups = np.array([0, 1, 0, 1])
        >>> [piece.tolist() for piece in cut(4, [0.5], seed=0, groups=groups)]
        [[0, 2], [1, 3]]
    """
    units = samples if groups is None else int(groups.max()) + 1
    order = _Shuffle(seed).permutation(units)
    places = ends if isinstance(ends, int) else [round(units * end) for end in ends]
    pieces = np.array_split(order, places)
    if groups is None:
        return pieces
    return [np.flatnonzero(np.isin(groups, piece)) for piece in pieces]


def stratified_cut(labels: Array, ends: Sequence[float], seed: int) -> list[Array]:
    """The same for samples with labels `[N]`: every piece has its share of every class.

    A sample too many falls to one side or the other at random, so that no piece is favoured.

    Example:
        >>> labels = np.array([0, 1] * 10)
        >>> pieces = stratified_cut(labels, [0.3, 0.6], seed=0)
        >>> [np.bincount(labels[piece]).tolist() for piece in pieces]
        [[3, 3], [3, 3], [4, 4]]
    """
    labels, shuffle = as_numpy(labels), _Shuffle(seed)
    pieces: list[list[Array]] = [[] for _ in range(len(ends) + 1)]
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        order = positions[shuffle.permutation(len(positions))]
        chance = shuffle.share()
        # Rounding first: 20 times 0.3 is a hair below 6.
        places = [int(round(len(order) * end, 9) + chance) for end in ends]
        for piece, part in zip(pieces, np.array_split(order, places), strict=True):
            piece.append(part)
    return [np.concatenate(parts) for parts in pieces]


class _Shuffle:
    """The random numbers of `torch.Generator`, so that published splits stay what they are.

    Both are the Mersenne twister; only the ways from its words to orders and shares differ.
    """

    def __init__(self, seed: int) -> None:
        self._words = np.random.RandomState(seed % 2**32)

    def permutation(self, count: int) -> Array:
        """What `torch.randperm` gives, `[count]`."""
        words = self._words.randint(2**32, size=max(count - 1, 0), dtype=np.uint32)
        order = list(range(count))
        for place, step in enumerate((words % np.arange(count, 1, -1)).tolist()):
            order[place], order[place + step] = order[place + step], order[place]
        return np.array(order, dtype=np.int64)

    def share(self) -> float:
        """What `torch.rand(1)` gives, in [0, 1)."""
        return float(self._words.randint(2**32, dtype=np.uint32) % 2**24) / 2**24
