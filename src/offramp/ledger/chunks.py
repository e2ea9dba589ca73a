"""Going through many samples a few at a time, so that memory stays bounded."""

from collections.abc import Iterator

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
