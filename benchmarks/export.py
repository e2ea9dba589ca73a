"""The paper's networks as ONNX graphs: what exporting takes, and whether decisions stay the same.

Run: python benchmarks/export.py [--networks resnet34,msdnet] [--exits 4] [--samples 256]

Each network has random weights and a policy with a history corrector at 60 % of the compute.
Printed are the seconds that the export takes, decisions that differ from the runner's and from
the simulation on a ledger, how many samples lie within the stated tolerance of a threshold (only
those may differ), and the time of a batch in ONNX Runtime against the runner's, best of several.
"""

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp.networks import ARCHITECTURES
from offramp.onnx import OnnxRunner
from offramp.replay import replay
from offramp.runtime import Runner, near_threshold
from offramp.runtime.operating_point import TOLERANCE
from offramp.thresholds.rule import exits_taken

SIZE, CLASSES, ROUNDS = 32, 10, 5


def make(name: str, exits: int) -> tuple[offramp.networks.EarlyExitNetwork, offramp.Policy]:
    """A network with random weights, and a policy for it."""
    torch.manual_seed(0)
    network = offramp.build(name, CLASSES, SIZE, at=exits).eval()
    for head in network.heads:  # so that scores lie apart
        [m for m in head.modules() if isinstance(m, nn.Linear)][-1].weight.data.mul_(5)
    data = TensorDataset(torch.randn(600, 3, SIZE, SIZE), torch.randint(CLASSES, (600,)))
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.Corrector(epochs=1)).fit(held_out).tune(val, "geometric")
    return network, policy.at(budget=0.6)


def best(function: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(name: str, exits: int, samples: int) -> str:
    """One line of the table."""
    network, policy = make(name, exits)
    images = torch.randn(samples, 3, SIZE, SIZE)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        offramp.export(network, policy, folder)
        seconds = time.perf_counter() - began
        graphs = OnnxRunner(folder, threads=torch.get_num_threads())
    runner = Runner(network, policy)
    data = TensorDataset(images, torch.zeros(samples, dtype=torch.long))
    scores = replay(
        policy.answer, policy.scorer, offramp.record(network, data, "test", progress=False)
    ).scores
    near = near_threshold(scores, policy.thresholds)
    taken = graphs(images).exits
    off_runner = taken != runner(images).exits
    off_ledger = taken != exits_taken(scores, policy.thresholds)
    unexplained = int(((off_runner | off_ledger) & ~near).sum())
    ratio = best(lambda: runner(images)) / best(lambda: graphs(images))
    return (
        f"{name:16} {network.num_exits:5} {seconds:8.1f} {int(off_runner.sum()):7} "
        f"{int(off_ledger.sum()):7} {int(near.sum()):6} {unexplained:11} {ratio:9.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(ARCHITECTURES))
    parser.add_argument("--exits", type=int, default=4)
    parser.add_argument("--samples", type=int, default=256)
    asked = parser.parse_args()
    print(f"{SIZE} px, {asked.samples} samples, tolerance {TOLERANCE:g} of a score")
    print("network          exits export s  runner  ledger   near unexplained  ONNX x faster")
    for name in asked.networks.split(","):
        print(measure(name, asked.exits, asked.samples), flush=True)


if __name__ == "__main__":
    main()
