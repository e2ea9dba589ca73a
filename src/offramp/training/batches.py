"""What is done with batches: checked, moved, resized, put in order, computed on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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


def compute_rows(
    samples: Samples,
    batch_size: int,
    processes: Processes,
    compute: Callable[[Batch], Sequence[Tensor]],
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
    batches = torch.arange(len(samples)).split(batch_size)
    mine = batches[processes.rank :: processes.world]
    # A process without a batch computes one of another's, to know what shapes its rows would have.
    computed = _computed(samples, mine or batches[:1], processes.device, compute, advance)
    rows = _put_together(computed, sum(map(len, mine)))
    if processes.world == 1:
        return rows
    return [_joined(each, batches, processes) for each in rows]


def _computed(
    samples: Samples,
    batches: Sequence[Tensor],
    device: torch.device,
    compute: Callable[[Batch], Sequence[Tensor]],
    advance: Callable[[int], None] | None,
) -> Iterator[Sequence[Tensor]]:
    """What is computed of each batch, on the CPU.

    The results of a batch are fetched when the next batch has been read: while this process
    reads, a GPU computes.
    """
    seeds = [seed_at("row", int(index[0])) for index in batches]
    unfetched: Sequence[Tensor] | None = None
    for inputs, targets in sent(samples.batches(batches, seeds), device):
        if unfetched is not None:
            yield [each.cpu() for each in unfetched]
        unfetched = compute((inputs, targets))
        if advance is not None:
            advance(len(targets))
    if unfetched is not None:
        yield [each.cpu() for each in unfetched]


def _put_together(batches: Iterable[Sequence[Tensor]], size: int) -> list[Tensor]:
    """The first `size` rows of all batches; each batch is freed before the next one comes."""
    rows: list[Tensor] = []
    done = 0
    for computed in batches:
        if not rows:
            rows = [each.new_empty((size, *each.shape[1:])) for each in computed]
        end = min(done + len(computed[0]), size)
        for tensor, new in zip(rows, computed, strict=True):
            tensor[done:end] = new[: end - done]
        done = end
    return rows


def _joined(rows: Tensor, batches: Sequence[Tensor], processes: Processes) -> Tensor:
    """The rows of all processes, in the order of the samples."""
    result = rows.new_empty((sum(map(len, batches)), *rows.shape[1:]))
    for rank, part in enumerate(processes.gather(rows.to(processes.device))):
        if share := batches[rank :: processes.world]:
            index = torch.cat(list(share))
            result[index] = part[: len(index)].cpu()
    return result
