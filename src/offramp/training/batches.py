"""`Samples`: any data set of (inputs, labels), read in batches of chosen samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

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

from offramp.data.augmentation import as_probabilities
from offramp.errors import ConfigError, DataError, LedgerError, OfframpError
from offramp.networks.state import map_leaves
from offramp.training.checkpoint import seed_at, seed_everything
from offramp.training.distributed import Processes

Batch: TypeAlias = tuple[Any, Tensor]
LABELS = ("labels", "label")  # where dicts have the classes


class Samples:
    """Data that can be read in any order, from a data set or a loader.

    What is read depends on the positions and the seeds alone, not on who reads it: workers change
    the speed, and nothing else.

    Args:
        dataset: A map-style data set of `(inputs, label)`, inputs a tensor or a dict of tensors.
            If it has a method `batch(index) -> (inputs, labels)`, that is used.
        collate: Joins samples to a batch.
        workers: Processes that read ahead; 0 reads in this process. Tensors in memory are always
            read in this process, which is faster than to send them.
        options: More arguments for the `DataLoader` that runs the workers.

    Example:
        >>> data = TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]))
        >>> for inputs, labels in Samples.of(data).batches([torch.tensor([2, 0])]):
        ...     print(inputs.tolist(), labels.tolist())
        [[4.0, 5.0], [0.0, 1.0]] [0, 0]
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - data sets have no common parent
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self._reader = _Reader(dataset, collate or default_collate)
        self._options = dict(options or {})
        self._orders: list[_Order] = []  # what the workers read next
        self._loader: DataLoader[Any] | None = None

    @classmethod
    def of(cls, data: Any, workers: int = 0) -> "Samples":  # noqa: ANN401
        """Take a data set or a `DataLoader`.

        A loader's data set, collate function and workers are used. Its order and batch size are
        not, since they have to be the same after an interruption.

        Raises:
            ConfigError: The data have no length or cannot be indexed, or the loader has a sampler
                of its own.
        """
        if not isinstance(data, DataLoader):
            return cls(_checked(data), workers=workers)
        sampler = getattr(data.batch_sampler, "sampler", data.sampler)
        if isinstance(data.dataset, IterableDataset):
            _checked(data.dataset)
        if type(sampler) not in (RandomSampler, SequentialSampler):
            raise ConfigError(
                f"the DataLoader draws its samples with a {type(sampler).__name__}, whose order "
                "could not be resumed after an interruption: pass the data set itself, or a "
                "Subset of it"
            )
        collate = data.collate_fn if data.batch_size is not None else None
        options = {name: getattr(data, name) for name in _KEPT_OPTIONS}
        return cls(_checked(data.dataset), collate, data.num_workers or workers, options)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def split(self) -> str | None:
        """What the data set says it is: `train`, `held_out`, `val` or `test`; or None."""
        return getattr(self.dataset, "split", None)

    @property
    def lengths(self) -> Tensor | None:
        """How long each sample is, int64 `[N]`, where the data set has samples of all lengths."""
        return getattr(self.dataset, "lengths", None)

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """Read batches one after the other.

        Args:
            indices: For each batch the positions of its samples, int64 `[n]`.
            seeds: For each batch what `torch`, `numpy` and `random` are seeded with before it is
                read, for data sets that draw from them; None leaves them alone.
        """
        known: Sequence[int | None] = seeds if seeds is not None else [None] * len(indices)
        orders = list(zip(indices, known, strict=True))
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

    def _read_by_workers(self, orders: "list[_Order]") -> Iterator[Batch | OfframpError]:
        self._orders[:] = orders
        if self._loader is None:
            if hasattr(self.dataset, "batch"):
                # Memory in which our data sets keep what they have decoded is reserved with the
                # first sample, and shared with workers that are started afterwards.
                self._reader[orders[0][0][:1], None]
            self._loader = DataLoader(
                self._reader,
                batch_size=None,
                sampler=self._orders,
                collate_fn=_as_it_is,
                num_workers=self.workers,
                persistent_workers=True,
                generator=torch.Generator(),  # not the global one, which has the step's seed
                **self._options,
            )
        try:
            yield from self._loader
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
                raise
            raise DataError(
                f"a process that reads the data has died ({error}); if memory was short, use "
                "fewer workers or a smaller batch size"
            ) from None


_KEPT_OPTIONS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")
_Order: TypeAlias = tuple[Tensor, int | None]  # positions of the samples of a batch, and a seed


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

    def __getitem__(self, order: _Order) -> Batch | OfframpError:
        """The batch; or what is wrong with it, since workers would bury an error in its trace."""
        index, seed = order
        if seed is not None:
            seed_everything(seed)
        try:
            return _pair(self._read(index))
        except OfframpError as error:
            return error

    def _read(self, index: Tensor) -> Any:  # noqa: ANN401
        if hasattr(self.dataset, "batch"):
            return self.dataset.batch(index)
        if self.is_in_memory:
            return self.dataset[index]
        positions = index.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(positions))
        return self.collate([self.dataset[position] for position in positions])


def _checked(dataset: Any) -> Any:  # noqa: ANN401
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
    return dataset


def _pair(batch: Any) -> Batch:  # noqa: ANN401
    label = next((name for name in LABELS if name in batch), None) if _is_dict(batch) else None
    if label is not None:  # as data sets and collators of `transformers` have it
        inputs = {name: value for name, value in batch.items() if name not in LABELS}
        images = inputs.get("pixel_values")
        return inputs if images is None else images, torch.as_tensor(batch[label])
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        found = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        found = f" with {', '.join(map(str, batch))}" if _is_dict(batch) else found
        raise ConfigError(
            "a sample must be a pair of (inputs, label), inputs a tensor or a dict of tensors, or "
            f"a dict with {' or '.join(f'`{name}`' for name in LABELS)}, got "
            f"{type(batch).__name__}{found}: pass a DataLoader with a `collate_fn` that returns "
            "such a pair"
        )
    return batch[0], torch.as_tensor(batch[1])


def _is_dict(batch: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(batch, Mapping)


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
    shares = [
        in_order(len(samples), batch_size)[rank :: processes.world]
        for rank in range(processes.world)
    ]
    mine = shares[processes.rank]
    results = _Rows(sum(map(len, mine)))
    # A process without a batch of its own runs one to know the shapes, and keeps no row of it.
    read = mine or shares[0][:1]
    seeds = [seed_at("row", int(index[0])) for index in read]
    batches = sent(samples.batches(read, seeds), processes.device)
    for index, batch in zip(read, batches, strict=True):
        results.collect()  # only now: the GPU has computed while this batch was read
        results.computed = compute(batch)
        if advance is not None:
            advance(len(index))
    results.collect()
    return [_joined(each, shares, processes) for each in results.tensors]


class _Rows:
    """Tensors of `size` rows each, filled batch by batch."""

    def __init__(self, size: int) -> None:
        self.size, self.done = size, 0
        self.tensors: list[Tensor] = []
        self.computed: Sequence[Tensor] = ()  # of the last batch, perhaps still on its way

    def collect(self) -> None:
        """Wait for the last batch, and keep what was computed."""
        if not self.computed:
            return
        rows = [each.cpu() for each in self.computed]
        if not self.tensors:
            self.tensors = [each.new_empty((self.size, *each.shape[1:])) for each in rows]
        for tensor, each in zip(self.tensors, rows, strict=True):
            tensor[self.done : self.done + len(each)] = each[: self.size]
        self.done += len(rows[0])
        self.computed = ()


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
