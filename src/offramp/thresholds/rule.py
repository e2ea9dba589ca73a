"""The stop rule. Search, evaluation and runtime all decide by `stops`."""

from typing import Any

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy, as_tensor, float64, is_tensor, namespace
from offramp.errors import LedgerError

SURE = 0.5
"""A sample that stops with a lower confidence stops as hopeless: its answer is probably wrong."""


def stops(scores: AnyArray, threshold: AnyArray) -> AnyArray:
    """Whether to stop: the score reaches the threshold. A NaN score never stops.

    Args:
        scores: Any shape, of either kind of array; or a number.
        threshold: Broadcast against the scores; of their float type, see `rounded_up`.

    Example:
        >>> stops(np.array([0.1, 0.5, np.nan]), 0.3)
        array([False,  True, False])
    """
    return scores >= threshold


def rounded_up(thresholds: AnyArray, dtype: Any) -> AnyArray:  # noqa: ANN401 - of their library
    """Thresholds in a smaller float type that decide exactly as before.

    A score of that type reaches a float64 threshold if and only if it reaches the next number
    of its own type above it; rounding to the nearest could fall on a score from above.

    Example:
        >>> up = rounded_up(np.array([1.0 + 1e-12]), np.float32)
        >>> np.float32(1.0) >= up
        array([False])
    """
    xp = namespace(thresholds)
    near = xp.asarray(thresholds, dtype=dtype)
    above = xp.nextafter(near, xp.full_like(near, xp.inf))
    return xp.where(float64(near) < float64(thresholds), above, near)


def exits_taken(scores: AnyArray, thresholds: AnyArray) -> AnyArray:
    """The exit at which each sample stops: the first whose score reaches its threshold.

    Args:
        scores: `[N, M]`, higher = better to stop.
        thresholds: `[M]`, or `[P, M]` for many operating points at once; `+inf` closes an exit.
            The last exit always stops, whatever its score and threshold.

    Returns:
        int16 `[N]` or `[P, N]`, exit numbers, of the kind of array that the scores are.

    Example:
        >>> scores = np.array([[0.9, 0.0, 0.0], [0.1, 0.8, 0.0], [0.1, 0.2, 0.0]])
        >>> exits_taken(scores, np.array([0.5, 0.5, 0.0]))
        array([0, 1, 2], dtype=int16)
    """
    values, limits = as_numpy(scores), as_numpy(thresholds)
    if values.ndim != 2 or limits.shape[-1:] != values.shape[1:]:
        raise LedgerError(
            "`scores` must have the shape [N, M] and `thresholds` [M] or [P, M], got "
            f"{list(values.shape)} and {list(limits.shape)}"
        )
    columns = np.ascontiguousarray(values.T if values.dtype.kind == "f" else float64(values.T))
    limits = rounded_up(limits, columns.dtype)
    # A sample takes one more exit for every one that it passes.
    going_on = np.ones((*limits.shape[:-1], columns.shape[1]), dtype=bool)
    exits = np.zeros(going_on.shape, dtype=np.int16)
    for exit_index in range(len(columns) - 1):
        going_on &= ~stops(columns[exit_index], limits[..., exit_index, None])
        exits += going_on
    return as_tensor(exits) if is_tensor(scores) else exits


def exit_shares(exits: Array, count: int) -> Array:
    """`[P, M]` float64: the share of the samples that take each exit, from exits `[P, N]`."""
    return np.stack([row_shares(exits == m) for m in range(count)], axis=1)


def row_shares(mask: Array) -> Array:
    """`[P]` float64: the share of true values in each row of `[P, N]`."""
    # numpy counts one row at a time far faster than along an axis
    return np.array([np.count_nonzero(row) / mask.shape[1] for row in mask])
