"""What the steps of a study work with: the cache, the data, and untrained networks."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from offramp.data import ImageData, Normalization, Splits, load
from offramp.data.catalog import located
from offramp.data.splits import SPLITS, Data
from offramp.errors import ConfigError
from offramp.networks import EarlyExitNetwork, build_for_data
from offramp.progress import console
from offramp.registry import EMBEDDED
from offramp.studies.cache import Cache
from offramp.studies.settings import DataSettings, NetworkSettings, TrainSettings
from offramp.training.processes import ALONE, Processes


@dataclass
class Context:
    """The cache, whether progress is shown, and the data sets that are open."""

    cache: Cache  # holds the results of steps
    shown: bool = True  # whether progress is shown on stderr
    processes: Processes = ALONE  # that share the work
    device: str = "auto"  # where networks are trained and recorded; `auto`: as the study says
    _open: dict[tuple[DataSettings, str | None], Splits] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Print one line, if progress is shown."""
        if self.shown:
            console.print(text, soft_wrap=True)

    def device_for(self, train: TrainSettings) -> str:
        """Name of the device for a network that is trained like this."""
        return train.device if self.device == "auto" else self.device

    def splits(self, data: DataSettings, target: str | None = None) -> Splits:
        """The four splits; with domains, test comes from the target domain."""
        key = replace(data, targets=()), target
        if key not in self._open:
            self._open[key] = _load(data, target)
        return self._open[key]

    def identity(self, data: DataSettings) -> str:
        """A name for the data that changes with their content, found without decoding them."""
        if data.name in EMBEDDED:
            return f"embedded {data.name}"
        place = located(data.name)
        if place is None:
            return f"hub {data.name}"
        return f"files {self.processes.first(lambda: self.cache.content(place))}"


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
            raise ConfigError(f"`mean` and `std` are for images, and {data.name} has no images")
        samples = replace(samples, normalization=Normalization(data.mean, data.std))
    return samples if data.limit is None else _First.of(samples, data.limit)


@dataclass(frozen=True, eq=False, kw_only=True)
class _First(Data):
    """The first few samples of a split."""

    samples: Data

    @classmethod
    def of(cls, samples: Data, count: int) -> "_First":
        return cls(
            samples=samples,
            labels=samples.labels[:count],
            split=samples.split,
            sample_ids=samples.sample_ids[:count],
            num_classes=samples.num_classes,
            class_names=samples.class_names,
        )

    def batch(self, index: Tensor) -> tuple[Any, Tensor]:
        """Inputs and labels of many samples at once."""
        return self.samples.batch(index)


def make_network(settings: NetworkSettings, samples: Data, seed: int) -> EarlyExitNetwork:
    """Build a network for some data, or attach exits to a pretrained model."""
    at: Any = list(settings.exits) if isinstance(settings.exits, tuple) else settings.exits
    return build_for_data(settings.name, samples, seed, at, settings.head, **settings.settings)
