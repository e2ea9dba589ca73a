"""The four splits: their names and sizes, and which samples go into which."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from offramp import check
from offramp.errors import SplitError


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
InputTensors: TypeAlias = Tensor | dict[str, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Data(Dataset[tuple[InputTensors, int]]):
    """One split: a map-style data set of `(inputs, label)` that knows its samples.

    Attributes:
        split: `train`, `held_out`, `val` or `test`.
        sample_ids: `[N]` distinct ids, the same in every run.
        num_classes: K.
        class_names: `[K]`, where they are known.
        labels: int64 `[N]`.
    """

    labels: Tensor = field(repr=False)
    split: str
    sample_ids: list[str] = field(repr=False)
    num_classes: int
    class_names: list[str] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> tuple[InputTensors, int]:
        if not -len(self) <= position < len(self):
            raise IndexError(f"there are {len(self)} samples, got position {position}")
        inputs, labels = self.batch(torch.tensor([position % len(self)]))
        if isinstance(inputs, dict):
            return {name: each[0] for name, each in inputs.items()}, int(labels[0])
        return inputs[0], int(labels[0])

    def batch(self, index: Tensor) -> tuple[InputTensors, Tensor]:
        """Inputs and labels of the samples at positions `[n]`, ready for the network."""
        raise NotImplementedError


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


def with_default_sizes(
    sizes: Mapping[str, int] | None, default: Mapping[str, int]
) -> dict[str, int]:
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
