"""`TrainHistory`: the metrics of each epoch; as JSON lines, and in TensorBoard."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offramp.errors import FileFormatError
from offramp.extras import require
from offramp.files import restore, write_text
from offramp.run_folder import RunFolder


@dataclass
class TrainHistory:
    """One record per epoch, and how training ended.

    Args:
        records: Dicts with `phase`, `epoch`, `loss`, `learning_rate`, `train_accuracy` per
            exit, `seconds`, `device`, `precision`, and with early stopping `accuracy` per exit on
            the stopping slice.
        stopped: For each phase, why it ended: `epochs` or `patience`.
        resumed: Whether an interrupted run was resumed.

    Example:
        >>> history = TrainHistory([{"phase": "network", "epoch": 0, "accuracy": [0.5, 0.75]}])
        >>> len(history), history.last["accuracy"], history.chosen["epoch"]
        (1, [0.5, 0.75], 0)
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: dict[str, str] = field(default_factory=dict)
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

    def write(self, path: Path) -> Path:
        """Write the records as JSON lines, atomically."""
        return write_text(path, "".join(json.dumps(record) + "\n" for record in self.records))

    @classmethod
    def read(cls, path: str | Path) -> "TrainHistory":
        """Read JSON lines that `write` wrote; anything else is a `FileFormatError`."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            records = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} does not hold JSON lines: {error}") from None
        return cls(restore(list[dict[str, Any]], records, str(path)))


class HistoryWriter:
    """Writes the metrics of a run to `history.jsonl` and to TensorBoard.

    Args:
        folder: Of the run; None to write nothing.
        tensorboard: Whether to write for TensorBoard; None: if it is installed.

    Raises:
        MissingExtraError: TensorBoard is wanted and not installed.
    """

    def __init__(self, folder: Path | None, tensorboard: bool | None) -> None:
        self.run = None if folder is None else RunFolder(folder)
        self._writer: Any = None
        self._wanted = find_spec("tensorboard") is not None if tensorboard is None else tensorboard
        if folder is not None and self._wanted:
            require("tensorboard", extra="train")

    def epoch(self, history: TrainHistory) -> None:
        """Write the last epoch of a history."""
        if self.run is None:
            return
        history.write(self.run.history)
        if not self._wanted:
            return
        record, step = history.last, len(history) - 1
        if self._writer is None:
            tensorboard = require("torch.utils.tensorboard", extra="train")
            # What a killed run wrote about this epoch and later ones is discarded.
            folder = str(self.run.tensorboard)
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
