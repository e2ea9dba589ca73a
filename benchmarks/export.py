"""Networks as ONNX graphs: what exporting takes, whether decisions stay the same, and the time.

Run: python benchmarks/export.py [--networks resnet34,minilm] [--batches 1,32] [--threads 1]

Networks by name have random weights; `cifar100` and `cifar100-lite0` are the shipped ones, and
`minilm` is a BERT of six layers and 384 units on texts of 32 tokens. Samples are made up. Two
exits are open, at a third and at two thirds of the stages, and six of ten samples that reach them
leave there: about half of the stages run.

Printed are the seconds of the export, and per batch size decisions that differ from the runner's
in PyTorch (and how many of those samples are not within the stated tolerance of a threshold: there
must be none), how many times faster than the network without exits in ONNX Runtime, the time over
that of the bare graphs, and what a call adds to them in microseconds. Bare is what `session.run`
of each graph takes for a whole batch, times the share of samples that reach it. All take turns in
one process, and the best of each call counts; with one thread in seconds of the processor, which
other programs disturb little.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import offramp
from offramp.arrays import Array
from offramp.imports import require
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size, take
from offramp.onnx import OnnxRunner
from offramp.replay import replay
from offramp.runtime import Runner, near_threshold
from offramp.runtime.runner import TOLERANCE
from offramp.thresholds.rule import OperatingPoints

CLASSES, SAMPLES, CALLS = 100, 64, 24
Run = Callable[[], Any]
DEFAULT = ("cifar100", "cifar100-lite0", "resnet34", "minilm")


def network_named(name: str, size: int) -> EarlyExitNetwork:
    """A shipped network, or one with random weights."""
    torch.manual_seed(0)
    if name == "cifar100":
        return offramp.zoo.cifar100_thin().eval()
    if name == "cifar100-lite0":
        shipped: EarlyExitNetwork = offramp.zoo.cifar100()["network"]
        return shipped.eval()
    if name == "minilm":
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
        bert = BertForSequenceClassification(config)  # type: ignore[no-untyped-call]
        return offramp.attach(bert).eval()
    return offramp.build(name, CLASSES, size).eval()


def samples_for(network: EarlyExitNetwork) -> Any:  # noqa: ANN401 - as the network takes it
    """Made-up inputs that differ from each other."""
    example = network.example(SAMPLES)
    if isinstance(example, Tensor):
        return torch.randn(example.shape, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(1000, (SAMPLES, 32), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Samples(torch.utils.data.Dataset[Any]):
    """The inputs with arbitrary labels."""

    def __init__(self, inputs: Any, classes: int) -> None:  # noqa: ANN401
        self.inputs, self.classes = inputs, classes

    def __len__(self) -> int:
        """Their number."""
        return batch_size(self.inputs)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        """One input and its label."""
        if isinstance(self.inputs, Tensor):
            return self.inputs[row], row % self.classes
        return {name: part[row] for name, part in self.inputs.items()}, row % self.classes


def at_thresholds(policy: offramp.Policy, thresholds: Array) -> offramp.Policy:
    """The policy at an operating point of our own."""
    one, shares = np.ones(1), np.zeros((1, len(thresholds)))
    return policy.with_points(OperatingPoints(thresholds[None], one, one, shares, 1.0)).at_point(0)


def best(functions: Sequence[Run], asked: argparse.Namespace) -> list[float]:
    """Seconds of the fastest call of each, taking turns: none finds its weights in the cache."""
    clock = time.thread_time if asked.threads == 1 else time.perf_counter
    fastest, began = [float("inf")] * len(functions), time.perf_counter()
    while time.perf_counter() - began < asked.seconds:
        for number, function in enumerate(functions):
            start = clock()
            function()
            fastest[number] = min(fastest[number], clock() - start)
    return fastest


def bare_graphs(folder: Path, runner: OnnxRunner, leaves: list[Any]) -> list[Run]:
    """The graphs of every segment, opened as anybody does and ready to run on one batch."""
    onnxruntime = require("onnxruntime", extra="onnx")
    options, found = onnxruntime.SessionOptions(), list[Run]()
    options.intra_op_num_threads = runner.threads
    for segment in runner.manifest.segments:
        graph = segment.graph
        session = onnxruntime.InferenceSession(folder / graph.file, options)
        found.append(
            partial(session.run, graph.outputs, dict(zip(graph.inputs, leaves, strict=True)))
        )
        leaves = found[-1]()[: segment.carried]
    return found


def leaving(scores: Array, opened: Sequence[int]) -> Array:
    """Thresholds `[M]` at which six of ten of those who reach an open exit leave there."""
    thresholds = np.full(scores.shape[1], np.inf)
    thresholds[-1] = -np.inf
    for exit_index in opened:
        thresholds[exit_index] = np.quantile(scores[:, exit_index], 0.4)
        scores = scores[scores[:, exit_index] < thresholds[exit_index]]
    return thresholds


def measure(name: str, asked: argparse.Namespace) -> None:
    """Print the lines of one network."""
    network = network_named(name, asked.size)
    inputs, last = samples_for(network), network.num_exits - 1
    opened = sorted({round(last / 3), round(2 * last / 3)} - {last})
    costs = offramp.Costs((1.0,) * (last + 1), (0.0,) * (last + 1))
    data = Samples(inputs, network.num_classes)
    ledger = offramp.record(network, data, "held_out", costs=costs, progress=False)
    policy = offramp.Policy(offramp.MaxProbability()).fit(ledger)
    scores = replay(policy.answer, policy.scorer, ledger).scores
    policy = at_thresholds(policy, leaving(scores, opened))
    near = near_threshold(scores, policy.thresholds)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        offramp.export(network, policy, folder)
        took = time.perf_counter() - began
        runner = OnnxRunner(folder, threads=asked.threads)
        exits = runner(inputs).exits.numpy()
        differ = exits != Runner(network, policy)(inputs).exits.numpy()
        for size in map(int, asked.batches.split(",")):
            rows = torch.arange(max(size, CALLS)) % SAMPLES
            batches = [take(inputs, part) for part in rows.split(size)]
            reach = [(exits[rows] > index).mean() for index in [-1, *opened]]
            leaves = list(runner._begin(batches[0]).values())
            bare = bare_graphs(Path(folder), runner, leaves)
            calls = [partial(run, batch) for run in (runner, runner.full) for batch in batches]
            times = np.array(best([*bare, *calls], asked))
            graphs, times = times[: len(bare)], times[len(bare) :]
            ideal = float(graphs @ np.array(reach))
            own, full = times.reshape(2, -1).mean(axis=1).tolist()
            print(
                f"{name:15} {took:8.1f} {size:6} {int(differ.sum()):7} "
                f"{int((differ & ~near).sum()):11} {full / own:9.2f} {own / ideal:9.2f} "
                f"{1e6 * (own - ideal):9.0f} {1e3 * full / size:12.3f}",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(DEFAULT))
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--size", type=int, default=64, help="pixels, for networks by name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="per graph, and per batch size"
    )
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"{SAMPLES} samples, {asked.threads} threads, tolerance {TOLERANCE:g} of a score")
    print(
        "network         export s  batch  differ unexplained    x full    x bare  us added "
        "full ms each"
    )
    for name in asked.networks.split(","):
        measure(name, asked)


if __name__ == "__main__":
    main()
