"""What a shift of the inputs does to exits: accuracy, cost, EEFP and ECE on corrupted images.

Takes the folder of a run of `offramp train` on images, with its ledgers. Policies are fitted and
tuned on clean held_out and val samples, for half of the compute; then they meet test images with
noise, blur, less contrast, coarse pixels or JPEG's artefacts, in five strengths each.

    python -m offramp_paper.experiments.shift runs/cifar100-lite0 --samples 2000 --out shift.md

Ledgers of corrupted images are kept in the folder of the run: if killed, the same command resumes.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.data import Subset

import offramp
from offramp.data import ImageData, Source, Splits, cluttered_digits
from offramp.evaluation import Outcome, evaluate
from offramp.ledger import Ledger
from offramp.methods import find_methods
from offramp.networks import EarlyExitNetwork
from offramp_paper.corruptions import CORRUPTIONS, STRENGTHS, corrupted

METHODS = ("baseline:smooth", "temperature:smooth", "eefp:smooth", "eefp-logistic", "break-even")
HEAD = ("corruption", "strength", "full", *(f"`{name}`" for name in METHODS), "ECE", "EEFP")


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/shift"))
    parser.add_argument("--samples", type=int, default=2000, help="test images of each corruption")
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--out", type=Path, help="write the table there as well")
    parser.add_argument("--quick", action="store_true", help="a small network on digits")
    return parser.parse_args()


@dataclass(frozen=True)
class Case:
    """A network with test images, and its ledgers of held_out and val."""

    network: EarlyExitNetwork
    clean: ImageData
    original: ImageData  # the same images as they are in the data set, which may be smaller
    ledgers: dict[str, Ledger]
    image_size: int | None = None  # that they are enlarged to

    def images(self, kind: str, strength: int) -> ImageData:
        """Test images, corrupted as they are and enlarged then."""
        if kind == "clean":
            return self.clean
        return corrupted(self.original, kind, strength, self.image_size)


def prepared(chosen: argparse.Namespace) -> Case:
    """The network of the run, its data and its ledgers."""
    if chosen.quick:
        torch.manual_seed(0)
        splits = cluttered_digits(0, dict.fromkeys(("train", "held_out", "val", "test"), 200), 16)
        network = offramp.build("convnet", splits.train.num_classes, image_size=16)
        offramp.train(network, splits.train, config=offramp.TrainConfig(epochs=2))
        ledgers = {
            name: offramp.record(network.eval(), splits[name], progress=False)
            for name in ("held_out", "val")
        }
        test = images_of(splits)
        return Case(network, test, test, ledgers)
    source = Source.find(chosen.run)
    if source is None:
        raise SystemExit(f"{chosen.run} is not the folder of a run of `offramp train`")
    network = EarlyExitNetwork.load(chosen.run / "network").eval()
    ledgers = {name: Ledger.load(chosen.run / "ledgers" / name) for name in ("held_out", "val")}
    clean, original = (
        images_of(each.load()) for each in (source, replace(source, image_size=None))
    )
    return Case(network, clean, original, ledgers, source.image_size)


def images_of(splits: Splits) -> ImageData:
    """The test images."""
    test = splits["test"]
    if not isinstance(test, ImageData):
        raise SystemExit("corruptions are for images")
    return test


def recorded(
    network: EarlyExitNetwork, data: ImageData, rows: Sequence[int], place: Path | None
) -> Ledger:
    """What the exits say on some images, from a file if it is there."""
    if place is not None and place.is_dir():
        return Ledger.load(place)
    ledger = offramp.record(network, Subset(data, rows), "test", progress=False)
    if place is not None:
        ledger.save(place)
    return ledger


def row(kind: str, strength: int, outcomes: Sequence[Outcome]) -> str:
    """One line of the table: accuracies at mean costs, and ECE and EEFP of all methods in turn."""
    cells = [kind, str(strength or ""), f"{100 * outcomes[0].full_accuracy:.1f}"]
    cells += [f"{100 * each.accuracy:.1f} at {each.mean_cost:.1%}" for each in outcomes]
    for figure in ("ece", "eefp"):
        means = (float(getattr(each, figure)[:-1].mean()) for each in outcomes)
        cells.append(", ".join(map(_digits, means)))
    return f"| {' | '.join(cells)} |"


def _digits(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def main() -> None:
    """Fit once, and measure on every corruption."""
    chosen = options()
    case = prepared(chosen)
    count, ledgers = min(chosen.samples, len(case.clean)), case.ledgers
    drawn = torch.randperm(len(case.clean), generator=torch.Generator().manual_seed(0))
    lines = [f"| {' | '.join(HEAD)} |", "|---|---:|---:|" + "---:|" * len(METHODS) + "---|---|"]
    policies = {
        method.name: method.plans(ledgers["held_out"], ledgers["val"], [chosen.budget], seeds=1)[0]
        for method in find_methods(METHODS, ledgers["val"].num_classes)
    }
    cases: list[tuple[str, int]] = [("clean", 0)]
    cases += [(kind, strength) for kind in CORRUPTIONS for strength in STRENGTHS]
    print("\n".join(lines), flush=True)
    for kind, strength in cases:
        place = None if chosen.quick else chosen.run / "shifted" / f"{kind}-{strength}-{count}"
        images = case.images(kind, strength)
        ledger = recorded(case.network, images, drawn[:count].tolist(), place)
        outcomes = [evaluate(plan[chosen.budget], ledger) for plan in policies.values()]
        lines.append(row(kind, strength, outcomes))
        print(lines[-1], flush=True)
    if chosen.out is not None:
        chosen.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
