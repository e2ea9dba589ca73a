"""Reading images against the training steps that it feeds: images per second on Tiny-ImageNet.

Run: python benchmarks/input.py [--rounds 3] [--floor 3.0]

Images are read in this process and by one and two workers, with decoding (every image for the
first time, as in the first epoch) and from memory (as in all others). All take turns with a
training step of the thin ResNet and of the paper's ResNet-34, and the best round of each counts.
Reading in this process with augmentation must be at least 3 times as fast as the faster of the
two networks. Where OFFRAMP_DATA has no Tiny-ImageNet, random PNG images of its size stand in.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from offramp.data import Augmentation, ImageData, load
from offramp.networks import build
from offramp.training.batches import Samples

SIZE = 64
BATCH = 128
BATCHES = 12  # per round
WORKERS = (0, 1, 2)
STEPS = {"thin-resnet": 64, "resnet34": 16}  # batch size of the timed step


def stand_in(folder: Path, images: int) -> str:
    """A folder of random images, which are harder to decode than real ones."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for number in range(images):
        path = folder / f"{number % 10}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = torch.randint(256, (SIZE, SIZE, 3), generator=generator, dtype=torch.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(file, "PNG")
        path.write_bytes(file.getvalue())
    return str(folder)


def find_data(images: int) -> str:
    """Tiny-ImageNet where it is at hand."""
    root = os.environ.get("OFFRAMP_DATA")
    if root and (Path(root) / "tiny-imagenet").is_dir():
        return "tiny-imagenet"
    return stand_in(Path(tempfile.mkdtemp()), 2 * images)


def training_step(name: str, data: ImageData) -> Callable[[], int]:
    """Forward, backward and update of a network in its fastest form, all exits trained."""
    torch.manual_seed(0)
    network = build(name, num_classes=data.num_classes, image_size=SIZE)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train()
    optimizer = torch.optim.AdamW(network.parameters())
    inputs, labels = data.batch(torch.arange(STEPS[name]))
    inputs = inputs.to(memory_format=torch.channels_last)

    def step() -> int:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(inputs)
        flat = logits.float().flatten(0, 1)
        loss = functional.cross_entropy(flat, labels.repeat_interleave(logits.shape[1]))
        loss.backward()
        optimizer.step()
        return len(labels)

    step()
    return step


class Reading:
    """Images that are read for the first time, and then once more."""

    def __init__(self, name: str, workers: int) -> None:
        self.samples = Samples(load(name).train, workers)
        # Workers are started, and the first batches are decoded, before the clock runs.
        self.indices = [torch.arange(BATCH), torch.arange(BATCH, 2 * BATCH)]
        self.read()

    def move_on(self) -> None:
        """To images that were not decoded before."""
        begin = int(self.indices[-1][-1]) + 1
        self.indices = list(torch.arange(begin, begin + BATCH * BATCHES).split(BATCH))

    def read(self) -> int:
        """All batches of the round."""
        return sum(len(labels) for _, labels in self.samples.batches(self.indices))


def augmentation(data: ImageData) -> Callable[[], int]:
    """The paper's, of one batch; it runs where the network is, and not in workers."""
    augment, generator = Augmentation(flip=0.5), torch.Generator().manual_seed(0)
    inputs, labels = data.batch(torch.arange(BATCH))

    def work() -> int:
        augment(inputs, labels, data.num_classes, generator)
        return len(labels)

    return work


def images_per_second(work: Callable[[], int]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    return work() / (time.perf_counter() - begin)


def main() -> int:
    """Measure, print, and fail below the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--floor", type=float, default=3.0)
    options = parser.parse_args()
    name = find_data(BATCH * (2 + BATCHES * options.rounds))
    readings = {workers: Reading(name, workers) for workers in WORKERS}
    data = readings[0].samples.dataset
    others = {f"step of {each}": training_step(each, data) for each in STEPS}
    others["augmentation"] = augmentation(data)
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        work = dict(others)
        for workers, reading in readings.items():
            reading.move_on()
            work[f"decoded, {workers} workers"] = reading.read
            work[f"from memory, {workers} workers"] = reading.read
        for title, each in work.items():
            best[title] = max(best.get(title, 0.0), images_per_second(each))
    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"
    print(f"{Path(name).name}, {SIZE} px, batch {BATCH}, {threads}, best of {options.rounds}")
    for title, speed in best.items():
        print(f"{title:<24} {speed:9.1f} images/s")
    slower = 1 / (1 / best["decoded, 0 workers"] + 1 / best["augmentation"])
    ratio = slower / best["step of thin-resnet"]
    print(f"decoded and augmented / step of thin-resnet: {ratio:.1f} ({options.floor:.1f} wanted)")
    return 0 if ratio >= options.floor else 1


if __name__ == "__main__":
    sys.exit(main())
