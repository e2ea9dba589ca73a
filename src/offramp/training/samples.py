"""`Samples`: any data set of (inputs, labels), read in batches of chosen samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from offramp.errors import ConfigError, DataError, OfframpError
from offramp.training.checkpoint import seed_everything

Batch: TypeAlias = tuple[Any, Tensor]
LABELS = ("labels", "label")  # where dicts have the classes
_KEPT_OPTIONS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")


class _Order(NamedTuple):
    """A batch to be read."""

    positions: Tensor  # of its samples, int64 `[n]`
    seed: int | None  # what everything is seeded with before it is read


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
        self._loader: DataLoader[Any] | None = None  # starts the workers when it is first used

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
        orders = [_Order(*each) for each in zip(indices, known, strict=True)]
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

    def _read_by_workers(self, orders: list[_Order]) -> Iterator[Batch | OfframpError]:
        if self._loader is None:
            if hasattr(self.dataset, "batch"):
                # With its first sample, a data set of ours reserves the memory in which it keeps
                # what is decoded. Only workers that start afterwards share that memory.
                self.dataset.batch(orders[0].positions[:1])
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

    def __getitem__(self, order: _Order) -> Batch | OfframpError:
        """The batch; or what is wrong with it, since workers would bury an error in its trace."""
        if order.seed is not None:
            seed_everything(order.seed)
        try:
            return _pair(self._read(order.positions))
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
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], torch.as_tensor(batch[1])
    found = type(batch).__name__
    if isinstance(batch, Mapping):  # as data sets and collators of `transformers` have it
        label = next((name for name in LABELS if name in batch), None)
        if label is not None:
            inputs = {name: batch[name] for name in batch if name not in LABELS}
            return inputs.get("pixel_values", inputs), torch.as_tensor(batch[label])
        found += f" with {', '.join(map(str, batch))}"
    elif isinstance(batch, list | tuple):
        found += f" of {len(batch)}"
    raise ConfigError(
        "a sample must be a pair of (inputs, label), inputs a tensor or a dict of tensors, or "
        f"a dict with {' or '.join(f'`{name}`' for name in LABELS)}, got {found}: pass a "
        "DataLoader with a `collate_fn` that returns such a pair"
    )
