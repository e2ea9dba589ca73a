"""Running something over a whole data set once, shared between the processes."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from offramp.training.processes import Processes
from offramp.training.samples import Batch, Samples

__all__ = ["Compute", "compute_rows", "in_order"]

Compute: TypeAlias = Callable[[Batch], Sequence[Tensor]]


def in_order(samples: int, batch_size: int) -> list[Tensor]:
    """The samples' numbers in order, in batches.

    Example:
        >>> in_order(3, batch_size=2)
        [tensor([0, 1]), tensor([2])]
    """
    return list(torch.arange(samples).split(batch_size))


def compute_rows(
    samples: Samples,
    batch_size: int,
    processes: Processes,
    compute: Compute,
    advance: Callable[[int], None] | None = None,
) -> list[Tensor]:
    """Compute tensors with one row per sample, for all samples in order.

    Batches are made first and then shared out whole: a matrix product may round differently for
    another batch size, and so the result does not depend on the number of processes.

    Args:
        samples: N of them.
        batch_size: Of each process.
        processes: Among which the batches are shared out.
        compute: From a batch to tensors `[n, ...]`.
        advance: Called with the number of samples after each batch of this process.

    Returns:
        Tensors `[N, ...]` on the CPU, the same in every process.
    """
    shares = [
        in_order(len(samples), batch_size)[rank :: processes.world]
        for rank in range(processes.world)
    ]
    mine = shares[processes.rank]
    results: list[Tensor] = []
    done = 0
    # A process without a batch of its own needs one to know the shapes, of which it keeps no row.
    read = mine or shares[0][:1]
    for index, batch in zip(read, samples.batches(read), strict=True):
        rows = [each.cpu() for each in compute(batch)]
        if not results:
            size = sum(map(len, mine))
            results = [each.new_empty((size, *each.shape[1:])) for each in rows]
        for result, each in zip(results, rows, strict=True):
            result[done : done + len(index)] = each[: len(result)]
        done += len(index)
        if advance is not None:
            advance(len(index))
    return [_joined(each, shares, processes) for each in results]


def _joined(rows: Tensor, shares: list[list[Tensor]], processes: Processes) -> Tensor:
    if processes.world == 1:
        return rows
    most = max(sum(map(len, share)) for share in shares)
    gathered = processes.gather(rows.to(processes.device), most)
    total = sum(len(index) for share in shares for index in share)
    result = rows.new_empty((total, *rows.shape[1:]))
    for share, part in zip(shares, gathered, strict=True):
        if share:
            index = torch.cat(share)
            result[index] = part[: len(index)].cpu()
    return result
