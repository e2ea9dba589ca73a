"""Make the files that ship with the package from a training run and its ledgers.

Training takes hours, with CIFAR-100 below the folder in OFFRAMP_DATA; its commands are in
docs/results/images.md. Then:

    python tools/make_zoo.py RUN SMALL    # weights rounded to 8 bits, as a run of its own
    offramp record SMALL --dtype float16  # what the rounded network says
    python tools/make_zoo.py SMALL
"""

import argparse
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from offramp.data.source import Source
from offramp.files import write_text
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork

TARGET = Path(__file__).parents[1] / "src" / "offramp" / "zoo_data" / "cifar100"
SIZES = {"held_out": 1_500, "val": 1_500, "test": 2_000}
SEED = 0
DOCS = "docs/results/images.md"


def main() -> None:
    """Round a network, or write network, ledgers and `about.json` into the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of `offramp train`, with its ledgers")
    parser.add_argument("small", type=Path, nargs="?", help="only round, and write the run there")
    chosen = parser.parse_args()
    if chosen.small is not None:
        EarlyExitNetwork.load(chosen.run / "network").save(chosen.small / "network", int8=True)
        shutil.copy(chosen.run / "data.json", chosen.small)
        return
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(chosen.run / "network", TARGET / "network")
    full = {split: Ledger.load(chosen.run / "ledgers" / split) for split in SIZES}
    for split, ledger in full.items():
        drawn(ledger, SIZES[split]).save(TARGET / split)
    source = Source.find(chosen.run)
    assert source is not None, "a run says what it was trained on"
    about = {
        "network": "EfficientNet-Lite0 with ImageNet weights and seven exits, all layers tuned",
        "weights": "rounded to 8 bits, with a scale per output channel",
        "data": "cifar100",
        "splits": f"offramp.data.load('cifar100', image_size={source.image_size}), seed 0: "
        "trained on 40,000 images",
        "commands": f"in {DOCS}",
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
