"""Make the files that ship with the package from a training run and its ledgers.

All commands, with CIFAR-100 below the folder in OFFRAMP_DATA (the first takes hours):

    offramp train --data cifar100 --network thin-resnet --augment light --patience 0 ... --out RUN
    offramp record RUN --data cifar100
    python tools/make_zoo.py RUN
"""

import argparse
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from offramp.ledger import Ledger
from offramp.storage import write_text

TARGET = Path(__file__).parents[1] / "src" / "offramp" / "zoo_data" / "cifar100"
SIZES = {"held_out": 2_000, "val": 2_000, "test": 2_500}
SEED = 0


def main() -> None:
    """Write network, ledgers and `about.json` into the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of `offramp train`, with its ledgers")
    parser.add_argument("--command", required=True, help="the training command, for the label")
    parser.add_argument("--hours", type=float, required=True, help="that training took")
    chosen = parser.parse_args()
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(chosen.run / "network", TARGET / "network")
    full = {split: Ledger.load(chosen.run / "ledgers" / split) for split in SIZES}
    for split, ledger in full.items():
        drawn(ledger, SIZES[split]).save(TARGET / split)
    about = {
        "network": "thin ResNet-20 (16, 32, 64 channels), an exit after each of its nine blocks",
        "data": "cifar100",
        "splits": "offramp.data.load('cifar100'), seed 0: trained on 40,000 images of train",
        "train": json.loads((chosen.run / "train.json").read_text()),
        "commands": [chosen.command, "offramp record RUN --data cifar100"],
        "machine": f"2 CPU cores, {chosen.hours:.1f} hours of training",
        "subsets": f"drawn at random without replacement, seed {SEED}: {SIZES}",
        "accuracy": {split: accuracies(ledger) for split, ledger in full.items()},
        "samples_behind_accuracy": {split: len(ledger) for split, ledger in full.items()},
        "versions": {name: version(name) for name in ("offramp", "torch")},
        "images": "CIFAR-100 (Krizhevsky 2009); no image is shipped, only logits and labels",
    }
    write_text(TARGET / "about.json", json.dumps(about, indent=1) + "\n")
    megabytes = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file()) / 1e6
    print(f"{TARGET}: {megabytes:.1f} MB")


def drawn(ledger: Ledger, size: int) -> Ledger:
    """A random subset of a ledger, in the order of the ledger."""
    order = torch.randperm(len(ledger), generator=torch.Generator().manual_seed(SEED))
    return ledger.take(order[:size].sort().values)


def accuracies(ledger: Ledger) -> list[Any]:
    """Accuracy per exit `[M]`, in percent."""
    right = ledger.logits.argmax(2) == ledger.labels[:, None]
    return [round(100 * share, 2) for share in right.double().mean(0).tolist()]


if __name__ == "__main__":
    main()
