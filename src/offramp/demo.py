"""The demo, a script to copy from: data, network, training, ledgers, comparison, page.

A second run does nothing, and one that was killed goes on where it was: `train` resumes by itself,
and `once` knows what it has made.
"""

from pathlib import Path

from offramp import zoo
from offramp.data import cluttered_digits
from offramp.evaluation import Comparison, compare
from offramp.ledger import Ledger
from offramp.made import once, versions
from offramp.networks import build_for_data
from offramp.record import record
from offramp.report import Section, hopeless_strip, read_comparison, write_comparison, write_page
from offramp.training import TrainConfig, train

METHODS = ("baseline", "temperature", "eefp", "eefp-no-history", "ccct")
QUICK_SIZES = {"train": 150, "held_out": 150, "val": 150, "test": 150}
ABOUT = (
    "Trains a small network with four exits on images that are made on the spot, and compares "
    "exit methods on it and on the shipped logits of EfficientNet-Lite0 with seven exits for "
    "CIFAR-100."
)
SHIPPED = (
    "The ledgers of EfficientNet-Lite0 with seven exits, recorded on images that it was not "
    "trained on, come with the package."
)


def demo(
    folder: str | Path = "runs/demo",
    device: str = "auto",
    quick: bool = False,
    progress: bool = True,
) -> dict[str, Comparison]:
    """Train a small network with exits, and compare exit methods on it and on a real network.

    Args:
        folder: For everything that is made; the page is its `report.html`.
        device: Where the network is trained and recorded.
        quick: Few images, one epoch and one seed: all steps in seconds, and figures of no worth.
        progress: Whether progress is shown, on stderr.

    Returns:
        Both comparisons by name.
    """
    folder = Path(folder)

    # Data: images of digits in clutter, in four splits of different digits.
    digits = cluttered_digits(seed=0, sizes=QUICK_SIZES if quick else None)

    # A network of four blocks, with an exit after each.
    network = build_for_data("convnet", digits.train, seed=0)
    config = TrainConfig(epochs=1 if quick else 8, learning_rate=0.01, device=device)
    train(network, digits.train, config=config, folder=folder / "network", progress=progress)

    # Ledgers: what every exit says about images that the network was not trained on.
    def recorded(split: str) -> Ledger:
        def make(place: Path) -> None:
            record(network, digits[split], device=device, progress=progress).save(place)

        inputs = {"network": network.fingerprint(), "data": digits.fingerprint}
        return Ledger.load(once(folder / "ledgers" / split, inputs, make), split)

    ours = {split: recorded(split) for split in ("held_out", "val", "test")}
    shipped = zoo.cifar100()
    theirs = {split: shipped[split] for split in ("held_out", "val", "test")}

    # Methods are fitted on held_out, tuned on val, and compared on test.
    seeds, resamples = (1, 20) if quick else (3, 1000)

    def compared(name: str, ledgers: dict[str, Ledger], origin: object) -> Comparison:
        def make(place: Path) -> None:
            held_out, val, test = (ledgers[split] for split in ("held_out", "val", "test"))
            shares = [0.25, 0.5, 0.75]
            found = compare(
                held_out, val, test, METHODS, shares, seeds, resamples, progress=progress
            )
            write_comparison(found, place, page=False)

        inputs = [origin, METHODS, seeds, resamples]
        comparison, _ = read_comparison(once(folder / name, inputs, make))
        return comparison

    comparisons = {
        "digits": compared("digits", ours, folder / "ledgers"),
        "cifar100": compared("cifar100", theirs, zoo.about_cifar100()),
    }

    # A page with both.
    def write(place: Path) -> None:
        sections = [
            Section("About", note=ABOUT),
            Section(
                "Cluttered digits: a convnet trained in this run",
                comparisons["digits"],
                samples=hopeless_strip(ours["test"], digits.test),
            ),
            Section("CIFAR-100: the shipped EfficientNet-Lite0", comparisons["cifar100"], SHIPPED),
        ]
        provenance = {"command": "offramp demo", "seeds": seeds, "versions": versions()}
        write_page(place / "report.html", "Demo: from nothing to a policy", sections, provenance)

    once(folder, [folder / name for name in comparisons], write)
    return comparisons
