"""Batches of any data set of (inputs, labels): read, checked, moved and computed on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from offramp.errors import ConfigError, DataError, LedgerError, OfframpError
from offramp.networks.state import map_leaves
from offramp.training.checkpoint import seed_at, seed_everything
from offramp.training.processes import Processes

Batch: TypeAlias = tuple[Any, Tensor]
LABELS = ("labels", "label")  # where dicts have the classes
IMAGES = ("pixel_values", "image", "img")  # where they have an image, which is all of the input
_KEPT_OPTIONS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")


class Samples:
    """Data that can be read in any order, from a data set or a loader.

    What is read depends on the positions and the seeds alone, not on who reads it: workers change
    the speed, and nothing else. Of a `DataLoader`, the data set, the collate function and the
    workers are used. Its order and batch size are not, since they have to be the same after an
    interruption.

    Args:
        data: A map-style data set of `(inputs, label)`, inputs a tensor or a dict of tensors, or
            a loader of one. If the data set has a method `batch(index) -> (inputs, labels)`, that
            is used.
        workers: Processes that read ahead; 0 reads in this process. Tensors in memory are always
            read in this process, which is faster than to send them.

    Raises:
        ConfigError: The data have no length or cannot be indexed, or the loader has a sampler of
            its own.

    Example:
        >>> data = TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]))
        >>> for inputs, labels in Samples(data).batches([torch.tensor([2, 0])]):
        ...     print(inputs.tolist(), labels.tolist())
        [[4.0, 5.0], [0.0, 1.0]] [0, 0]
    """

    def __init__(self, data: Any, workers: int = 0) -> None:  # noqa: ANN401
        collate, self._options = None, {}
        if isinstance(data, DataLoader):
            _check_order(data)
            collate = data.collate_fn if data.batch_size is not None else None
            self._options = {name: getattr(data, name) for name in _KEPT_OPTIONS}
            data, workers = data.dataset, data.num_workers or workers
        _check_dataset(data)
        self.dataset = data
        self.workers = workers
        self._reader = _Reader(data, collate or default_collate)
        self._orders: list[tuple[Tensor, int | None]] = []  # what the workers read next
        self._loader: DataLoader[Any] | None = None  # starts the workers when it is first used

    def __len__(self) -> int:
        return len(self.dataset)

    def known(self, name: str) -> Any:  # noqa: ANN401
        """What the data set knows of its samples, such as its `split`; or None."""
        return getattr(self.dataset, name, None)

    def example(self) -> Batch:
        """A batch of the first sample."""
        return next(self.batches([torch.tensor([0])]))

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """Read batches one after the other.

        Args:
            indices: For each batch the positions of its samples, int64 `[n]`.
            seeds: For each batch what `torch`, `numpy` and `random` are seeded with before it is
                read, for data sets that draw from them; None leaves them alone.
        """
        orders = list(zip(indices, seeds or repeat(None, len(indices)), strict=True))
        # Workers are not started for a single batch: nothing is read ahead.
        if not self.workers or self._reader.is_in_memory or len(orders) < 2:
            read: Iterator[Batch | OfframpError] = map(self._reader.__getitem__, orders)
        else:
            read = self._read_by_workers(orders)
        for batch in read:
            if isinstance(batch, OfframpError):
                raise batch
            yield batch

    def close(self) -> None:
        """End the workers."""
        self._loader = None

    def _read_by_workers(
        self, orders: list[tuple[Tensor, int | None]]
    ) -> Iterator[Batch | OfframpError]:
        if self._loader is None:
            if reads_batches(self.dataset):
                # With its first sample, a data set of ours reserves the memory in which it keeps
                # what is decoded. Only workers that start afterwards share that memory.
                self.dataset.batch(orders[0][0][:1])
            self._loader = self._start_workers()
        self._orders[:] = orders
        try:
            yield from self._loader
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
                raise
            raise DataError(
                f"a process that reads the data has died ({error}); if memory was short, use "
                "fewer workers or a smaller batch size"
            ) from None

    def _start_workers(self) -> "DataLoader[Any]":
        """A loader that reads `_orders` each time; its workers live until `close`."""
        return DataLoader(
            self._reader,
            batch_size=None,
            sampler=self._orders,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            persistent_workers=True,
            generator=torch.Generator(),  # not the global one, which has the step's seed
            **self._options,
        )


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401 - as the loader's types have it
    return batch


class _Reader(Dataset[Any]):
    """Reads the samples of a batch and joins them, in this process or in a worker."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:  # noqa: ANN401
        self.dataset = dataset
        self.collate = collate

    @property
    def is_in_memory(self) -> bool:
        """Whether a batch is one indexing of tensors."""
        return isinstance(self.dataset, TensorDataset) and self.collate is default_collate

    def __getitem__(self, order: tuple[Tensor, int | None]) -> Batch | OfframpError:
        """The batch; or what is wrong with it, since workers would bury an error in its trace."""
        index, seed = order
        if seed is not None:
            seed_everything(seed)
        try:
            return _pair(self._read(index))
        except OfframpError as error:
            return error

    def _read(self, index: Tensor) -> Any:  # noqa: ANN401
        if reads_batches(self.dataset):
            return self.dataset.batch(index)
        if self.is_in_memory:
            return self.dataset[index]
        positions = index.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(positions))
        return self.collate([self.dataset[position] for position in positions])


