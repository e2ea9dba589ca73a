"""The stop rule. Search, evaluation and runtime all decide by `stops`."""

from typing import Any

import numpy as np

from offramp.arrays import Array, is_floating, namespace
from offramp.errors import LedgerError

SURE = 0.5
"""A sample that stops with a lower confidence stops as hopeless: its answer is probably wrong."""


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


def exits_taken(scores: Array, thresholds: Array) -> Array:
    """The exit at which each sample stops: the first whose score reaches its threshold.

    Args:
        scores: `[N, M]`, higher = better to stop.
        thresholds: `[M]`, or `[P, M]` for many operating points at once; `+inf` closes an exit.
            The last exit always stops, whatever its score and threshold.

    Returns:
        int16 `[N]` or `[P, N]`, exit numbers.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.9, 0.0, 0.0], [0.1, 0.8, 0.0], [0.1, 0.2, 0.0]])
        >>> exits_taken(scores, torch.tensor([0.5, 0.5, 0.0]))
        tensor([0, 1, 2], dtype=torch.int16)
    """
    library = namespace(scores)
    scores, thresholds = library.asarray(scores), library.asarray(thresholds)
    if scores.ndim != 2 or thresholds.shape[-1:] != scores.shape[1:]:
        raise LedgerError(
            "`scores` must have the shape [N, M] and `thresholds` [M] or [P, M], got "
            f"{list(scores.shape)} and {list(thresholds.shape)}"
        )
    if not is_floating(scores):
        scores = library.asarray(scores, dtype=library.float64)
    limits = np.asarray(rounded_up(thresholds, scores.dtype))
    columns = np.ascontiguousarray(np.asarray(scores).T)
    # A sample takes one more exit for every one that it passes; numpy, because torch would hand
    # these tiny steps to threads.
    going_on = np.ones((*limits.shape[:-1], columns.shape[1]), dtype=bool)
    exits = np.zeros(going_on.shape, dtype=np.int16)
    for exit_index in range(len(columns) - 1):
        going_on &= ~stops(columns[exit_index], limits[..., exit_index, None])
        exits += going_on
    return library.asarray(exits)
