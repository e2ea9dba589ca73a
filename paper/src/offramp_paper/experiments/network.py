"""The networks of an experiment: their data, what is built, and how it is trained."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from offramp import Ledger, TrainConfig, zoo
from offramp.data import Data, Normalization
from offramp.errors import FileFormatError
from offramp.ledger import load_ledgers
from offramp.registry import EMBEDDED

SHIPPED = "shipped"  # as `Network.ledgers`: of EfficientNet-Lite0, which come with offramp


@dataclass(frozen=True)
class Network:
    """A network of an experiment: its data, what is built, and how it is trained.

    Args:
        name: For folders and messages.
        title: For tables and pages.
        data: Name of a data set, see `offramp.data.load`.
        build: Name of an architecture, or of a pretrained model.
        exits: Where the exits are, see `offramp.attach`.
        head: Kind of the heads.
        settings: Of the architecture.
        config: How it is trained.
        objective: Name of the objective.
        augment: Name of the augmentation.
        freeze_backbone: Whether only the heads are trained.
        splits: More arguments of `offramp.data.load`.
        source: Domain of all splits but test, for data with domains.
        normalization: Of the pixels, where it is not that of the data set.
        ledgers: Instead of training: `SHIPPED`, or a folder of ledgers below `OFFRAMP_DATA`.
        heading: In the paper's table, of the figures to be shown beside.
        note: For the page.
    """

    name: str
    title: str
    data: str = ""
    build: str = ""
    exits: str | tuple[str, ...] = "every-block"
    head: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: TrainConfig = field(default_factory=TrainConfig)
    objective: str = "joint"
    augment: str = "none"
    freeze_backbone: bool = False
    splits: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    normalization: Normalization | None = None
    ledgers: str = ""
    heading: str = ""
    note: str = ""

    @property
    def needs(self) -> str:
        """What it is made of, in a few words."""
        if self.ledgers:
            return "shipped ledgers" if self.ledgers == SHIPPED else "recorded ledgers"
        return f"{self.data}, {self.build}"

    def described(self) -> dict[str, Any]:
        """What was said of it; of a network that is not trained here, nothing of training."""
        said = {name: value for name, value in asdict(self).items() if value}
        trained = ("config", "exits", "objective", "augment")
        return {k: v for k, v in said.items() if not self.ledgers or k not in trained}

    def inputs(self, data: str) -> dict[str, Any]:
        """All that its weights depend on; the data by their fingerprint."""
        shown = ("title", "heading", "note", "ledgers")
        kept = {name: value for name, value in asdict(self).items() if name not in shown}
        return {**kept, "config": self.config.decisive(), "data": [self.data, data]}


def existing(network: Network) -> tuple[dict[str, Ledger], Any]:
    """The ledgers of a network that is not trained here, and what `once` compares."""
    if network.ledgers == SHIPPED:
        shipped = zoo.cifar100()
        ledgers = {"held_out": shipped["held_out"], "val": shipped["val"], "test": shipped["test"]}
        return ledgers, zoo.about_cifar100()
    place = below_data(network.ledgers)
    if not place.exists():
        raise FileFormatError(
            f"there are no ledgers at {place}: write them with `offramp record`, and set "
            f"OFFRAMP_DATA to the folder that holds {network.ledgers}"
        )
    return load_ledgers(place, network=network.name), place  # an .npz names no network


def is_here(name: str) -> bool:
    """Whether a data set, or a folder of ledgers, is on this machine."""
    return name in EMBEDDED or below_data(name).is_dir()


def below_data(name: str) -> Path:
    """Where a data set or a folder of ledgers would be."""
    return Path(os.environ.get("OFFRAMP_DATA") or "nowhere") / name


@dataclass(frozen=True, eq=False, kw_only=True)
class First(Data):
    """The first few samples of a split."""

    samples: Data

    @classmethod
    def of(cls, samples: Data, count: int) -> Self:
        """The first `count` samples, or all if there are fewer."""
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