def _check_order(loader: "DataLoader[Any]") -> None:
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    is_stream = isinstance(loader.dataset, IterableDataset)  # refused as a data set
    if not is_stream and type(sampler) not in (RandomSampler, SequentialSampler):
        raise ConfigError(
            f"the DataLoader draws its samples with a {type(sampler).__name__}, whose order could "
            "not be resumed after an interruption: pass the data set itself, or a Subset of it"
        )


def reads_batches(dataset: Any) -> bool:  # noqa: ANN401
    """Whether a data set has a method `batch(index) -> (inputs, labels)`.

    Data sets of `datasets` have a `batch(batch_size)` of another meaning, and `__getitems__`.
    """
    return hasattr(dataset, "batch") and not hasattr(dataset, "__getitems__")


def _check_dataset(dataset: Any) -> None:  # noqa: ANN401
    is_pair = isinstance(dataset, tuple) and len(dataset) == 2
    if is_pair or isinstance(dataset, Tensor | np.ndarray):
        raise ConfigError(
            "data must be a data set of (inputs, label), got "
            f"{'a pair' if is_pair else 'inputs without labels'}: for tensors, wrap them as "
            "torch.utils.data.TensorDataset(inputs, labels)"
        )
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ConfigError(
            "data must be a data set of (inputs, label) with a length, whose samples can be "
            f"indexed, or a DataLoader of one, got {type(dataset).__name__}; read a stream into "
            "a list first"
        )
    if len(dataset) == 0:
        raise ConfigError("the data set is empty")


def _pair(batch: Any) -> Batch:  # noqa: ANN401
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], torch.as_tensor(batch[1])
    found = type(batch).__name__
    if isinstance(batch, Mapping):  # as data sets and collators of `transformers` have it
        label = next((name for name in LABELS if name in batch), None)
        if label is not None:
            inputs = {name: batch[name] for name in batch if name not in LABELS}
            image = next((inputs[name] for name in IMAGES if name in inputs), inputs)
            return image, torch.as_tensor(batch[label])
        found += f" with {', '.join(map(str, batch))}"
    elif isinstance(batch, list | tuple):
        found += f" of {len(batch)}"
    raise ConfigError(
        "a sample must be a pair of (inputs, label), inputs a tensor or a dict of tensors, or "
        f"a dict with {' or '.join(f'`{name}`' for name in LABELS)}, got {found}: pass a "
        "DataLoader with a `collate_fn` that returns such a pair"
    )


def check_targets(targets: Tensor, num_classes: int) -> None:
    """Raise unless targets are classes `[n]` in `0..K-1`, or probabilities `[n, K]`.

    Raises:
        LedgerError: They are not.
    """
    if targets.is_floating_point():
        if targets.ndim == 2 and targets.shape[1] == num_classes:
            return
        raise LedgerError(
            f"labels must be whole numbers [n], or soft targets [n, {num_classes}], got "
            f"{str(targets.dtype).removeprefix('torch.')} of the shape {list(targets.shape)}: "
            "give classes as labels.long()"
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
        if device.type == "cuda" and leaf.is_cpu:  # the copy is not waited for
            leaf = leaf.pin_memory().to(device, non_blocking=True)
        leaf = leaf.to(device)
        if channels_last and leaf.ndim == 4:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    return map_leaves(move, inputs)


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


def compute_rows(
    samples: Samples,
    index: Tensor,
    batch_size: int,
    processes: Processes,
    compute: Callable[[Batch], Sequence[Tensor]],
    advance: Callable[[int], None] = lambda count: None,
) -> list[Tensor]:
    """Compute tensors with one row per sample.

    In each round, every process takes one whole batch: a matrix product may round differently for
    another batch size, and the result must not depend on the number of processes.

    Args:
        samples: The data.
        index: Positions of N of the samples, int64 `[N]`.
        batch_size: Of each process.
        processes: Share the batches.
        compute: From a batch, whose inputs are on the processes' device, to tensors `[n, ...]`.
        advance: Called with the number of samples after each round.

    Returns:
        Tensors `[N, ...]` on the CPU, the same in every process.
    """
    batches, world = index.split(batch_size), processes.world
    rounds = [batches[first : first + world] for first in range(0, len(batches), world)]
    # Where a round has fewer batches than there are processes, several compute its last one.
    mine = [each[min(processes.rank, len(each) - 1)] for each in rounds]
    seeds = [seed_at("row", int(each[0])) for each in mine]
    rows: list[Tensor] = []
    end = 0
    for shared, (inputs, targets) in zip(rounds, samples.batches(mine, seeds), strict=True):
        computed = compute((moved(inputs, processes.device), targets))
        if not rows:  # at once: to join all parts in the end would take the memory twice
            rows = [new.new_empty((len(index), *new.shape[1:]), device="cpu") for new in computed]
        begin, end = end, end + sum(map(len, shared))
        for tensor, new in zip(rows, computed, strict=True):
            parts = zip(processes.gather(new.to(processes.device)), shared, strict=False)
            tensor[begin:end] = torch.cat([part[: len(batch)] for part, batch in parts])
        advance(end - begin)
    return rows
