"""The shipped networks, one with its ledgers: a comparison without data or training."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

from offramp.errors import FileFormatError
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork

__all__ = ["Shipped", "about_cifar100", "cifar100", "cifar100_thin"]


class Shipped(TypedDict):
    """A trained network, and its logits on three splits that it was not trained on."""

    held_out: Ledger
    val: Ledger
    test: Ledger
    network: EarlyExitNetwork


def cifar100() -> Shipped:
    """EfficientNet-Lite0 with seven exits, fine-tuned on CIFAR-100 at 128 pixels, and its ledgers.

    It takes the images of `data.load("cifar100", image_size=128)`, and 80.1 % of its last answers
    are right. The ledgers are float16, of 1,500 held_out, 1,500 val and 2,000 test images, drawn
    at random from those splits. How they were made: `about_cifar100()`.

    Returns:
        A mapping with `held_out`, `val`, `test` and `network`.

    Raises:
        FileFormatError: The files were not installed with this package.

    Example:
        >>> shipped = cifar100()
        >>> shipped["test"]
        Ledger(split='test', 2,000 samples, 7 exits, 100 classes, macs costs)
        >>> shipped["network"].num_classes
        100
    """
    place = _folder("cifar100", ("held_out", "val", "test", "network"))
    return Shipped(
        held_out=Ledger.load(place / "held_out"),
        val=Ledger.load(place / "val"),
        test=Ledger.load(place / "test"),
        network=EarlyExitNetwork.load(place / "network"),
    )


def about_cifar100() -> dict[str, Any]:
    """How the network and its ledgers were made: commands, settings, versions, accuracies.

    Example:
        >>> about_cifar100()["data"]
        'cifar100'
    """
    text = (_folder("cifar100", ()) / "about.json").read_text(encoding="utf-8")
    about: dict[str, Any] = json.loads(text)
    return about


def cifar100_thin() -> EarlyExitNetwork:
    """A small network for the same classes: ResNet-20 with an exit after each of its nine blocks.

    It takes the images of `data.load("cifar100")` at 32 pixels, and 58 % of its last answers are
    right. Accuracies, costs and commands: docs/results/cifar100.md.

    Raises:
        FileFormatError: The files were not installed with this package.
    """
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
