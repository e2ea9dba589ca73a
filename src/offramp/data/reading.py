"""Reading the official splits of a data set, from disk or from the hub.

Everything is read with the `datasets` library, which maps Parquet and CSV files into memory.
Images stay encoded until they are used.
"""

import os
import re
import urllib.error
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from offramp.data.decoding import IMAGE_SUFFIXES
from offramp.errors import DataError
from offramp.imports import require

ALIASES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
INPUT_COLUMNS = ("image", "img", "sentence", "text")
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
DOMAIN_COLUMN = "domain"
HUB_TIMEOUT = 4.0  # seconds


@dataclass(frozen=True)
class StoredInputs:
    """Texts or encoded images as they are stored; a loader process can be sent them.

    Args:
        column: Of a `datasets.Dataset`.
        origin: The files or the hub repository that it comes from; none for one file per image.
        rows: Of the column.
    """

    column: Any
    origin: tuple[str, ...]
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, positions: list[int]) -> list[Any]:
        """The texts, or the encoded images, at some positions."""
        cells = self.column[[self.rows[position] for position in positions]]
        return [_encoded(cell) if isinstance(cell, dict) else cell for cell in cells]

    def take(self, positions: list[int]) -> "StoredInputs":
        """Only the inputs at some positions."""
        return replace(self, rows=[self.rows[position] for position in positions])

    def name(self, position: int) -> str:
        """The name of the sample at a position, for messages."""
        row = self.rows[position]
        if not self.origin:
            return str(self.column[row]["path"])
        if len(self.origin) == 1 or not self.origin[0].endswith(".parquet"):
            return f"{self.origin[0]} row {row}"
        parquet = require("pyarrow.parquet", extra="train")
        ends = list(accumulate(parquet.read_metadata(path).num_rows for path in self.origin))
        number = bisect_right(ends, row)
        return f"{self.origin[number]} row {row - (ends[number - 1] if number else 0)}"


def _encoded(cell: dict[str, Any]) -> bytes:
    """The bytes of an image; empty where there is none, and then it cannot be decoded."""
    content: bytes | None = cell["bytes"]
    if content is None and cell["path"] and Path(cell["path"]).is_file():
        content = Path(cell["path"]).read_bytes()
    return content or b""


@dataclass(frozen=True, eq=False)
class OfficialSplit:
    """One official split."""

    kind: str  # `image` or `text`
    labels: Tensor  # int64 `[N]`
    ids: list[str]  # `[N]`, the same wherever the files are
    class_names: list[str] | None  # `[K]`, where they are known
    domains: list[str] | None  # `[N]` names, where the samples have a domain
    inputs: StoredInputs  # the texts, or the encoded images

    @property
    def is_labelled(self) -> bool:
        """Whether there are labels; benchmarks hide the labels of their test set as -1."""
        return len(self.labels) > 0 and bool((self.labels >= 0).all())

    def of_domain(self, domain: str | None) -> "OfficialSplit":
        """The samples of one domain; all of them for None."""
        if domain is None or self.domains is None:
            return self
        return self.take([row for row, each in enumerate(self.domains) if each == domain])

    def take(self, rows: list[int]) -> "OfficialSplit":
        """Only some of its samples."""
        return replace(
            self,
            labels=self.labels[rows],
            ids=[self.ids[row] for row in rows],
            domains=None if self.domains is None else [self.domains[row] for row in rows],
            inputs=self.inputs.take(rows),
        )


def read_data_folder(folder: Path) -> dict[str, OfficialSplit]:
    """The Parquet or CSV files in a folder, or else its folders of images, by official split."""
    for kind in ("parquet", "csv"):
        files = _files_by_split(folder, kind)
        if files:
            return _read_tables(folder, kind, files)
    if not any(path.is_dir() for path in folder.iterdir()):
        raise DataError(f"{folder} has neither Parquet nor CSV files nor folders of images")
    # One folder per class, or such folders in one per official split.
    folders = _split_folders(folder) or {"train": folder}
    return {split: _read_images(path, folder, split) for split, path in folders.items()}


def _read_tables(
    folder: Path, kind: str, files: dict[str, list[Path]]
) -> dict[str, OfficialSplit]:
    names = {split: [str(path) for path in paths] for split, paths in files.items()}
    with _quiet_datasets() as datasets:
        try:
            found = datasets.load_dataset(kind, data_files=names)
        # The library wraps any error of its readers
        except Exception as error:
            raise DataError(
                f"cannot read the {kind} files in {folder}: {_root_cause(error)}"
            ) from None
    return {
        split: official_split(rows, split, tuple(names[split])) for split, rows in found.items()
    }


