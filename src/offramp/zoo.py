"""The shipped networks, one with its ledgers: a comparison without data or training."""

import json
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import FileFormatError
from offramp.ledger import Ledger

if TYPE_CHECKING:
    from offramp.networks import EarlyExitNetwork

__all__ = ["Shipped", "about_cifar100", "cifar100", "cifar100_thin"]

SPLITS = ("held_out", "val", "test")


class Shipped(dict[str, Any]):
    """The ledgers of a trained network on three splits that it was not trained on.

    The network itself is there under `network`. It is loaded on first use, since it needs torch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__({split: Ledger.load(folder / split) for split in SPLITS})
        self._folder = folder

    def __missing__(self, name: str) -> "EarlyExitNetwork":
        if name != "network":
            raise KeyError(name)
        return self._network

    @cached_property
    def _network(self) -> "EarlyExitNetwork":
        from offramp.networks import EarlyExitNetwork

        return EarlyExitNetwork.load(self._folder / "network")


def cifar100() -> Shipped:
    """EfficientNet-Lite0 with seven exits, fine-tuned on CIFAR-100 at 128 pixels, and its ledgers.

    It takes the images of `data.load("cifar100", image_size=128)`, and 80.1 % of its last answers
    are right. The ledgers are float16, of 1,500 held_out, 1,500 val and 2,000 test images, drawn
    at random from those splits. How they were made: `about_cifar100()`.

    Returns:
        A mapping with the ledgers `held_out`, `val` and `test`, and with the `network`.

    Raises:
        FileFormatError: The files were not installed with this package.

    Example:
        >>> shipped = cifar100()
        >>> shipped["test"]
        Ledger(split='test', 2,000 samples, 7 exits, 100 classes, macs costs)
        >>> shipped["network"].num_classes
        100
    """
    return Shipped(_folder("cifar100", (*SPLITS, "network")))


def about_cifar100() -> dict[str, Any]:
    """How the network and its ledgers were made: commands, settings, versions, accuracies.

    Example:
        >>> about_cifar100()["data"]
        'cifar100'
    """
    text = (_folder("cifar100", ()) / "about.json").read_text(encoding="utf-8")
    about: dict[str, Any] = json.loads(text)
    return about


def cifar100_thin() -> "EarlyExitNetwork":
    """A small network for the same classes: ResNet-20 with an exit after each of its nine blocks.

    It takes the images of `data.load("cifar100")` at 32 pixels, and 58 % of its last answers are
    right. Accuracies, costs and commands: paper/docs/resnet20.md.

    Raises:
        FileFormatError: The files were not installed with this package.
    """
    from offramp.networks import EarlyExitNetwork

    return EarlyExitNetwork.load(_folder("cifar100-thin", ("network",)) / "network")


def _folder(name: str, parts: tuple[str, ...]) -> Path:
    place = Path(str(files("offramp"))) / "zoo_data" / name
    missing = [part for part in parts if not (place / part).is_dir()]
    if missing:
        raise FileFormatError(
            f"the shipped network `{name}` is not installed: {place} lacks {', '.join(missing)}; "
            "install offramp from a release or a full checkout"
        )
    return place
