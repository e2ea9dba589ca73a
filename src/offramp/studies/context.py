"""What steps work with: data, networks and the cache, each made once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor
from torch.utils.data import Dataset

from offramp.data import EMBEDDED, ImageData, Normalization, Splits, load
from offramp.data.catalog import located
from offramp.data.splits import SPLITS, Data
from offramp.errors import ConfigError
from offramp.evaluation.compare import Progress as Report
from offramp.networks import EarlyExitNetwork, build_for_data
from offramp.studies.cache import Cache
from offramp.studies.settings import DataSettings, NetworkSettings


class Narrator:
    """Tells the user how far a run is.

    Args:
        shown: False says nothing at all.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, highlight=False)

    @contextmanager
    def methods(self) -> Iterator[Report]:
        """For `compare`: a bar over the methods on a terminal, else a line for each."""
        columns = (TextColumn("  {task.description:24}"), BarColumn(), MofNCompleteColumn())
        hidden = not (self.shown and self.console.is_terminal)
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True, disable=hidden
        ) as bar:
            task = bar.add_task("starting", total=None)

            def update(done: int, total: int, text: str) -> None:
                bar.update(task, completed=done, total=total, description=text)
                if hidden and done < total:
                    self.say(f"  {done + 1} of {total}: {text}")

            yield update


@dataclass
class Workshop:
    """The cache, what is said while working, and the data that are open.

    Args:
        cache: Where results are.
        narrator: Says what is being done.
    """

    cache: Cache
    narrator: Narrator
    _open: dict[tuple[DataSettings, str | None], Splits] = field(default_factory=dict)

    def splits(self, data: DataSettings, target: str | None = None) -> Splits:
        """The four splits, with test from the target domain where there are domains."""
        key = replace(data, targets=()), target
        if key not in self._open:
            self._open[key] = _load(data, target)
        return self._open[key]

    def identity(self, data: DataSettings) -> str:
        """What the data are, as far as can be told without reading them into memory."""
        if data.name in EMBEDDED:
            return f"embedded {data.name}"
        place = located(data.name)
        return f"hub {data.name}" if place is None else f"files {self.cache.content(place)}"


def _load(data: DataSettings, target: str | None) -> Splits:
    options: dict[str, Any] = {}
    if data.source is not None:
        options["domain"] = (data.source, target or data.source)
    splits = load(
        data.name,
        data.seed,
        held_out=data.held_out,
        val=data.val,
        image_size=data.image_size,
        on_corrupt=data.on_corrupt,
        **options,
    )
    changed = {split: _adapted(splits[split], data) for split in SPLITS}
    return Splits(name=splits.name, seed=splits.seed, **changed)


def _adapted(samples: Data, data: DataSettings) -> Data:
    if data.mean is not None and data.std is not None:
        if not isinstance(samples, ImageData):
            raise ConfigError(f"`mean` and `std` are for images, and {data.name} has none")
        samples = replace(samples, normalization=Normalization(data.mean, data.std))
    return samples if data.limit is None else _First(samples, data.limit)


class _First(Dataset[tuple[Any, int]]):
    """The first few samples of a split."""

    def __init__(self, samples: Data, count: int) -> None:
        self.samples = samples
        self.count = min(count, len(samples))
        self.split, self.num_classes = samples.split, samples.num_classes
        self.class_names = samples.class_names
        self.sample_ids = samples.sample_ids[:count]
        self.labels = samples.labels[:count]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> tuple[Any, int]:
        if position >= self.count:
            raise IndexError(position)
        return self.samples[position]

    def batch(self, index: Tensor) -> tuple[Any, Tensor]:
        """Inputs and labels of many samples at once."""
        return self.samples.batch(index)


def make_network(settings: NetworkSettings, samples: Data, seed: int) -> EarlyExitNetwork:
    """Build a network for some data, or attach exits to a pretrained model.

    Args:
        settings: Which one.
        samples: Says how large images are and how many classes there are.
        seed: Of the first weights.
    """
    at: Any = list(settings.exits) if isinstance(settings.exits, tuple) else settings.exits
    return build_for_data(settings.name, samples, seed, at, settings.head, **settings.settings)
