"""The runner compared with earlyon, whose batches leave together: same network and decisions.

Run, in an environment of its own (earlyon needs torchvision, which breaks other packages):

  python -m venv earlyon-venv
  earlyon-venv/bin/pip install -c constraints.txt . earlyon torch
  earlyon-venv/bin/python benchmarks/beside_earlyon.py [--network thin-resnet] [--clock cpu]

torchvision's wheel cannot be imported with a CPU build of torch, because its own operators are
missing there (`operator torchvision::nms does not exist`). earlyon needs none of them, so two
empty ones are defined first.

earlyon wraps the stages and heads of a copy of one network with random weights as they are, with
the policy's thresholds as its confidences; the runner, as by default, folds batch norms and stores
channels last. It answers single samples at their own exit, and batches at
the first exit at which every sample is sure enough; the runner removes samples from the batch.
All take turns, and the best of several rounds counts.
"""

import argparse
import copy
import math
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import offramp
from offramp.arrays import sigmoid
from offramp.networks import EarlyExitNetwork

SAMPLES = 256
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Single(nn.Module):
    """A head as earlyon calls it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, state: Tensor) -> Tensor:
        """Logits `[n, K]`."""
        logits: Tensor = self.head(state, None)
        return logits


def earlyon_wrapper(network: EarlyExitNetwork, image_size: int) -> Any:  # noqa: ANN401
    """The same stages and heads, wrapped by earlyon."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from earlyon.models import custom_ee

    stages = {f"stage{number}": stage for number, stage in enumerate(network.stages)}
    names = list(stages)[:-1]
    backbone = nn.Sequential(OrderedDict(**stages, head=Single(network.heads[-1])))
    shape = (1, 3, image_size, image_size)
    wrapper = custom_ee(backbone, names, network.num_classes, input_shape=shape)
    for point, head in zip(wrapper.config.exit_points, network.heads, strict=False):
        wrapper.exit_heads[point.name] = Single(head)
    return wrapper.eval()


def prepare(name: str, image_size: int) -> tuple[EarlyExitNetwork, offramp.Policy, Tensor]:
    """A network, a tuned policy for it, and the images that it was tuned on."""
    torch.manual_seed(0)
    shape = (SAMPLES, 3, image_size, image_size)
    held_out, val = torch.randn(shape), torch.randn(shape)
    network = offramp.build(name, 100, image_size)
    with torch.no_grad():
        network.train()(held_out[:64])  # batch norms that have seen data
    labels = torch.arange(SAMPLES) % 100
    ledgers = [
        offramp.record(network.eval(), TensorDataset(images, labels), split, progress=False)
        for images, split in ((held_out, "held_out"), (val, "val"))
    ]
    policy = offramp.Policy(offramp.MaxProbability()).fit(ledgers[0])
    return network, policy.tune(ledgers[1], "geometric"), val


def best_seconds(
    jobs: dict[str, Callable[[Tensor], Any]],
    batches: Sequence[Tensor],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Seconds for all batches, taking turns."""
    best = dict.fromkeys(jobs, math.inf)
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            for batch in batches:
                job(batch)
            best[name] = min(best[name], clock() - start)
    return best


def compare(
    wrapper: Any,  # noqa: ANN401
    runner: offramp.Runner,
    images: Tensor,
    rounds: int,
    clock: Callable[[], float],
) -> None:
    """One budget at batch 1, 32 and 256."""
    thresholds = runner.policy.thresholds[:-1]
    wrapper.config.confidence_thresholds = sigmoid(thresholds).tolist()
    wrapper.config.enabled_exits = np.isfinite(thresholds).tolist()
    few = images[:: len(images) // 32]
    last = runner.network.num_exits - 1
    taken = torch.tensor([wrapper(one).exit_taken for one in few.split(1)])
    ours = torch.cat([runner(one).exits for one in few.split(1)])
    changed = int((torch.where(taken < 0, last, taken) != ours).sum())
    print(f"  of {len(few)} samples alone, {changed} leave at another exit than in earlyon")
    for size in (1, 32, 256):
        batches = (few if size == 1 else images).split(size)
        theirs = wrapper if size == 1 else wrapper.forward_inference_batched
        best = best_seconds({"earlyon": theirs, "runner": runner}, batches, rounds, clock)
        cost = torch.cat([runner(batch).costs for batch in batches]).mean()
        print(
            f"  {size:5d} {cost:9.2f} {1e3 * best['earlyon']:12.1f} {1e3 * best['runner']:11.1f} "
            f"{best['earlyon'] / best['runner']:14.2f}"
        )


def main() -> None:
    """Print one table per budget."""
    warnings.simplefilter("ignore")  # earlyon's, on its estimate of costs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="thin-resnet")
    parser.add_argument("--quick", action="store_true", help="16 px, two rounds: smoke test")
    parser.add_argument("--rounds", type=int, default=7, help="of which the best counts")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: on one thread")
    options = parser.parse_args()
    size, rounds = (16, 2) if options.quick else (32, options.rounds)
    if options.clock == "cpu":
        torch.set_num_threads(1)
    network, policy, images = prepare(options.network, size)
    wrapper = earlyon_wrapper(copy.deepcopy(network), size)
    print(f"{options.network}, {size} px, {network.num_exits} exits, {rounds} rounds, ", end="")
    print(f"{torch.get_num_threads()} threads, {options.clock} time")
    print("  batch  mean cost   earlyon ms   runner ms   times faster")
    for budget in (0.3, 0.6):
        runner = offramp.Runner(network, policy.at(budget=budget))
        compare(wrapper, runner, images, rounds, CLOCKS[options.clock])


if __name__ == "__main__":
    main()
