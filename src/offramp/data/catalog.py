"""The data sets that are known by name, and where they are looked for."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from offramp.data.images import Normalization
from offramp.data.tables import (
    Columns,
    Table,
    official_name,
    quiet_datasets,
    read_files,
    read_folder_of_images,
    root_cause,
    table_of,
)
from offramp.errors import DataError
from offramp.extras import require
from offramp.hints import did_you_mean

PATIENCE = 4.0  # seconds


def why_unreachable(timeout: float = PATIENCE) -> str | None:
    """Why the hub cannot be reached, or None where it answers.

    Its own library tries again and again, for half a minute, before it says so. Any answer will
    do, a refusal too; proxies are used as the environment says.

    Args:
        timeout: Seconds to wait for an answer.
    """
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host = urlsplit(address).hostname or address
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout):
            return None
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        return f"{host}: {error.reason}"
    except (OSError, ValueError) as error:
        return f"{host}: {error}"


def read_hub(repository: str, columns: Columns) -> dict[str, Table]:
    """A data set of the public hub, by official split; downloaded once and then cached.

    Raises:
        DataError: It cannot be reached, or lacks a column.
    """
    with quiet_datasets() as datasets:
        try:
            found = datasets.load_dataset(repository)
        # Connection, permission and format errors of several libraries mean the same here
        except Exception as error:
            raise DataError(f"the hub did not give {repository}: {root_cause(error)}") from None
    made = {}
    for name, rows in found.items():
        split = official_name(name) or name
        made[split] = table_of(rows, split, columns, (f"{repository}, {name}",))
    return made


def read_hub_cache(repository: str, columns: Columns) -> dict[str, Table] | None:
    """The same from an earlier download, without asking the hub; None where there is none."""
    with _offline():
        try:
            return read_hub(repository, columns)
        except DataError:
            return None


@contextmanager
def _offline() -> Iterator[None]:
    """The hub's libraries in their offline mode, which they otherwise read when imported."""
    places: list[Any] = [
        require("huggingface_hub.constants", extra="train"),
        require("datasets.config", extra="train"),
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


VARIABLE = "OFFRAMP_DATA"
EMBEDDED = ("cluttered-digits", "mixture")


@dataclass(frozen=True)
class Entry:
    """What is known of a data set.

    Attributes:
        hub: Its name on the public hub.
        columns: Where inputs and labels are.
        image_size: Height and width in pixels that it is used at.
        centre: Share of the shorter side that is kept when images are cut to a square.
        normalization: Of its pixels.
        held_out, val: Samples cut from the official train for each; None is a tenth.
        source: The domain that all splits but test come from.
    """

    hub: str | None = None
    columns: Columns = field(default_factory=Columns)
    image_size: int | None = None
    centre: float = 1.0
    normalization: Normalization = field(default_factory=Normalization)
    held_out: int | None = None
    val: int | None = None
    source: str | None = None


CATALOG = {
    "cifar100": Entry(
        hub="uoft-cs/cifar100",
        columns=Columns("img", "fine_label"),
        image_size=32,
        normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        held_out=5_000,
        val=5_000,
    ),
    "cifar10": Entry(
        hub="uoft-cs/cifar10",
        columns=Columns("img", "label"),
        image_size=32,
        normalization=Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        held_out=5_000,
        val=5_000,
    ),
    "tiny-imagenet": Entry(hub="zh-plus/tiny-imagenet", image_size=64),
    "imagenet-1k": Entry(
        hub="ILSVRC/imagenet-1k", image_size=224, centre=0.875, held_out=25_000, val=25_000
    ),
    "domainnet": Entry(hub="wltjr1007/DomainNet", image_size=224, source="real"),
    "pacs": Entry(hub="flwrlabs/pacs", image_size=96, source="photo"),
    "sst2": Entry(hub="stanfordnlp/sst2", columns=Columns("sentence", "label")),
}


def find(name: str) -> tuple[Entry, dict[str, Table]]:
    """The official splits of a data set by name, or of a folder.

    Looked for in this order: a folder of that path (where the name is not in the catalogue), a
    folder of that name below the one in `OFFRAMP_DATA`, and the hub, or what was kept from it
    where it cannot be reached.

    Raises:
        DataError: It is in none of these places; the message says how to get it.
    """
    entry = CATALOG.get(name, Entry())
    place = located(name)
    if place is not None:
        return entry, _read_folder(place, entry.columns)
    if entry.hub is None:
        raise DataError(_unknown(name))
    if _is_offline():
        raise DataError(_missing(name, entry.hub, "and the hub was not asked (offline mode)"))
    problem = why_unreachable()
    if problem is not None:
        kept = read_hub_cache(entry.hub, entry.columns)
        if kept is not None:
            return entry, kept
        raise DataError(_missing(name, entry.hub, f"and the hub cannot be reached ({problem})"))
    try:
        return entry, read_hub(entry.hub, entry.columns)
    except DataError as error:
        raise DataError(_missing(name, entry.hub, f"and {error}")) from None


def located(name: str) -> Path | None:
    """The folder that a data set would be read from; None where it would come from the hub."""
    if name not in CATALOG and Path(name).is_dir():
        return Path(name)
    root = os.environ.get(VARIABLE)
    below = Path(root or "") / name
    return below if root and below.is_dir() else None


def _read_folder(folder: Path, columns: Columns) -> dict[str, Table]:
    has_files = any(next(folder.rglob(f"*.{kind}"), None) for kind in ("parquet", "csv"))
    if has_files or not any(path.is_dir() for path in folder.iterdir()):
        return read_files(folder, columns)
    return read_folder_of_images(folder)


def _is_offline() -> bool:
    switches = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in switches)


def _looked_in(name: str) -> str:
    root = os.environ.get(VARIABLE)
    return f"{Path(root) / name} is not there" if root else f"{VARIABLE} is not set"


def _missing(name: str, hub: str, then: str) -> str:
    return (
        f"there is no data set `{name}`: {_looked_in(name)}, {then}. To get it, on a machine "
        f"that is online: hf download {hub} --repo-type dataset --local-dir <folder>/{name}, "
        f"and set {VARIABLE}=<folder>"
    )


def _unknown(name: str) -> str:
    known = (*EMBEDDED, *CATALOG)
    hint = did_you_mean(name, known) or "."
    return (
        f"there is no data set `{name}`{hint} It is no folder, and {_looked_in(name)}. "
        f"Known: {', '.join(known)}, or the path of a folder"
    )
