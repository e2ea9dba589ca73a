"""`Runner`: a network and a policy at work, in which samples leave the batch when they stop."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp.errors import ConfigError, NetworkError, OriginError, OriginWarning
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, batch_size, map_leaves
from offramp.policy import Policy
from offramp.runtime.engine import StagedRunner, suggesting_batch_size
from offramp.runtime.inflight import Flight
from offramp.runtime.output import Verdict
from offramp.runtime.routes import Plan, judge


class Runner(StagedRunner[Plan]):
    """Runs a network stage by stage, and takes out the samples that have their answer.

    After each stage the policy answers those who stop; the others go on in a smaller batch.
    Results come in the order of the input. The network is put into eval mode and kept there.
    Several threads may call one runner.

    Args:
        network: The network, where it is (its device is used).
        policy: Of this network, at an operating point: `policy.at(budget=...)`.
        precision: `bfloat16` runs stages and heads under autocast; decisions near a threshold
            may change.
        channels_last: Lay out images and weights with the channels last, which most processors
            prefer for convolutions.
        compile: Compile each stage by itself with `torch.compile`, for any batch size; a text
            names another backend. The first batches then take long.
        false_alarm_rate: Of the drift alarm in `stats`, over the whole stream.
        clock: Seconds, for deadlines.

    Raises:
        NetworkError: The policy is for another number of exits or classes.
        OriginError: The policy was fitted on another network's outputs.
        NotFittedError: The policy has no operating point.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> import offramp
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> data = TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 4)
        >>> ledger = offramp.record(network, data, split="all", progress=False)
        >>> held_out, val, _ = ledger.partition()
        >>> policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
        >>> policy = policy.at(budget=0.6)
        >>> runner = Runner(network, policy)
        >>> output = runner(torch.rand(16, 3, 8, 8))
        >>> output.predictions.shape, bool(output.costs.mean() <= 1)
        (torch.Size([16]), True)
    """

    def __init__(
        self,
        network: EarlyExitNetwork,
        policy: Policy,
        *,
        precision: Literal["float32", "bfloat16"] = "float32",
        channels_last: bool = False,
        compile: bool | str = False,
        false_alarm_rate: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if precision not in ("float32", "bfloat16"):
            raise ConfigError(f"`precision` must be float32 or bfloat16, got {precision!r}")
        _check_partners(network, policy)
        self._reads_logits = [bool(getattr(h, "reads_logits", True)) for h in network.heads]
        self._reads_logits[0] = False  # there is nothing before it
        plan = Plan.of(policy, self._reads_logits)
        super().__init__(plan, network.num_classes, false_alarm_rate, clock)
        self.network = network.eval()
        self._modules = tuple(network.modules())
        self._device = next((p.device for p in network.parameters()), torch.device("cpu"))
        self._precision = precision
        self._channels_last = channels_last
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._stages = _compiled(network, compile)

    @property
    def policy(self) -> Policy:
        """The policy at its present operating point."""
        return self._plan.policy

    def _plan_at(self, budget: float) -> Plan:
        return Plan.of(self.policy.at(budget=budget), self._reads_logits)

    def full(self, x: Any) -> Tensor:  # noqa: ANN401 - a batch as the network takes it
        """The network without exits: all stages and the last head, `[N, K]` float32.

        What a user would run otherwise, in the same precision and layout; for comparison.
        """
        state = self._begin(x)
        last = self.network.num_exits - 1
        before: list[Tensor] = []
        with self.running(batch_size(state)):
            for m, stage in enumerate(self._stages):
                state = stage(state)
                if m == last or any(self._reads_logits):
                    earlier = torch.stack(before, 1) if before else None
                    before.append(self.network.head(m, state, earlier))
            return before[-1].float().cpu()

    def _begin(self, x: Any) -> State:  # noqa: ANN401
        for module in self._modules:
            if module.training:  # somebody called network.train()
                self.network.eval()
                break

        def place(leaf: Tensor) -> Tensor:
            leaf = leaf.to(self._device)
            if self._channels_last and leaf.ndim == 4:
                leaf = leaf.contiguous(memory_format=torch.channels_last)
            return leaf

        state: State = map_leaves(place, self.network.begin(x))
        return state

    def running(self, samples: int) -> ExitStack:
        """Inference mode, autocast where asked for, and an error that helps if memory ends."""
        modes = ExitStack()
        modes.enter_context(suggesting_batch_size(samples))
        modes.enter_context(torch.inference_mode())
        if self._precision == "bfloat16":
            modes.enter_context(torch.autocast(self._device.type, torch.bfloat16))
        return modes

    def _advance(self, plan: Plan, m: int, flight: Flight) -> Flight:
        return flight.at(self._stages[m](flight.state))

    def _verdict(self, plan: Plan, m: int, flight: Flight, score: bool) -> Verdict:
        said = flight.said
        before = None
        if self._reads_logits[m] and said.logits is not None:
            before = said.logits[:, :m].to(self._device)
        logits = self.network.head(m, flight.state, before).float().cpu()
        earlier = None if said.answers is None else said.answers[:, :m]
        # Decisions are made in float32 on the CPU, where the policy is, whatever the precision.
        half = self._precision == "bfloat16"
        with torch.autocast("cpu", enabled=False) if half else nullcontext():
            answer, scores = judge(plan.policy, said.so_far(m, logits), earlier, score)
        if said.answers is not None:
            said.answers[:, m] = answer
        return Verdict(answer, scores)

    def _trim(self, state: State) -> State:
        return self.network.trim(state)

    def align(self, states: Sequence[State]) -> list[State]:
        """As the network's inputs do it."""
        return self.network.align(states)


def _compiled(network: EarlyExitNetwork, backend: bool | str) -> list[Callable[[State], State]]:
    stages: list[nn.Module] = list(network.stages)
    if not backend:
        return list(stages)
    chosen = "inductor" if backend is True else backend
    return [torch.compile(stage, dynamic=True, backend=chosen) for stage in stages]


def _check_partners(network: EarlyExitNetwork, policy: Policy) -> None:
    """The policy must be for this very network."""
    if not isinstance(network, EarlyExitNetwork):
        raise NetworkError(
            f"a runner needs an EarlyExitNetwork, whose stages are apart, got "
            f"{type(network).__name__}: put exits on it with offramp.attach"
        )
    exits, classes = len(policy.thresholds), policy.num_classes
    if (exits, classes) != (network.num_exits, network.num_classes):
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
    elif policy.network != network.fingerprint():
        raise OriginError(
            f"this policy is for the network {policy.network[:16]!r}, and this one is "
            f"{network.fingerprint()[:16]!r}: record this network and fit the policy again, or "
            "load the weights that it was fitted for"
        )
