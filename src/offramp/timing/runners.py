"""What is timed: runners of either runtime, a policy for them where none is given, and batches."""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from offramp.answers import GeometricEnsemble
from offramp.costs import Costs
from offramp.errors import ConfigError, FewSamplesWarning
from offramp.ledger import Ledger
from offramp.machine import device_of
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.onnx import OnnxRunner, export
from offramp.policy import Policy
from offramp.progress import Progress
from offramp.runtime import Runner
from offramp.runtime.output import RunOutput
from offramp.scorers import BreakEven, MaxProbability
from offramp.thresholds.points import OperatingPoints
from offramp.timing.turns import Stopwatch, Timed, take_turns
from offramp.training.batches import moved

NEVER = 1e30  # a threshold that no score reaches; the exit stays open, so its head and scorer run
NOISE = 64  # samples to fit decisions to that are only timed
SMALL = 8  # samples that tell how long a large batch would take
ALWAYS = 256  # batches up to this size are always timed


class TimedRunner(Protocol):
    """A runner, as far as it is measured."""

    def __call__(self, x: Any, deadline: float | None = None) -> RunOutput: ...  # noqa: ANN401, D102

    def full(self, x: Any) -> Tensor: ...  # noqa: ANN401, D102

    def set_budget(self, budget: float) -> None: ...  # noqa: D102


@contextmanager
def runner_of(
    network: EarlyExitNetwork,
    policy: Policy,
    runtime: str = "torch",
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[TimedRunner]:
    """A runner of either runtime; PyTorch has its number of threads, and its own back later."""
    if runtime == "onnx":
        with tempfile.TemporaryDirectory() as folder:
            yield OnnxRunner(export(network, policy, folder, progress=False), threads, clock=clock)
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield Runner(network, policy, clock=clock)
    finally:
        torch.set_num_threads(before)


def answered(runner: TimedRunner, x: Any, deadline: float | None = None) -> RunOutput:  # noqa: ANN401
    """What a runner answers, with the predictions that anybody would read."""
    output = runner(x, deadline)
    output.predictions  # noqa: B018 - worked out when they are read
    return output


def plainly(runner: TimedRunner, x: Any) -> Tensor:  # noqa: ANN401
    """What the network without exits predicts, `[n]`."""
    return runner.full(x).argmax(dim=1)


def plain_policy(network: EarlyExitNetwork, exits: Sequence[int] | None = None) -> Policy:
    """Max probability, fitted to no more than the shape of the network's logits.

    With a single exit it is for the network that is cut there, and has no others.
    """
    logits = torch.zeros(4, network.num_exits, network.num_classes)
    exits = range(network.num_exits) if exits is None else exits
    return _fitted(Policy(MaxProbability()), network, logits, exits)


def policy_with_history(network: EarlyExitNetwork, exits: Sequence[int]) -> Policy:
    """Break-even prices on an ensemble, fitted to noise: as quick as if it were to samples."""
    shape = NOISE, network.num_exits, network.num_classes
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    policy = Policy(BreakEven(), GeometricEnsemble(shrinkage=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        return _fitted(policy, network, logits, exits)


def _fitted(
    policy: Policy, network: EarlyExitNetwork, logits: Tensor, exits: Sequence[int]
) -> Policy:
    """A policy for a network that stops no sample, fitted to made-up logits."""
    costs = Costs((1.0,) * network.num_exits, (0.0,) * network.num_exits, unit="relative")
    labels, name = torch.arange(len(logits)) % 2, network.fingerprint()
    ledger = Ledger(logits, labels, costs, split="held_out", network=name).keep_exits(exits)
    (fitted,) = policy.fit_seeds(ledger, [0])
    never = torch.full((ledger.num_exits,), NEVER, dtype=torch.float64)
    return fitted.with_points(points_of([never])).at_point(0)


def points_of(thresholds: Sequence[Tensor]) -> OperatingPoints:
    """Operating points that differ in their budgets alone."""
    count, exits = len(thresholds), len(thresholds[0])
    budgets = torch.arange(1, count + 1, dtype=torch.float64) / count
    nothing = torch.zeros(count, dtype=torch.float64)
    return OperatingPoints(
        torch.stack(list(thresholds)), budgets, nothing, torch.zeros(count, exits).double(), 0.0
    )


def batch_of(inputs: Any, index: Tensor) -> Any:  # noqa: ANN401
    """Some samples as they would have come alone: without columns that only pad longer texts."""
    part = take(inputs, index)
    if not isinstance(part, Mapping) or "attention_mask" not in part:
        return part
    length = int(part["attention_mask"].any(0).nonzero().max()) + 1
    return {name: column[:, :length] for name, column in part.items()}


def sizes_in_time(
    network: EarlyExitNetwork,
    sizes: Sequence[int],
    seconds: float,
    inputs: Any,  # noqa: ANN401 - a batch as the network takes it, or None
    progress: Progress,
) -> list[int]:
    """The batch sizes that can be timed in about so many seconds, as a small batch tells.

    Raises:
        ConfigError: None of them can.
    """
    if max(sizes) <= ALWAYS:
        return list(sizes)
    where, index = device_of(network), torch.arange(SMALL)
    few = network.example(SMALL) if inputs is None else take(inputs, index % rows_of(inputs))
    small = Timed(network, [moved(few, where)])
    with torch.inference_mode(), evaluating(network):
        take_turns([[small]], Stopwatch(device=where), least=1)
    each = float(small.best.sum()) / SMALL
    kept = [size for size in sizes if size <= ALWAYS or size * each <= 2 * seconds]
    for size in sorted(set(sizes) - set(kept)):
        text = f"batch {size} takes about {size * each:,.1f} s, and {seconds:g} s are to be spent"
        if not kept:
            raise ConfigError(f"{text}: give more seconds, or smaller batches")
        progress.say(f"note: {text}: it is left out")
    return kept
