"""The stop rule. Search, evaluation and runtime all decide by `stops`."""

from typing import Any

from offramp.arrays import Array, namespace


def stops(scores: Array, threshold: Array) -> Array:
    """Whether to stop: the score reaches the threshold. A NaN score never stops.

    Args:
        scores: Any shape, of either kind of array; or a number.
        threshold: Broadcast against the scores; of their float type, see `rounded_up`.

    Example:
        >>> import torch
        >>> stops(torch.tensor([0.1, 0.5, float("nan")]), torch.tensor(0.3))
        tensor([False,  True, False])
    """
    return scores >= threshold


def rounded_up(thresholds: Array, dtype: Any) -> Array:  # noqa: ANN401 - of their library
    """Thresholds in a smaller float type that decide exactly as before.

    A score of that type reaches a float64 threshold if and only if it reaches the next number
    of its own type above it; rounding to the nearest could fall on a score from above.

    Example:
        >>> import torch
        >>> up = rounded_up(torch.tensor([1.0 + 1e-12], dtype=torch.float64), torch.float32)
        >>> bool(torch.tensor(1.0) >= up)
        False
    """
    library = namespace(thresholds)
    near = library.asarray(thresholds, dtype=dtype)
    above = library.nextafter(near, library.full_like(near, library.inf))
    exact = library.asarray(thresholds, dtype=library.float64)
    return library.where(library.asarray(near, dtype=library.float64) < exact, above, near)
