"""What is done with batches: checked, moved, resized, put in order, computed on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from offramp.data.augmentation import as_probabilities
from offramp.errors import LedgerError
from offramp.networks.state import map_leaves
from offramp.training.checkpoint import seed_at
from offramp.training.processes import Processes
from offramp.training.samples import Batch, Samples


def check_targets(targets: Tensor, num_classes: int) -> None:
    """Raise unless targets are classes `[n]` in `0..K-1`, or probabilities `[n, K]`.

    Raises:
        LedgerError: They are not.
    """
    if targets.is_floating_point():
        if targets.ndim == 2 and targets.shape[1] == num_classes:
            return
        raise LedgerError(
            f"soft targets must have the shape [n, {num_classes}], got {list(targets.shape)}"
        )
    if targets.ndim != 1:
        raise LedgerError(
            f"labels must be one whole number per sample, got the shape {list(targets.shape)}: "
            "if they are one-hot, give labels.argmax(1)"
        )
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < num_classes:
        raise LedgerError(
            f"labels must lie in 0..{num_classes - 1} for this network, got "
            f"{int(targets.min())}..{int(targets.max())}"
        )


def moved(inputs: Any, device: torch.device, channels_last: bool = False) -> Any:  # noqa: ANN401
    """Inputs on a device, images with their channels last if asked for."""

    def move(leaf: Tensor) -> Tensor:
        leaf = leaf.to(device)
        if channels_last and leaf.ndim == 4:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    return map_leaves(move, inputs)


def sent(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches with their inputs on a device; labels stay where they are.

    To a CUDA GPU, inputs are copied from pinned memory in a stream of their own, while the GPU
    still computes on the batch before.
    """
    if device.type != "cuda":
        yield from ((moved(inputs, device), targets) for inputs, targets in batches)
        return
    copies = torch.cuda.Stream(device)

    def copied(leaf: Tensor) -> Tensor:
        with torch.cuda.stream(copies):
            leaf = (leaf.pin_memory() if leaf.is_cpu else leaf).to(device, non_blocking=True)
        # Its memory must not be used again before what reads it now has run.
        leaf.record_stream(torch.cuda.current_stream(device))
        return leaf

    for inputs, targets in batches:
        inputs = map_leaves(copied, inputs)
        torch.cuda.current_stream(device).wait_stream(copies)
        yield inputs, targets


def grouped_by_length(
    order: Tensor, lengths: Tensor, batch_size: int, generator: torch.Generator
) -> Tensor:
    """A random order in which the samples of a batch are of similar length, so little is padding.

    Args:
        order: Positions of samples in a random order, for whole batches, int64 `[n]`.
        lengths: Of all samples, int64 `[N]`.
        batch_size: Samples in a batch.
        generator: The source of randomness.
    """
    # Sorted within stretches of 32 batches, which are shuffled again.
    stretches = order.split(32 * batch_size)
    order = torch.cat([each[lengths[each].argsort(stable=True)] for each in stretches])
    batches = order.view(-1, batch_size)
    return batches[torch.randperm(len(batches), generator=generator)].flatten()


def resized(inputs: Any, size: int | None) -> Any:  # noqa: ANN401
    """Images `[n, C, H, W]` with H and W of `size` pixels; None leaves them as they are."""
    if size is None:
        return inputs

    def resize(leaf: Tensor) -> Tensor:
        if leaf.ndim != 4 or leaf.shape[2:] == (size, size):
            return leaf
        return functional.interpolate(
            leaf, (size, size), mode="bilinear", align_corners=False, antialias=True
        )

    return map_leaves(resize, inputs)


def smoothed(targets: Tensor, num_classes: int, share: float) -> Tensor:
    """Targets, classes `[n]` or probabilities `[n, K]`, with a share spread over all classes."""
    if not share:
        return targets
    return as_probabilities(targets, num_classes) * (1 - share) + share / num_classes


Compute: TypeAlias = Callable[[Batch], Sequence[Tensor]]


def in_order(samples: int, batch_size: int) -> list[Tensor]:
    """The samples' positions in order, in batches.

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

    Whole batches are shared among the processes: a matrix product may round differently for
    another batch size, and the result must not depend on the number of processes.

    Args:
        samples: N of them.
        batch_size: Of each process.
        processes: Share the batches.
        compute: From a batch, whose inputs are on the processes' device, to tensors `[n, ...]`.
        advance: Called with the number of samples after each batch of this process.

    Returns:
        Tensors `[N, ...]` on the CPU, the same in every process.
    """
    batches = in_order(len(samples), batch_size)
    mine = batches[processes.rank :: processes.world]
    computed = _computed(samples, mine or batches[:1], processes.device, compute, advance)
    if not mine:  # a process without a batch only learns the shapes
        computed = [each[:0] for each in computed]
    if processes.world == 1:
        return computed
    return [_joined(each, batches, processes) for each in computed]


def _computed(
    samples: Samples,
    batches: Sequence[Tensor],
    device: torch.device,
    compute: Compute,
    advance: Callable[[int], None] | None,
) -> list[Tensor]:
    """The rows of some batches, on the CPU."""
    seeds = [seed_at("row", int(index[0])) for index in batches]
    rows = _Rows(sum(map(len, batches)))
    pending: Sequence[Tensor] = ()
    read = sent(samples.batches(batches, seeds), device)
    for index, batch in zip(batches, read, strict=True):
        rows.add(pending)  # only now: the GPU has computed while this batch was read
        pending = compute(batch)
        if advance is not None:
            advance(len(index))
    rows.add(pending)
    return rows.tensors


class _Rows:
    """Tensors of `size` rows each, filled batch by batch: they are never in memory twice."""

    def __init__(self, size: int) -> None:
        self.size, self.done = size, 0
        self.tensors: list[Tensor] = []

    def add(self, computed: Sequence[Tensor]) -> None:
        """Wait for what was computed, and keep it."""
        rows = [each.cpu() for each in computed]
        if not rows:
            return
        if not self.tensors:
            self.tensors = [each.new_empty((self.size, *each.shape[1:])) for each in rows]
        for tensor, each in zip(self.tensors, rows, strict=True):
            tensor[self.done : self.done + len(each)] = each
        self.done += len(rows[0])


def _joined(rows: Tensor, batches: Sequence[Tensor], processes: Processes) -> Tensor:
    """The rows of all processes, in the order of the samples."""
    result = rows.new_empty((sum(map(len, batches)), *rows.shape[1:]))
    for rank, part in enumerate(processes.gather(rows.to(processes.device))):
        if share := batches[rank :: processes.world]:
            index = torch.cat(list(share))
            result[index] = part[: len(index)].cpu()
    return result
