"""The data sets that are known by name, and where they are searched for."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from offramp.data.decoding import Normalization
from offramp.data.reading import (
    OfficialSplit,
    read_data_folder,
    read_hub,
    why_unreachable,
)
from offramp.errors import DataError
from offramp.registry import CATALOG, DATA_SETS, did_you_mean

VARIABLE = "OFFRAMP_DATA"


@dataclass(frozen=True)
class Entry:
    """What is known about a data set."""

    hub: str | None = None  # its name on the public hub
    image_size: int | None = None  # height and width in pixels that it is used at
    # share of the shorter side that is kept when images are cropped to a square
    centre: float = 1.0
    normalization: Normalization = field(default_factory=Normalization)  # of its pixels
    # samples taken from the official train set for each of held_out and val; None means a tenth
    held_back: int | None = None
    source: str | None = None  # the domain that all splits but test come from


CIFAR100 = Entry(
    hub="uoft-cs/cifar100",
    image_size=32,
    normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    held_back=5_000,
)
CIFAR10 = Entry(
    hub="uoft-cs/cifar10",
    image_size=32,
    normalization=Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    held_back=5_000,
)
TINY_IMAGENET = Entry(hub="zh-plus/tiny-imagenet", image_size=64)
IMAGENET_1K = Entry(hub="ILSVRC/imagenet-1k", image_size=224, centre=0.875, held_back=25_000)
DOMAINNET = Entry(hub="wltjr1007/DomainNet", image_size=224, source="real")
PACS = Entry(hub="flwrlabs/pacs", image_size=96, source="photo")
SST2 = Entry(hub="stanfordnlp/sst2")


def find_official(name: str) -> tuple[Entry, dict[str, OfficialSplit]]:
    """The official splits of a data set by name, or of a folder.

    Searched in this order: a folder of that path (unless the name is in the catalogue), a folder
    of that name below the one in `OFFRAMP_DATA`, and the hub, or its local cache if it cannot be
    asked. The message of the `DataError` says how to get what is in none of these places.
    """
    entry: Entry = CATALOG.get(name) or Entry()
    folder = located(name)
    if folder is not None:
        return entry, read_data_folder(folder)
    if entry.hub is None:
        raise DataError(_unknown(name))
    problem = why_unreachable()
    try:
        return entry, read_hub(entry.hub, from_cache=problem is not None)
    except DataError as error:
        raise DataError(_missing(name, entry.hub, f"and {problem or error}")) from None


def located(name: str) -> Path | None:
    """The folder that a data set would be read from; None where it would come from the hub."""
    if name not in CATALOG and Path(name).is_dir():
        return Path(name)
    root = os.environ.get(VARIABLE)
    below = Path(root or "") / name
    return below if root and below.is_dir() else None


def _looked_in(name: str) -> str:
    root = os.environ.get(VARIABLE)
    return f"{Path(root) / name} is not there" if root else f"{VARIABLE} is not set"


def _missing(name: str, hub: str, reason: str) -> str:
    return (
        f"there is no data set `{name}`: {_looked_in(name)}, {reason}. To get it, on a machine "
        f"that is online: hf download {hub} --repo-type dataset --local-dir <folder>/{name}, "
        f"and set {VARIABLE}=<folder>"
    )


def _unknown(name: str) -> str:
    hint = did_you_mean(name, DATA_SETS) or "."
    return (
        f"there is no data set `{name}`{hint} It is not a folder, and {_looked_in(name)}. "
        f"Known: {', '.join(DATA_SETS)}, or the path of a folder"
    )
