"""The four splits: their names and sizes, and which samples go into which."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor
from torch.utils.data import Dataset

from offramp import check
from offramp.errors import FileFormatError, SplitError
from offramp.files import write_text


def shuffled(ids: Sequence[str], seed: int) -> list[int]:
    """Positions of the ids in an order fixed by the seed.

    Every id is hashed together with the seed, and the hashes are sorted. The order is therefore
    the same in every process, on every machine and with every version of numpy and torch, and
    does not depend on the order in which files are listed.

    Example:
        >>> shuffled(["a", "b", "c", "d"], seed=0)
        [3, 0, 2, 1]
    """
    keys = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in ids]
    return sorted(range(len(keys)), key=keys.__getitem__)


SPLITS = ("train", "held_out", "val", "test")
Size = TypeVar("Size", int, int | None)
InputTensors: TypeAlias = Tensor | dict[str, Tensor]


@runtime_checkable
class Data(Protocol):
    """One split: a map-style data set of `(inputs, label)` that knows its samples.

    Attributes:
        split: `train`, `held_out`, `val` or `test`.
        sample_ids: `[N]` distinct ids, the same in every run.
        num_classes: K.
        class_names: `[K]`, where they are known.
        labels: int64 `[N]`.
    """

    @property
    def split(self) -> str: ...  # noqa: D102

    @property
    def sample_ids(self) -> list[str]: ...  # noqa: D102

    @property
    def num_classes(self) -> int: ...  # noqa: D102

    @property
    def class_names(self) -> list[str] | None: ...  # noqa: D102

    @property
    def labels(self) -> Tensor: ...  # noqa: D102

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> tuple[InputTensors, int]: ...

    def batch(self, index: Tensor) -> tuple[InputTensors, Tensor]:
        """InputTensors and labels of many samples at once, ready for the network."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledData(Dataset[tuple[Any, int]]):
    """What the data sets of this library have in common, see `Data`."""

    labels: Tensor = field(repr=False)
    split: str
    sample_ids: list[str] = field(repr=False)
    num_classes: int
    class_names: list[str] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Splits(Mapping[str, Data]):
    """Four disjoint splits of one data set: attributes, and a mapping by name.

    Args:
        name: What was loaded.
        seed: That the splits were made with.
        train: For the network's weights.
        held_out: For answers and scorers.
        val: For thresholds.
        test: For figures.

    Raises:
        SplitError: Two splits share a sample.

    Example:
        >>> from offramp.data import load
        >>> splits = load("mixture")
        >>> {name: len(data) for name, data in splits.items()}
        {'train': 4000, 'held_out': 2000, 'val': 2000, 'test': 4000}
        >>> splits.val is splits["val"]
        True
    """

    name: str
    seed: int
    train: Data
    held_out: Data
    val: Data
    test: Data

    def __post_init__(self) -> None:
        owner: dict[str, str] = {}
        for split in SPLITS:
            for sample in self[split].sample_ids:
                if owner.setdefault(sample, split) != split:
                    raise SplitError(
                        f"{self.name}: sample {sample} is in {owner[sample]} and in {split}; "
                        "the four splits must be disjoint"
                    )

    def __getitem__(self, split: str) -> Data:
        if split not in SPLITS:
            raise KeyError(split)
        data: Data = getattr(self, split)
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(SPLITS)

    def __len__(self) -> int:
        return len(SPLITS)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}: {len(data)}" for split, data in self.items())
        skipped = sum(len(getattr(data, "skipped", ())) for data in self.values())
        broken = f", broken images skipped: {skipped}" if skipped else ""
        return f"Splits({self.name!r}, seed={self.seed}, {sizes}{broken})"

    @property
    def fingerprint(self) -> str:
        """A short text that is the same if and only if all four splits hold the same samples."""
        ids = json.dumps({split: self[split].sample_ids for split in SPLITS})
        return hashlib.sha256(ids.encode()).hexdigest()[:16]

    def save_ids(self, path: str | Path) -> Path:
        """Write which samples are in which split, as JSON."""
        content = {
            "format": "offramp-splits",
            "name": self.name,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "sample_ids": {split: self[split].sample_ids for split in SPLITS},
        }
        return write_text(Path(path), json.dumps(content) + "\n")

    def check_ids(self, path: str | Path) -> None:
        """Raise unless these are the splits that `save_ids` wrote.

        Raises:
            FileFormatError: The file is not one of `save_ids`.
            SplitError: The splits hold other samples.
        """
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileFormatError(f"cannot read the splits in {path}: {error}") from None
        if not isinstance(content, dict) or content.get("format") != "offramp-splits":
            raise FileFormatError(f"{path} was not written by `Splits.save_ids`")
        if content.get("fingerprint") != self.fingerprint:
            raise SplitError(
                f"{path} records other splits ({content.get('name')}, seed "
                f"{content.get('seed')}) than {self.name} with seed {self.seed} gives now; use "
                "that seed and those sizes, and check that the data on disk did not change"
            )


def with_default_sizes(
    sizes: Mapping[str, int] | None, default: Mapping[str, Size]
) -> dict[str, int | Size]:
    """The default, replaced by sizes; one below one, or of another split, is a `ConfigError`."""
    for split, size in (sizes or {}).items():
        check.one_of("sizes", split, SPLITS)
        check.whole(split, size, 1)
    return {**default, **(sizes or {})}


def assign_splits(ids: Sequence[str], sizes: Mapping[str, int], seed: int) -> dict[str, list[int]]:
    """Assign samples to splits: as many as in `sizes`, in that order, and the rest to `train`.

    Returns increasing positions in `ids`. The same distinct ids and seed give the same splits.

    Example:
        >>> assign_splits(["a", "b", "c", "d"], {"held_out": 1, "val": 1}, seed=0)
        {'held_out': [3], 'val': [0], 'train': [1, 2]}
    """
    if sum(sizes.values()) >= len(ids):
        asked = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise SplitError(
            f"{asked} leave none of the {len(ids)} samples to train on; ask for fewer with "
            "`held_out=` and `val=`"
        )
    order = shuffled(ids, seed)
    assigned: dict[str, list[int]] = {}
    start = 0
    for name, size in sizes.items():
        assigned[name] = sorted(order[start : start + size])
        start += size
    assigned["train"] = sorted(order[start:])
    return assigned
