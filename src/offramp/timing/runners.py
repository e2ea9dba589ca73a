"""What is timed: runners of either runtime, and policies for them where none is given."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from offramp.answers import GeometricEnsemble
from offramp.arrays import AnyArray, Array
from offramp.costs import Costs
from offramp.errors import FewSamplesWarning
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import take
from offramp.onnx import OnnxRunner
from offramp.onnx.export import Tracing, require_packages
from offramp.policy import Policy
from offramp.progress import showing
from offramp.runtime import Runner
from offramp.runtime.engine import StagedRunner
from offramp.runtime.output import RunOutput
from offramp.runtime.prepared_points import PreparedPoint
from offramp.runtime.shrinking_batch import ShrinkingBatch
from offramp.scorers import BreakEven, MaxProbability
from offramp.thresholds.rule import OperatingPoints

NEVER = 1e30  # a threshold that no score reaches; the exit stays open, so its head and scorer run
NOISE = 64  # samples to fit decisions to that are only timed


class Opener:
    """Opens runners of one runtime; for ONNX Runtime, every network is traced once.

    Args:
        runtime: `torch` or `onnx`.
        threads: Of the runtime; as many as it uses now by default.
    """

    def __init__(self, runtime: str = "torch", threads: int | None = None) -> None:
        self.runtime, self.threads = runtime, threads
        self._tracings: dict[EarlyExitNetwork, Tracing] = {}

    @contextmanager
    def opened(self, network: EarlyExitNetwork, policy: Policy) -> Iterator[StagedRunner]:
        """A runner; PyTorch has its number of threads, and its own back later."""
        if self.runtime == "onnx":
            require_packages()
            tracing = self._tracings.get(network)
            if tracing is None:
                tracing = self._tracings[network] = Tracing(network)
            with tempfile.TemporaryDirectory() as folder, showing(False) as silent:
                yield OnnxRunner(tracing.export(policy, folder, silent), self.threads)
            return
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(self.threads or before)
            yield Runner(network, policy)
        finally:
            torch.set_num_threads(before)


def watched(runner: StagedRunner, watch: Callable[[], object]) -> StagedRunner:
    """The same runner, which reads a watch before every stage."""
    advance = runner._advance

    def timed(point: PreparedPoint, exit_index: int, batch: ShrinkingBatch) -> None:
        watch()
        advance(point, exit_index, batch)

    vars(runner)["_advance"] = timed
    return runner


def answered(runner: StagedRunner, x: Any) -> RunOutput:  # noqa: ANN401
    """What a runner answers, with the predictions that anybody would read."""
    output = runner(x)
    output.predictions  # noqa: B018 - worked out when they are read
    return output


def without_exits(runner: StagedRunner, x: Any) -> AnyArray:  # noqa: ANN401
    """What the network without exits predicts, `[n]`."""
    return runner.full(x).argmax(axis=1)


def plain_policy(network: EarlyExitNetwork, exits: Sequence[int] | None = None) -> Policy:
    """Max probability, fitted to no more than the shape of the network's logits.

    With a single exit it is for the network that is cut there, and has no others.
    """
    logits = np.zeros((4, network.num_exits, network.num_classes), np.float32)
    exits = range(network.num_exits) if exits is None else exits
    return _fitted(Policy(MaxProbability()), network, logits, exits)


def policy_with_history(network: EarlyExitNetwork, exits: Sequence[int]) -> Policy:
    """Break-even prices on an ensemble, fitted to noise: as quick as if it were to samples."""
    shape = NOISE, network.num_exits, network.num_classes
    logits = np.random.default_rng(0).standard_normal(shape, np.float32)
    policy = Policy(BreakEven(), GeometricEnsemble(shrinkage=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        return _fitted(policy, network, logits, exits)


def _fitted(
    policy: Policy, network: EarlyExitNetwork, logits: Array, exits: Sequence[int]
) -> Policy:
    """A policy for a network that stops no sample, fitted to made-up logits."""
    costs = Costs((1.0,) * network.num_exits, (0.0,) * network.num_exits, unit="relative")
    labels, name = np.arange(len(logits)) % 2, network.fingerprint()
    ledger = Ledger(logits, labels, costs, split="held_out", network=name).keep_exits(exits)
    (fitted,) = policy.fit_seeds(ledger, [0])
    return at_thresholds(fitted, [np.full(ledger.num_exits, NEVER)])


def at_thresholds(policy: Policy, thresholds: Sequence[Array]) -> Policy:
    """A policy at the first of some operating points, which differ in their budgets alone.

    The k-th of n points, counted from one, is the point for the budget k / n.
    """
    count, exits = len(thresholds), len(thresholds[0])
    budgets = np.arange(1, count + 1) / count
    to_the_end = np.eye(exits)[[-1] * count]
    points = OperatingPoints(np.stack(list(thresholds)), budgets, np.zeros(count), to_the_end, 0.0)
    return policy.with_points(points).at_point(0)


def batch_of(inputs: Any, index: AnyArray) -> Any:  # noqa: ANN401
    """Some samples as they would have come alone: without columns that only pad longer texts."""
    part = take(inputs, index)
    if not isinstance(part, Mapping) or "attention_mask" not in part:
        return part
    length = int(part["attention_mask"].any(0).nonzero().max()) + 1
    return {name: column[:, :length] for name, column in part.items()}
