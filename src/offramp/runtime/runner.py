"""`Runner`: a network and a policy at work, in batches that shrink as samples stop."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.arrays import AnyArray, Array, as_numpy, as_tensor, is_tensor
from offramp.decide import Decider
from offramp.errors import GuaranteeWarning, NetworkError, OriginError, OriginWarning
from offramp.machine import AutoPrecision, Precision, autocast, device_for, to_precision
from offramp.networks.inputs import Inputs, Tokenizer, as_batch, tokenized
from offramp.networks.network import EarlyExitNetwork, check_has_exits
from offramp.networks.state import State, batch_size, map_leaves
from offramp.policy import Policy
from offramp.runtime.compiled import compiled
from offramp.runtime.engine import StagedRunner
from offramp.runtime.hold_budget import hold_window
from offramp.runtime.prepared_points import PreparedPoint, PreparedPoints
from offramp.runtime.shrinking_batch import ShrinkingBatch
from offramp.runtime.stats import Operation
from offramp.thresholds.rule import exits_taken

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of a score; changing the batch size in float32 changes far less


class Runner(StagedRunner):
    """Runs a network stage by stage and removes the samples that stop from the batch.

    After each stage the policy answers the samples that stop; the others continue in a smaller
    batch. Results come in the order of the input. The network is put into eval mode and kept
    there. Several threads may call one runner.

    Args:
        network: Runs where it is, unless `device` says otherwise.
        policy: A policy of this network at an operating point: `policy.at(budget=...)`. Exits
            that it leaves out are dropped from the network.
        device: Where to run: `cpu`, `cuda`, `cuda:1`, `mps`, ..., or `auto` for a GPU if there is
            one. The network is moved there, and stays. On `cuda`, decisions are made there, too,
            unless an answer or a scorer of one's own takes arrays of NumPy alone.
        precision: `bfloat16` and `float16` run stages and heads under autocast; decisions near a
            threshold may change. `auto`: what the device is fastest in.
        channels_last: Store images and weights with the channels last, which is up to twice as
            fast for convolutions on processors; None does so on the CPU. The network's weights
            stay in that layout.
        compile: `"fold"` folds batch norms into the convolutions before them, which changes the
            last bits of logits; False runs the stages as they are. True compiles each with
            `torch.compile`, for any batch size, and the first batches then take long; any other
            string names a backend for that.
        false_alarm_rate: Probability of a false drift alarm in `stats`, over the whole stream.
        hold_budget: Move along the policy's operating points when inputs become harder or
            easier, so that the mean cost over a window of 2,000 samples, or of as many as are
            given here, stays at the budget.
        tokenizer: Makes batches of texts, so that the runner takes a list of them: a tokenizer of
            `transformers`.
        clock: Seconds, for deadlines.

    Raises:
        NetworkError: The policy is for another number of exits or classes.
        OriginError: The policy was fitted on another network's outputs.
        NotFittedError: The policy has no operating point.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> import offramp
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> images, labels = torch.rand(60, 3, 8, 8), torch.arange(60) % 4
        >>> ledger = offramp.record(network, TensorDataset(images, labels), "all", progress=False)
        >>> held_out, val, _ = ledger.partition()
        >>> policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
        >>> output = Runner(network, policy.at(budget=0.6))(images[:16])
        >>> output.predictions.shape, bool(output.costs.mean() <= 1)
        (torch.Size([16]), True)
    """

    def __init__(  # noqa: PLR0913 - all but the first two by name
        self,
        network: EarlyExitNetwork,
        policy: Policy,
        *,
        device: str | torch.device | None = None,
        precision: AutoPrecision = "float32",
        channels_last: bool | None = None,
        compile: bool | str = "fold",
        false_alarm_rate: float = 0.01,
        hold_budget: bool | int = False,
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        network = network_of(policy, network)
        self.device = device_for(network, device)
        self.precision = to_precision(precision, self.device)
        self._reads_logits = reads_outputs(network)
        self._decides_there = _decides_on(self.device, policy)
        like = torch.empty(0, device=self.device) if self._decides_there else None
        confidence = None if policy.confidence is None else policy.confidence.probability
        points = PreparedPoints(policy, self._reads_logits, like)
        window = hold_window(hold_budget)
        operation = Operation(points, selected(policy), false_alarm_rate, window)
        super().__init__(operation, network.num_classes, confidence, clock)
        if hold_budget and policy.guarantee is not None:
            warnings.warn(
                f"the chosen operating point is certified ({policy.guarantee}), and a budget is "
                "held by leaving it: the guarantee does not hold",
                GuaranteeWarning,
                stacklevel=2,
            )
        self.network = network.to(self.device).eval()
        self._policy, self._tokenizer = policy, tokenizer
        self._modules = (network, *network.stages, *network.heads)
        on_cpu = self.device.type == "cpu"
        self._channels_last = on_cpu if channels_last is None else channels_last
        if self._channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._stages, self._heads = compiled(network, compile)

    def __repr__(self) -> str:
        network = self.network
        return (
            f"Runner({network.num_exits} exits, {network.num_classes} classes, on {self.device} "
            f"in {self.precision}\n  {self._policy})"
        )

    @property
    def policy(self) -> Policy:
        """The policy at its present operating point."""
        now = self.operation.point.index
        return self._policy if now == self._policy.selected else _moved(self._policy, now)

    @property
    def inputs(self) -> Inputs:
        """What a batch looks like."""
        return self.network.inputs

    @property
    def about(self) -> dict[str, Any]:
        """What runs: the number of `exits`, and fingerprints of the `network` and the `policy`."""
        return {
            "exits": self.network.num_exits,
            "network": self._policy.network or self.network.fingerprint(),
            "policy": self._policy.fingerprint(),
        }

    def _index_for(self, budget: float) -> int:
        self._policy = self._policy.at(budget=budget)
        return selected(self._policy)

    def full(self, x: Any) -> Tensor:  # noqa: ANN401 - a batch as the network takes it
        """The network without exits: the last head and all that it needs, `[N, K]` float32.

        For comparison: the same precision and memory layout, without any decision.
        """
        state = self._begin(x)
        first, last = self.network.last_start, self.network.num_exits - 1
        logits: list[Tensor] = []
        with self._running(batch_size(state)):
            for exit_index, stage in enumerate(self._stages[first:], first):
                state = stage(state)
                if exit_index == last or any(self._reads_logits):
                    earlier = torch.stack(logits, 1) if logits else None
                    logits.append(self.network.head(exit_index, state, earlier))
            return logits[-1].float().cpu()

    def _begin(self, x: Any) -> State:  # noqa: ANN401
        for module in self._modules:
            if module.training:  # somebody called network.train()
                self.network.eval()
                break

        def place(leaf: Tensor) -> Tensor:
            leaf = leaf.to(self.device)
            if self._channels_last and leaf.ndim == 4:
                leaf = leaf.contiguous(memory_format=torch.channels_last)
            return leaf

        x = as_batch(tokenized(x, self._tokenizer, self.inputs))
        state: State = map_leaves(place, self.network.inputs.begin(x, counted=True))
        return state

    def _mode(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return torch.inference_mode()
        return _inference_mode_in(self.device, self.precision)

    def _advance(self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch) -> None:
        batch.state = self._stages[exit_index](batch.state)

    def _outputs(self, exit_index: int, batch: ShrinkingBatch) -> AnyArray:
        earlier = None
        if self._reads_logits[exit_index]:
            before = batch.history.outputs
            assert before is not None, "what heads read is kept"
            before = before[:, :exit_index]
            earlier = before if self._decides_there else as_tensor(before).to(self.device)
        logits = self._heads[exit_index](batch.state, earlier).float()
        return logits if self._decides_there else logits.cpu().numpy()


@contextmanager
def _inference_mode_in(device: torch.device, precision: Precision) -> Iterator[None]:
    with torch.inference_mode(), autocast(device, precision):
        yield


def _decides_on(device: torch.device, policy: Policy) -> bool:
    """Whether decisions can stay on a device: not those of components that know NumPy alone."""
    # Apple's GPU lacks the float64 that scores are computed in.
    if device.type in ("cpu", "mps") or policy.num_classes is None:
        return False
    like, everywhere = torch.empty(0, device=device), np.zeros_like(policy.thresholds)
    decider = Decider(policy.answer, policy.scorer, everywhere, like=like)
    rows = torch.linspace(-1, 1, 2 * policy.num_classes, device=device).view(2, -1)
    buffer = decider.begin(*rows.shape)
    try:
        found = [decider.at_exit(m, buffer, rows) for m in range(decider.last + 1)]
        return all(is_tensor(part) for each in found for part in each if part is not None)
    except Exception as error:  # components are anybody's
        logger.info("decisions are made on the CPU, since on %s: %s", device, error)
        return False


def reads_outputs(network: EarlyExitNetwork) -> list[bool]:
    """Which heads `[M]` read the logits of the exits before them."""
    # There is nothing before the first.
    return [False, *(bool(getattr(h, "reads_logits", True)) for h in list(network.heads)[1:])]


def selected(policy: Policy) -> int:
    """The number of the policy's operating point; `NotFittedError` if it is at none."""
    policy.thresholds  # noqa: B018 - raises if there is no operating point
    assert policy.selected is not None
    return policy.selected