def _read_images(path: Path, root: Path, split: str) -> OfficialSplit:
    files = sorted(each for each in path.glob("*/**/*") if each.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise DataError(f"{path} has no images in folders named after their class")
    datasets = require("datasets", extra="train")
    classes = [file.relative_to(path).parts[0] for file in files]
    rows = datasets.Dataset.from_dict({"image": list(map(str, files)), "label": classes})
    rows = rows.cast_column("image", datasets.Image(decode=False))
    ids = [file.relative_to(root).as_posix() for file in files]
    return replace(official_split(rows, split, ()), ids=ids)


def official_split(
    rows: Any,  # noqa: ANN401 - a `datasets.Dataset`
    split: str,
    origin: tuple[str, ...],
) -> OfficialSplit:
    """An official split from one of `datasets`; `origin` is that of `StoredInputs`."""
    inputs = _column(rows, "inputs", INPUT_COLUMNS)
    label = _column(rows, "labels", LABEL_COLUMNS)
    is_text = getattr(rows.features[inputs], "dtype", "") in ("string", "large_string")
    labels, class_names = _labels(rows, label)
    only_inputs = rows.select_columns([inputs])
    if not is_text:
        image = require("datasets", extra="train").Image(decode=False)
        only_inputs = only_inputs.cast_column(inputs, image)
    return OfficialSplit(
        kind="text" if is_text else "image",
        labels=labels,
        ids=[f"{split}/{row}" for row in range(len(rows))],
        class_names=class_names,
        domains=_names(rows, DOMAIN_COLUMN) if DOMAIN_COLUMN in rows.column_names else None,
        inputs=StoredInputs(only_inputs[inputs], origin, range(len(rows))),
    )


def _column(rows: Any, what: str, usual: Sequence[str]) -> str:  # noqa: ANN401
    found = next((name for name in usual if name in rows.column_names), None)
    if found is None:
        raise DataError(
            f"there is no column of {what} ({', '.join(usual)}) among "
            f"{', '.join(rows.column_names)}; rename the one that holds them"
        )
    return found


def _labels(rows: Any, column: str) -> tuple[Tensor, list[str] | None]:  # noqa: ANN401
    names = getattr(rows.features[column], "names", None)
    values = rows[column][:]
    if all(isinstance(value, str) for value in values):
        names = sorted(set(values))
        number = {name: index for index, name in enumerate(names)}
        values = [number[value] for value in values]
    if not all(isinstance(value, int) for value in values):
        raise DataError(
            f"the labels in the column {column} must be all text or all whole numbers; some are "
            "empty or something else"
        )
    return torch.tensor(values, dtype=torch.int64), None if names is None else list(names)


def _names(rows: Any, column: str) -> list[str]:  # noqa: ANN401
    """A column as text, whether it is stored as text or as numbers with names."""
    names = getattr(rows.features[column], "names", None)
    return [str(names[value]) if names else str(value) for value in rows[column]]


def official_name(name: str) -> str | None:
    """The official split that a name begins with; `valid` and `dev` mean `validation`."""
    word = re.split(r"[-_.]", name.lower(), maxsplit=1)[0]
    return next((split for split, aliases in ALIASES.items() if word in aliases), None)


def _files_by_split(folder: Path, suffix: str) -> dict[str, list[Path]]:
    """Files by the official split that their name, or else their folder, begins with."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob(f"*.{suffix}")):
        split = official_name(path.stem) or official_name(path.parent.name) or "train"
        found.setdefault(split, []).append(path)
    return found


def _split_folders(folder: Path) -> dict[str, Path]:
    below = {path: official_name(path.name) for path in sorted(folder.iterdir()) if path.is_dir()}
    splits = {split: path for path, split in below.items() if split}
    return splits if "train" in splits and all(below.values()) else {}


def _root_cause(error: BaseException) -> str:
    """The first error of a chain, in words."""
    deepest = error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return f"{type(deepest).__name__}: {deepest}"


@contextmanager
def _quiet_datasets() -> Iterator[Any]:
    """The `datasets` library without its progress bars."""
    datasets = require("datasets", extra="train")
    was_quiet = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        if not was_quiet:
            datasets.enable_progress_bars()


def why_unreachable(timeout: float = HUB_TIMEOUT) -> str | None:
    """Why the hub cannot be asked, or None where it answers.

    The hub's own library retries for half a minute before it gives up. Any answer will do, even
    a refusal; proxies are used as the environment says.
    """
    switches = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in switches):
        return "the hub was not asked (offline mode)"
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host = urlsplit(address).hostname or address
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout):
            return None
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        return f"the hub cannot be reached ({host}: {error.reason})"
    except (OSError, ValueError) as error:
        return f"the hub cannot be reached ({host}: {error})"


def read_hub(repository: str, from_cache: bool = False) -> dict[str, OfficialSplit]:
    """A data set of the public hub, by official split; downloaded once and then cached.

    `from_cache` takes an earlier download, without asking the hub.
    """
    with _quiet_datasets() as datasets, _offline() if from_cache else nullcontext():
        try:
            found = datasets.load_dataset(repository)
        # Connection, permission and format errors of several libraries mean the same here
        except Exception as error:
            raise DataError(f"the hub did not give {repository}: {_root_cause(error)}") from None
    made = {}
    for name, rows in found.items():
        split = official_name(name) or name
        made[split] = official_split(rows, split, (f"{repository}, {name}",))
    return made


@contextmanager
def _offline() -> Iterator[None]:
    """Switch the hub's libraries to offline mode, which they read only when imported."""
    modules: list[Any] = [
        require("huggingface_hub.constants", extra="train"),
        require("datasets.config", extra="train"),
    ]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
