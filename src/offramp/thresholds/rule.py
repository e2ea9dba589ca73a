"""The stop rule. Search, evaluation and runtime all decide by these two functions."""

import torch
from torch import Tensor

from offramp.errors import LedgerError

__all__ = ["exits_taken", "stops"]


def stops(scores: Tensor, threshold: Tensor | float) -> Tensor:
    """Whether to stop: the score reaches the threshold. A NaN score never stops.

    Compared in float64, where a threshold midway between two float32 scores lies between them.

    Example:
        >>> stops(torch.tensor([0.1, 0.5, float("nan")]), 0.3)
        tensor([False,  True, False])
    """
    return scores.double() >= torch.as_tensor(threshold, dtype=torch.float64)


def exits_taken(scores: Tensor, thresholds: Tensor) -> Tensor:
    """The exit at which each sample stops: the first whose score reaches its threshold.

    Args:
        scores: `[N, M]`, higher = better to stop.
        thresholds: `[M]`, or `[P, M]` for many operating points at once; `+inf` closes an exit.
            The last exit always stops, whatever its score and threshold.

    Returns:
        `[N]` or `[P, N]`, exit numbers.

    Example:
        >>> scores = torch.tensor([[0.9, 0.0, 0.0], [0.1, 0.8, 0.0], [0.1, 0.2, 0.0]])
        >>> exits_taken(scores, torch.tensor([0.5, 0.5, 0.0]))
        tensor([0, 1, 2])
    """
    scores, thresholds = torch.as_tensor(scores), torch.as_tensor(thresholds)
    if scores.ndim != 2 or thresholds.shape[-1:] != scores.shape[1:]:
        raise LedgerError(
            "`scores` must have the shape [N, M] and `thresholds` [M] or [P, M], got "
            f"{list(scores.shape)} and {list(thresholds.shape)}"
        )
    last = scores.shape[1] - 1
    columns = scores.T.contiguous()
    exits = torch.full((*thresholds.shape[:-1], len(scores)), last, dtype=torch.int16)
    # Backwards, so that an earlier exit overwrites a later one.
    for exit_index in range(last - 1, -1, -1):
        here = stops(columns[exit_index], thresholds[..., exit_index, None])
        exits.masked_fill_(here, exit_index)
    return exits.long()
