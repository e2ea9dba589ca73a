"""What a run writes: the history of its epochs, and checkpoints to resume it to the same result.

Weights, the optimiser's moments and the best weights so far are tensors in one safetensors file;
the place in the run, the history and the command are JSON. The data's order, the augmentation and
all randomness follow from the seed and the place, and the learning rate from the place alone.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offramp.errors import ConfigError, FileFormatError
from offramp.files import read_folder, restore, write_folder, write_text
from offramp.imports import require
from offramp.networks.network import distinct_tensors
from offramp.run_folder import RunFolder
from offramp.training.config import HARMLESS


def seed_at(*place: int | str) -> int:
    """A seed of 63 bits for a place, such as `(seed, "order", phase, epoch)`."""
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def generator_at(*place: int | str) -> torch.Generator:
    """A generator for a place.

    Example:
        >>> first, again = (torch.randperm(9, generator=generator_at(0, "order")) for _ in "ab")
        >>> torch.equal(first, again)
        True
    """
    return torch.Generator().manual_seed(seed_at(*place))


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and `random`: dropout and data sets may draw from them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Restore the caller's random states afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    apple = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            if apple is not None:
                torch.mps.set_rng_state(apple)
            np.random.set_state(numpy_state)
            random.setstate(python_state)


_VERSION = 1


@dataclass
class Place:
    """Where a run is, and what a checkpoint holds besides tensors.

    Args:
        phase: Number of the phase.
        epoch: Number of the epoch within it.
        step: Steps done within the epoch.
        best: Best accuracy on the stopping slice in this phase, and its epoch.
        sums: Over the current epoch: samples, loss, and per exit the number of correct answers.
        seconds: Spent on the current epoch.
        finished: Whether the run has ended.
    """

    phase: int = 0
    epoch: int = 0
    step: int = 0
    best: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    seconds: float = 0.0
    finished: bool = False


@dataclass
class TrainHistory:
    """One record per epoch, and how training ended.

    Args:
        records: Dicts with `phase`, `epoch`, `loss`, `learning_rate`, `train_accuracy` per
            exit, `seconds`, `device`, `precision`, and with early stopping `accuracy` per exit on
            the stopping slice.
        stopped: For each phase, why it ended: `epochs` or `patience`.
        objective: What the objective has changed while training, such as a temperature.
        resumed: Whether an interrupted run was resumed.

    Example:
        >>> history = TrainHistory([{"phase": "network", "epoch": 0, "accuracy": [0.5, 0.75]}])
        >>> len(history), history.last["accuracy"], history.chosen["epoch"]
        (1, [0.5, 0.75], 0)
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: dict[str, str] = field(default_factory=dict)
    objective: dict[str, float] = field(default_factory=dict)
    resumed: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's record."""
        return self.records[-1]

    @property
    def chosen(self) -> dict[str, Any]:
        """The record of the epoch whose weights were taken.

        With early stopping, the first with the best accuracy of the last phase; else the last.
        """
        phase = [each for each in self.records if each["phase"] == self.last["phase"]]
        if "accuracy" not in self.last:
            return self.last
        return max(phase, key=lambda each: sum(each["accuracy"]))


@dataclass(frozen=True)
class _Description:
    """What `RunFiles.save` writes."""

    command: dict[str, Any]
    place: Place
    history: TrainHistory


class RunFiles:
    """What is in the folder of a run: its settings, its metrics, and a checkpoint to resume from.

    Args:
        folder: None to write nothing.
        command: What was asked for, as JSON values. A run is only resumed by the same command.
        is_main: Whether this process writes; all processes read.
        tensorboard: Whether metrics go to TensorBoard, too; None: if it is installed.

    Raises:
        MissingExtraError: TensorBoard is wanted and not installed.
    """

    def __init__(
        self,
        folder: Path | None,
        command: dict[str, Any],
        is_main: bool = True,
        tensorboard: bool | None = None,
    ) -> None:
        self.read = None if folder is None else RunFolder(folder)
        self.written = self.read if is_main else None
        self.command = command
        self._writer: Any = None
        self._wanted = find_spec("tensorboard") is not None if tensorboard is None else tensorboard
        if self.written is not None and self._wanted:
            require("tensorboard", extra="train")

    def save(self, place: Place, history: TrainHistory, tensors: dict[str, Tensor]) -> None:
        """Replace the checkpoint, atomically."""
        if self.written is not None:
            meta = asdict(_Description(self.command, place, history))
            write_folder(self.written.checkpoint, "checkpoint", _VERSION, meta, tensors)

    def load(self) -> tuple[Place, TrainHistory, dict[str, Tensor]] | None:
        """What `save` wrote, or None if there is nothing yet.

        Raises:
            ConfigError: The folder holds a run that was started differently.
            FileFormatError: It is damaged.
        """
        folder = None if self.read is None else self.read.checkpoint
        if folder is None or not (folder / "checkpoint.json").exists():
            return None
        meta, tensors = read_folder(folder, "checkpoint", _VERSION, tensors=True)
        where = f"{folder} is not a complete checkpoint"
        found: _Description = restore(_Description, meta, where)
        before = found.command
        differences = [
            f"{name}: {before.get(name)!r} there, {self.command.get(name)!r} here"
            for name in sorted(self.command.keys() | (before.keys() - HARMLESS))
            if before.get(name) != self.command.get(name)
        ]
        if differences:
            raise ConfigError(
                f"{folder.parent} holds a run with other settings ({'; '.join(differences)}); use "
                "the same ones to resume it, or another folder"
            )
        return found.place, found.history, tensors

    def begin(self, machine: dict[str, Any]) -> None:
        """Write the settings of a new run, and what it runs on."""
        if self.written is not None:
            text = json.dumps({**self.command, **machine}, indent=1)
            write_text(self.written.settings, text + "\n")

    def epoch(self, history: TrainHistory) -> None:
        """Write the metrics, and to TensorBoard those of the last epoch."""
        if self.written is None:
            return
        lines = [json.dumps(record) + "\n" for record in history]
        write_text(self.written.history, "".join(lines))
        if not self._wanted:
            return
        record, step = history.last, len(history) - 1
        if self._writer is None:
            tensorboard = require("torch.utils.tensorboard", extra="train")
            # What a killed run wrote about this epoch and later ones is discarded.
            folder = str(self.written.tensorboard)
            self._writer = tensorboard.SummaryWriter(folder, purge_step=step)
        for name in ("loss", "learning_rate"):
            self._writer.add_scalar(f"{record['phase']}/{name}", record[name], step)
        for name in ("accuracy", "train_accuracy"):
            for exit_index, value in enumerate(record.get(name, ())):
                self._writer.add_scalar(f"{record['phase']}/{name}/{exit_index}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        if self._writer is not None:
            self._writer.close()


def weights(network: nn.Module, prefix: str) -> dict[str, Tensor]:
    """All weights and buffers, under one name each, with a prefix."""
    return {prefix + name: each.detach() for name, each in distinct_tensors(network).items()}


def fill(network: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Copy tensors into the network, in place: memory formats and tied weights are kept.

    Raises:
        FileFormatError: A tensor is missing or has another shape.
    """
    for name, target in weights(network, prefix).items():
        source = tensors.get(name)
        if source is None or source.shape != target.shape:
            raise FileFormatError(
                f"the checkpoint does not fit this network: {name} is "
                f"{'missing' if source is None else list(source.shape)} there and "
                f"{list(target.shape)} here; was the network changed?"
            )
        target.copy_(source)
