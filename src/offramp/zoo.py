"""The zoo: real ledgers and the network behind them, shipped with the package."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from offramp.errors import FileFormatError
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork

__all__ = ["cifar100", "folder"]

_SPLITS = ("held_out", "val", "test")


def folder(name: str) -> Path:
    """Where the files of a member of the zoo are.

    Raises:
        FileFormatError: They were not installed with this package.
    """
    place = Path(str(files("offramp"))) / "zoo_data" / name
    missing = [part for part in (*_SPLITS, "network") if not (place / part).is_dir()]
    if missing:
        raise FileFormatError(
            f"the zoo's `{name}` is not installed: {place} lacks {', '.join(missing)}; install "
            "offramp from a release or a full checkout"
        )
    return place


def cifar100() -> dict[str, Any]:
    """The thin ResNet with nine exits on CIFAR-100, and its ledgers.

    Returns:
        `held_out`, `val` and `test`, each a `Ledger`; and `network`, an `EarlyExitNetwork`.

    Raises:
        FileFormatError: The files were not installed with this package.
    """
    place = folder("cifar100")
    ledgers: dict[str, Any] = {split: Ledger.load(place / split, split) for split in _SPLITS}
    return {**ledgers, "network": EarlyExitNetwork.load(place / "network")}