def _moved(policy: Policy, index: int) -> Policy:
    """The policy at another point, without its guarantee."""
    return policy.with_points(policy.points).at_point(index)


def network_of(policy: Policy, network: EarlyExitNetwork) -> EarlyExitNetwork:
    """The network with the exits of a policy, which must have been fitted for this very one."""
    check_has_exits(network, "a runner")
    if not policy.history_type.has_logits:
        what = policy.history_type.name
        raise NetworkError(
            f"this policy is for {what} without logits, and a network has logits: use "
            "policy.start() for single items, or offramp.Cascade"
        )
    exits, classes = len(policy.thresholds), policy.num_classes
    is_own = policy.network == network.fingerprint()  # then its exits are exits of this one
    if (exits != network.num_exits and not is_own) or classes != network.num_classes:
        raise NetworkError(
            f"this policy is for {exits} exits and {classes} classes, and the network has "
            f"{network.num_exits} and {network.num_classes}: fit the policy on ledgers of this "
            "network"
        )
    if policy.network is None:
        warnings.warn(
            "this policy does not say which network it is for, so a mix-up would go unnoticed; "
            "fit it on ledgers from offramp.record",
            OriginWarning,
            stacklevel=3,
        )
    elif not is_own:
        raise OriginError(
            f"this policy is for the network {policy.network[:16]!r}, and this one is "
            f"{network.fingerprint()[:16]!r}: record this network and fit the policy again, or "
            "load the weights that it was fitted on"
        )
    return network if len(policy.exits) == network.num_exits else network.keep_exits(policy.exits)


def near_threshold(scores: AnyArray, thresholds: AnyArray, tolerance: float = TOLERANCE) -> Array:
    """Samples that rounding errors in their scores could send to another exit.

    Batch sizes, precisions and export formats change the last bits of a score. Decisions agree
    for all other samples.

    Args:
        scores: `[N, M]`.
        thresholds: `[M]`.
        tolerance: Largest rounding error.

    Returns:
        bool `[N]`: the score at the exit taken, or at an earlier one, is within the tolerance of
        its threshold.

    Example:
        >>> scores = np.array([[0.5, 1.0], [0.7, 1.0]])
        >>> near_threshold(scores, np.array([0.70005, 0.0]))
        array([False,  True])
    """
    scores, thresholds = as_numpy(scores), as_numpy(thresholds)
    close = abs(scores.astype(np.float64) - thresholds) <= tolerance
    # Also at the exit taken: just above the threshold, the sample might have continued.
    reached = np.arange(scores.shape[1]) <= exits_taken(scores, thresholds)[:, None]
    close[:, -1] = False  # the last exit always stops
    found: Array = (close & reached).any(axis=1)
    return found
