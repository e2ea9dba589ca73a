"""Scores and thresholds -> the exits that samples take."""

import numpy as np
import torch
from torch import Tensor

from offramp.errors import LedgerError
from offramp.thresholds.rule import rounded_up, stops


def exits_taken(scores: Tensor, thresholds: Tensor) -> Tensor:
    """The exit at which each sample stops: the first whose score reaches its threshold.

    Args:
        scores: `[N, M]`, higher = better to stop.
        thresholds: `[M]`, or `[P, M]` for many operating points at once; `+inf` closes an exit.
            The last exit always stops, whatever its score and threshold.

    Returns:
        int16 `[N]` or `[P, N]`, exit numbers.

    Example:
        >>> scores = torch.tensor([[0.9, 0.0, 0.0], [0.1, 0.8, 0.0], [0.1, 0.2, 0.0]])
        >>> exits_taken(scores, torch.tensor([0.5, 0.5, 0.0]))
        tensor([0, 1, 2], dtype=torch.int16)
    """
    scores, thresholds = torch.as_tensor(scores), torch.as_tensor(thresholds)
    if scores.ndim != 2 or thresholds.shape[-1:] != scores.shape[1:]:
        raise LedgerError(
            "`scores` must have the shape [N, M] and `thresholds` [M] or [P, M], got "
            f"{list(scores.shape)} and {list(thresholds.shape)}"
        )
    scores = scores if scores.is_floating_point() else scores.double()
    columns = scores.T.contiguous().numpy()
    limits = rounded_up(thresholds, scores.dtype).numpy()
    # A sample takes one more exit for every one that it passes; numpy, because torch would hand
    # these tiny steps to threads.
    going_on = np.ones((*thresholds.shape[:-1], len(scores)), dtype=bool)
    exits = np.zeros(going_on.shape, dtype=np.int16)
    for exit_index in range(scores.shape[1] - 1):
        going_on &= ~stops(columns[exit_index], limits[..., exit_index, None])
        exits += going_on
    return torch.from_numpy(exits)
