"""`RunFolder`: what is where in the folder of a run.

`train` makes the folder and `record` adds ledgers; all others find the files of a run here.
"""

import os
from pathlib import Path


class RunFolder:
    """The folder of a run, or of a network that was saved by itself.

    Args:
        path: The folder, which need not be there yet.

    Example:
        >>> run = RunFolder("runs/digits")
        >>> run.ledger("val").as_posix(), run.history.as_posix()
        ('runs/digits/ledgers/val', 'runs/digits/history.jsonl')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint"  # what a killed run is resumed from
        self.settings = self.path / "train.json"
        self.history = self.path / "history.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.trained = self.path / "network"  # where training writes the network
        self.ledgers = self.path / "ledgers"
        self.source = self.path / "data.json"  # which data the run uses, see `Source`

    def ledger(self, split: str) -> Path:
        """The ledger of a split."""
        return self.ledgers / split

    @property
    def network(self) -> Path:
        """The saved network: inside the folder of a run, or the given folder itself."""
        return self.trained if self.trained.is_dir() else self.path

    @property
    def has_network(self) -> bool:
        """Whether there is a saved network."""
        return (self.network / "network.json").is_file()

    @property
    def known_source(self) -> Path | None:
        """The file that names the data, also where the folder is that of a run's network."""
        path = Path(os.path.realpath(self.path))  # `resolve` raises where links lead in a circle
        runs = (path, path.parent) if path.name == self.trained.name else (path,)
        return next((found for run in runs if (found := RunFolder(run).source).is_file()), None)
