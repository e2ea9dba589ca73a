"""A budget under drift: static thresholds beside a runner that holds its budget.

Run: python benchmarks/hold_budget.py [--data pacs] [--budgets 0.4,0.6] [--drifts noise,blur]

The shipped CIFAR-100 network answers a stream of test images that are corrupted in mid-stream:
clean, then corrupted (`offramp_paper.corruptions`, strength 4 of 5), then clean again. With
`--data pacs` the heads of a frozen EfficientNet-Lite0 are trained on photographs, and in
mid-stream come paintings, cartoons or sketches (a few minutes on one core; needs the extra lite0).
All exits' logits are recorded once; then real runners answer the recorded logits, batch by batch,
so that stops, statistics and alarms are those of `Runner`. Printed are, for each stretch of the
stream after its first window, by how much the mean cost misses the budget, the accuracy, and
after how many samples of the stretch the alarm rang.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import offramp
from offramp.arrays import Array
from offramp.data import ImageData
from offramp.networks import EarlyExitNetwork
from offramp.runtime.hold_budget import WINDOW
from offramp_paper.corruptions import CORRUPTIONS, corrupted

BATCH = 32
STRENGTH = 4  # of corruptions, of five
SCORERS = {"corrector": offramp.Corrector, "max-probability": offramp.MaxProbability}


DOMAINS = ("art_painting", "cartoon", "sketch")
IMAGES = 800  # of each domain of PACS


class Lookup(nn.Module):
    """The head of an exit whose logits were recorded."""

    reads_logits = False

    def __init__(self, exit_index: int) -> None:
        super().__init__()
        self.exit_index = exit_index

    def forward(self, logits: Tensor, _: Tensor | None = None) -> Tensor:
        """Logits `[n, K]` out of `[n, M, K]`."""
        return logits[:, self.exit_index]


def replayed(exits: int, classes: int) -> EarlyExitNetwork:
    """A network that takes recorded logits `[n, M, K]` and gives them back exit by exit."""
    heads = [Lookup(exit_index) for exit_index in range(exits)]
    return EarlyExitNetwork([nn.Identity() for _ in heads], heads, classes)


@dataclass(frozen=True, eq=False)
class Stretch:
    """A part of the stream."""

    name: str
    logits: Array  # [N, M, K]
    labels: Array  # [N]

    def batches(self, samples: int, seed: int) -> Iterator[tuple[Array, Array]]:
        """Samples drawn at random, in batches."""
        rows = np.random.default_rng(seed).integers(len(self.labels), size=samples)
        for index in np.split(rows, range(BATCH, samples, BATCH)):
            yield self.logits[index].astype(np.float32), self.labels[index]


@dataclass
class Seen:
    """What a runner did in one stretch, after its first window."""

    name: str
    error: float  # of the mean cost, as a share of the budget
    accuracy: float
    alarm: str  # after how many samples it rang here; empty if it did not, or before


def record_cifar(names: Sequence[str]) -> tuple[offramp.Ledger, offramp.Ledger, list[Stretch]]:
    """held_out and val as shipped, and test images clean and corrupted."""
    shipped = offramp.zoo.cifar100()
    network = shipped["network"]
    size = network.example().shape[-1]
    # Corrupted as they are, and then enlarged: see `corrupted`.
    small, test = (offramp.data.load("cifar100", image_size=each)["test"] for each in (None, size))
    assert isinstance(small, ImageData)
    stretches = []
    for name in ("clean", *names):
        seen = test if name == "clean" else corrupted(small, name, STRENGTH, size)
        images, labels = seen.batch(torch.arange(2500))
        assert isinstance(images, Tensor)
        ledger = offramp.record(network, TensorDataset(images, labels), "test", progress=False)
        stretches.append(Stretch(name, ledger.logits, ledger.labels))
    return shipped["held_out"], shipped["val"], stretches


def record_pacs(names: Sequence[str]) -> tuple[offramp.Ledger, offramp.Ledger, list[Stretch]]:
    """held_out and val of photographs, and test images of photographs and of other domains."""
    torch.manual_seed(0)
    load = partial(offramp.data.load, "pacs", image_size=96, held_out=300, val=300)
    photos = load()
    network = offramp.build("efficientnet-lite0", num_classes=7, image_size=96)
    config = offramp.TrainConfig(epochs=30, learning_rate=0.01)
    offramp.train(network, photos.train, config=config, freeze_backbone=True, progress=False)
    recorded = [offramp.record(network, photos[s], progress=False) for s in ("held_out", "val")]
    stretches = []
    for name in ("photo", *names):
        test = load(domain=name)["test"]
        index = torch.randperm(len(test))[:IMAGES]
        images, labels = test.batch(index)
        assert isinstance(images, Tensor)
        ledger = offramp.record(network, TensorDataset(images, labels), "test", progress=False)
        print(f"{name}: {len(index)} images, accuracy of the last exit", end=" ")
        print(f"{(ledger.logits[:, -1].argmax(axis=1) == ledger.labels).mean():.1%}", flush=True)
        stretches.append(Stretch(name, ledger.logits, ledger.labels))
    return recorded[0], recorded[1], stretches


def run(
    runner: offramp.Runner, stream: Sequence[Stretch], samples: int, budget: float, seed: int
) -> list[Seen]:
    """Send the stretches through a runner one after the other."""
    seen, rang = [], False
    for number, stretch in enumerate(stream):
        costs, right, done, alarm = [], [], 0, ""
        for logits, labels in stretch.batches(samples, seed + number):
            output = runner(logits)
            costs.append(output.costs)
            right.append(output.predictions == labels)
            done += len(labels)
            if not rang and runner.stats.drift:
                rang, alarm = True, str(done)
        late = np.concatenate(costs)[WINDOW:]
        accuracy = np.concatenate(right)[WINDOW:].mean()
        seen.append(Seen(stretch.name, float(late.mean()) / budget - 1, float(accuracy), alarm))
    return seen


def main() -> None:
    """Record, replay, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=("cifar100", "pacs"), default="cifar100")
    parser.add_argument("--drifts", help="corruptions or domains, by default all")
    parser.add_argument("--budgets", default="0.4,0.6")
    parser.add_argument("--samples", type=int, default=10_000, help="of each stretch")
    parser.add_argument("--scorer", choices=SCORERS, default="corrector")
    asked = parser.parse_args()
    known, record = {
        "cifar100": (CORRUPTIONS, record_cifar),
        "pacs": (DOMAINS, record_pacs),
    }[asked.data]
    names = asked.drifts.split(",") if asked.drifts else known
    held_out, val, (clean, *others) = record(names)
    network = replayed(val.num_exits, val.num_classes)
    policy = offramp.Policy(SCORERS[asked.scorer]()).fit(held_out).tune(val)
    policy.network = network.fingerprint()  # it answers with the logits of the real one
    print("budget  stream        thresholds   error of the mean cost   accuracy   alarm after")
    for budget in map(float, asked.budgets.split(",")):
        for other in others:
            for held in (False, True):
                runner = offramp.Runner(network, policy.at(budget=budget), hold_budget=held)
                cost = runner.stats.expected_cost
                for each in run(runner, (clean, other, clean), asked.samples, cost, seed=1):
                    print(
                        f"{budget:6.2f}  {each.name:12}  {'held' if held else 'static':10}   "
                        f"{each.error:+22.1%}   {each.accuracy:8.1%}   {each.alarm}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
