"""Samples per second with and without exits, at several batch sizes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from offramp.errors import ConfigError
from offramp.machine import synchronize
from offramp.networks.state import batch_size, take
from offramp.runtime.runner import Runner

SAMPLES = 64  # per round at least, for samples of all exits


@dataclass(frozen=True)
class Speed:
    """What was measured at one batch size.

    Attributes:
        batch_size: Samples per batch.
        with_exits: Samples per second of the runner.
        without_exits: Samples per second of the network without exits.
        mean_cost: Mean cost per sample, as a share of the network without exits.
    """

    batch_size: int
    with_exits: float
    without_exits: float
    mean_cost: float

    @property
    def speedup(self) -> float:
        """How many times faster with exits."""
        return self.with_exits / self.without_exits


def measure_speed(
    runner: Runner,
    inputs: Any,  # noqa: ANN401 - a batch as the network takes it
    batch_sizes: Sequence[int] = (1, 32, 256),
    seconds: float = 5.0,
) -> list[Speed]:
    """Measure a runner against its network without exits.

    Both take turns on the same samples and the best round of each counts, so other work on the
    machine disturbs little. The measured samples also count in the runner's `stats`.

    Args:
        runner: The runner.
        inputs: Real inputs, so that samples take the exits they take in use; repeated if there
            are fewer than a batch needs.
        batch_sizes: Batch sizes to measure at.
        seconds: Approximate time per batch size; at least three rounds are run.

    Raises:
        ConfigError: There are no inputs, or a batch size is below 1.

    Example:
        >>> import offramp
        >>> from torch.utils.data import TensorDataset
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> images = torch.rand(60, 3, 8, 8)
        >>> data = TensorDataset(images, torch.arange(60) % 4)
        >>> held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
        >>> policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
        >>> policy = policy.at(budget=0.6)
        >>> (speed,) = measure_speed(Runner(network, policy), images, [8], seconds=0)
        >>> speed.batch_size, speed.with_exits > 0
        (8, True)
    """
    samples = batch_size(inputs)
    if not samples or not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError(
            "measuring speed takes samples and batch sizes of at least 1, got "
            f"{samples} samples and batch sizes {list(batch_sizes)}"
        )
    return [_measure_at(runner, inputs, samples, size, seconds) for size in batch_sizes]


def _measure_at(
    runner: Runner,
    inputs: Any,  # noqa: ANN401
    samples: int,
    size: int,
    seconds: float,
) -> Speed:
    starts = range(0, max(SAMPLES, size), size)
    batches = [take(inputs, torch.arange(start, start + size) % samples) for start in starts]
    costs = torch.cat([runner(batch).costs for batch in batches])  # this also warms up
    best = {"with": float("inf"), "without": float("inf")}
    began, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - began < seconds:
        rounds += 1
        for name, run in (("with", runner), ("without", runner.full)):
            best[name] = min(best[name], _seconds(run, batches, runner.device))
    count = size * len(batches)
    return Speed(size, count / best["with"], count / best["without"], float(costs.mean()))


def _seconds(run: Callable[[Any], Any], batches: Sequence[Any], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for batch in batches:
        run(batch)
    synchronize(device)
    return time.perf_counter() - start
