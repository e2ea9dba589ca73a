"""Measured seconds per stage and head: an alternative to MACs as the axis of costs."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offramp.costs import Costs
from offramp.errors import NetworkError
from offramp.machine import device_of, synchronize
from offramp.networks.macs import first_state
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, batch_size, evaluating


def time_exits(
    network: EarlyExitNetwork,
    example: Any = None,  # noqa: ANN401 - a batch as the network takes it
    repeats: int = 10,
    warmup: int = 2,
) -> Costs:
    """Measure the seconds per sample of every stage and every head.

    Everything runs in eval mode and without gradients, on the network's device. The result is the
    median over the repeats, which other work on the machine disturbs little. Time depends on the
    batch size: measure with the one that will be used.

    Args:
        network: The network.
        example: A batch; one made-up sample by default.
        repeats: Number of measured runs.
        warmup: Number of runs before them.

    Returns:
        Costs with `.stages`, `.heads` and `.cumulative`, unit `seconds`.

    Raises:
        NetworkError: No run to measure.

    Example:
        >>> from offramp.networks import build
        >>> costs = time_exits(build("convnet", num_classes=10, image_size=16), repeats=3)
        >>> costs.unit, len(costs.stages)
        ('seconds', 4)
    """
    if repeats < 1:
        raise NetworkError(f"`repeats` must be at least 1, got {repeats}")
    with torch.inference_mode(), evaluating(network):
        state = first_state(network, example)
        runs = [_one_run(network, state) for _ in range(warmup + repeats)][warmup:]
    rows = batch_size(state)
    stages, heads = zip(*runs, strict=True)
    return Costs(_medians(stages, rows), _medians(heads, rows), unit="seconds")


def _one_run(network: EarlyExitNetwork, state: State) -> tuple[list[float], list[float]]:
    stages, heads = [], []
    device = device_of(network)
    logits: Tensor | None = None
    for exit_index in range(network.num_exits):
        seconds, state = _timed(device, network.advance, exit_index, state)
        stages.append(seconds)
        seconds, new = _timed(device, network.head, exit_index, state, logits)
        heads.append(seconds)
        new = new.unsqueeze(1)
        logits = new if logits is None else torch.cat([logits, new], dim=1)
    return stages, heads


def _timed(
    device: torch.device,
    step: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401
) -> tuple[float, Any]:
    synchronize(device)
    start = time.perf_counter()
    result = step(*arguments)
    synchronize(device)
    return time.perf_counter() - start, result


def _medians(runs: tuple[list[float], ...], rows: int) -> tuple[float, ...]:
    return tuple(statistics.median(each) / rows for each in zip(*runs, strict=True))
