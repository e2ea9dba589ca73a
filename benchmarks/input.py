"""The input pipeline against the training step that it feeds: images per second on CIFAR-100.

Run: python benchmarks/input.py [--rounds 5] [--floor 3.0]

Both run in this process, by turns, and the best round of each counts. The pipeline is timed with
decoding (every image for the first time, as in the first epoch) and from memory (as in all
others); the slower of the two must be at least 3 times as fast as the training step. Where
OFFRAMP_DATA has no CIFAR-100, random PNG images of its size stand in for it.
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

BATCH = 128
STEPS = 4


def stand_in(folder: Path, images: int = 200) -> str:
    """A folder of random images, which are harder to decode than real ones."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for number in range(images * 10):
        path = folder / f"{number % 10}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = torch.randint(256, (32, 32, 3), generator=generator, dtype=torch.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(file, "PNG")
        path.write_bytes(file.getvalue())
    return str(folder)


def train_data() -> tuple[ImageData, str]:
    """CIFAR-100 where it is at hand."""
    root = os.environ.get("OFFRAMP_DATA")
    if root and (Path(root) / "cifar100").is_dir():
        data, what = load("cifar100").train, "CIFAR-100"
    else:
        data, what = load(stand_in(Path(tempfile.mkdtemp()))).train, "random images"
    assert isinstance(data, ImageData)
    return data, what


def training_step(data: ImageData) -> Callable[[], None]:
    """Forward, backward and update of the thin ResNet in its fastest form, all exits trained."""
    torch.manual_seed(0)
    network = build("thin-resnet", num_classes=data.num_classes, image_size=32)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.train()
    optimizer = torch.optim.AdamW(network.parameters())
    inputs, labels = data.batch(torch.arange(BATCH))
    inputs = inputs.to(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(inputs)
        flat = logits.float().flatten(0, 1)
        loss = functional.cross_entropy(flat, labels.repeat_interleave(logits.shape[1]))
        loss.backward()
        optimizer.step()

    return step


def pipeline(data: ImageData, start: int) -> Callable[[], None]:
    """Batches of the images from `start` on: decoded where they are new, then augmented."""
    augment = Augmentation(flip=0.5)
    generator = torch.Generator().manual_seed(0)
    at = start

    def batch() -> None:
        nonlocal at
        inputs, labels = data.batch(torch.arange(at, at + BATCH))
        augment(inputs, labels, data.num_classes, generator)
        at += BATCH

    return batch


def images_per_second(work: Callable[[], None]) -> float:
    """Over a few batches."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        work()
    return STEPS * BATCH / (time.perf_counter() - begin)


def main() -> int:
    """Measure, print, and fail below the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--floor", type=float, default=3.0)
    options = parser.parse_args()
    data, what = train_data()
    rounds = min(options.rounds, len(data) // (STEPS * BATCH) - 1)
    step = training_step(data)
    step()
    best = {"training step": 0.0, "decode + augment": 0.0, "from memory + augment": 0.0}
    for number in range(rounds):
        start = BATCH + number * STEPS * BATCH  # the training step has decoded the first batch
        work = (step, pipeline(data, start), pipeline(data, start))
        for name, each in zip(best, work, strict=True):
            best[name] = max(best[name], images_per_second(each))
    print(f"{what}, 32 px, batch {BATCH}, {torch.get_num_threads()} threads, best of {rounds}")
    for name, speed in best.items():
        print(f"{name:<22} {speed:9.0f} images/s")
    slower = min(best["decode + augment"], best["from memory + augment"])
    ratio = slower / best["training step"]
    print(f"ratio {ratio:.1f} (at least {options.floor:.1f} is wanted)")
    return 0 if ratio >= options.floor else 1


if __name__ == "__main__":
    sys.exit(main())
