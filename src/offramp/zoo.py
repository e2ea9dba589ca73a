"""The shipped networks, one with its ledgers: a comparison without data or training."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

from offramp.errors import FileFormatError
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork

__all__ = ["Shipped", "about_cifar100", "cifar100", "cifar100_lite0"]


class Shipped(TypedDict):
    """A trained network, and its logits on three splits that it was not trained on."""

    held_out: Ledger
    val: Ledger
    test: Ledger
    network: EarlyExitNetwork


def cifar100() -> Shipped:
    """A thin ResNet-20 with nine exits, trained on CIFAR-100, and its ledgers.

    The ledgers are float16, of 2,000 held_out, 2,000 val and 2,500 test images, drawn at random
    from the splits of `data.load("cifar100")`. How they were made: `about_cifar100()`.

    Returns:
        A mapping with `held_out`, `val`, `test` and `network`.

    Raises:
        FileFormatError: The files were not installed with this package.

    Example:
        >>> shipped = cifar100()
        >>> shipped["test"]
        Ledger(split='test', 2,500 samples, 9 exits, 100 classes, macs costs)
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


def cifar100_lite0() -> EarlyExitNetwork:
    """EfficientNet-Lite0 with seven exits, fine-tuned on CIFAR-100 at 96 pixels.

    It takes the images of `data.load("cifar100", image_size=96)`. Weights are stored in float16
    and loaded in float32. Accuracies, costs and commands: docs/results/cifar100-lite0.md.

    Raises:
        FileFormatError: The files were not installed with this package.
    """
    place = _folder("cifar100-lite0", ("network",))
    return EarlyExitNetwork.load(place / "network").float()


def _folder(name: str, parts: tuple[str, ...]) -> Path:
    place = Path(str(files("offramp"))) / "zoo_data" / name
    missing = [part for part in parts if not (place / part).is_dir()]
    if missing:
        raise FileFormatError(
            f"the shipped network `{name}` is not installed: {place} lacks {', '.join(missing)}; "
            "install offramp from a release or a full checkout"
        )
    return place
