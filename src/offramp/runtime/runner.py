"""`Runner`: a network and a policy at work, in which samples leave the batch when they stop."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp.errors import ConfigError, NetworkError, OriginError, OriginWarning
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, batch_size, map_leaves
from offramp.policy import Policy
from offramp.runtime.flight import Flight, Said, unbroken
from offramp.runtime.memory import suggesting_batch_size
from offramp.runtime.output import Answered, RunOutput, Sink
from offramp.runtime.plan import Plan, judge
from offramp.runtime.stats import RunStats, Tally
from offramp.runtime.streaming import Stream
from offramp.thresholds.rule import stops

__all__ = ["Runner", "checked_deadline"]


class Runner:
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
        >>> policy = offramp.Policy.for_budget(offramp.MaxProbability(), held_out, val, budget=0.6)
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
        _check_settings(precision, false_alarm_rate)
        _check_partners(network, policy)
        self.network = network.eval()
        self._modules = tuple(network.modules())
        self._device = next((p.device for p in network.parameters()), torch.device("cpu"))
        self._precision = precision
        self._channels_last = channels_last
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._stages = _compiled(network, compile)
        self._clock = clock
        self._reads_logits = [bool(getattr(h, "reads_logits", True)) for h in network.heads]
        self._reads_logits[0] = False  # there is nothing before it
        self._plan = Plan.of(policy, self._reads_logits)
        self._tally = Tally(self._plan, false_alarm_rate)

    @property
    def policy(self) -> Policy:
        """The policy at its present operating point."""
        return self._plan.policy

    @property
    def stats(self) -> RunStats:
        """Cost and exit shares since the budget was set, and whether they have drifted."""
        return self._tally.snapshot()

    def set_budget(self, budget: float) -> None:
        """Move to another of the policy's operating points; nothing is refitted.

        Batches that are on their way finish at the old one. `stats` begins again, but an alarm
        stays on.

        Args:
            budget: Mean cost as a share of the network without exits, in (0, 1].

        Raises:
            BudgetError: No operating point is that cheap; the message says what is possible.
        """
        self._plan = Plan.of(self.policy.at(budget=budget), self._reads_logits)
        self._tally.start(self._plan)

    def __call__(self, x: Any, deadline: float | None = None) -> RunOutput:  # noqa: ANN401
        """Answer a batch.

        Args:
            x: A batch as the network takes it: a tensor, or a mapping for text.
            deadline: Seconds after which everything is answered with the exit it has reached.
                Time is looked at between stages, so it can be overrun by one stage; the first
                stage always runs.

        Returns:
            One row per sample, in order. A sample with NaN or infinite inputs fails alone.

        Raises:
            NetworkError: The batch is not what the network takes.
            MemoryLimitError: The batch does not fit into memory.
        """
        until = self._clock() + checked_deadline(deadline)
        plan = self._plan
        flight, samples = self.depart(plan, x)
        answered = Answered(samples, self.network.num_classes)
        with self.running(samples):
            for exit_index in range(self.network.num_exits):
                if not len(flight):
                    break
                if exit_index and self._clock() >= until:
                    self._force(plan, exit_index - 1, flight, answered)
                    break
                flight = self.run_stage(plan, exit_index, flight, answered)
        output = answered.output(plan)
        self._tally.add(plan, output, answered.forced)
        return output

    def stream(self, batches: Iterable[Any], window: int = 16) -> Iterator[RunOutput]:
        """Answer many batches, for data larger than memory.

        What stays of several batches is put together again, so that deep stages do not run on
        a few samples each. Batches are read when there is room for them: at most `window` of
        them are on their way at any time. Texts of different length are padded to the longest
        that they are put together with; images of different size run apart.

        Args:
            batches: Of inputs, as `runner(x)` takes them.
            window: How many input batches may be on their way.

        Yields:
            One output per batch, in order.

        Raises:
            ConfigError: `window` is not a positive number.
        """
        if window < 1:
            raise ConfigError(f"`window` must be at least 1, got {window}")
        plan = self._plan
        for answered in Stream(self, plan, window).run(batches):
            output = answered.output(plan)
            self._tally.add(plan, output, answered.forced)
            yield output

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
        """Inference mode, autocast where asked for, and an error that helps if memory ends.

        Args:
            samples: How many are run inside, for the error.
        """
        modes = ExitStack()
        modes.enter_context(suggesting_batch_size(samples))
        modes.enter_context(torch.inference_mode())
        if self._precision == "bfloat16":
            modes.enter_context(torch.autocast(self._device.type, torch.bfloat16))
        return modes

    def depart(self, plan: Plan, x: Any, first_row: int = 0) -> tuple[Flight, int]:  # noqa: ANN401
        """A batch before its first stage, without samples whose numbers are none.

        Args:
            plan: The operating point.
            x: The batch.
            first_row: Where its answers begin.

        Returns:
            The samples that will be answered, and the number of all.
        """
        state = self._begin(x)
        samples = batch_size(state)
        rows = torch.arange(first_row, first_row + samples)
        with self.running(samples):
            said = Said.nothing(plan, samples, self.network.num_classes)
            flight = Flight(rows, state, said)
            healthy = unbroken(state)
            if healthy is not None:
                flight = flight.take(healthy)
            return self._trimmed(flight), samples

    def run_stage(self, plan: Plan, m: int, flight: Flight, answered: Sink) -> Flight:
        """Run one stage, answer those who stop after it, and return the others.

        To be called inside `running`.
        """
        flight = flight.at(self._stages[m](flight.state))
        if not plan.needs_head[m]:
            return flight
        last = m == self.network.num_exits - 1
        answer, scores = self._judge(plan, m, flight, score=plan.is_open[m] and not last)
        if last:
            answered.write(flight.rows, answer, m, math.inf)
            return flight.landed()
        if scores is None:
            return flight
        stop = stops(scores, plan.limits[m])
        leaving = stop.nonzero().squeeze(1)
        if not len(leaving):
            return flight  # as it is: nothing is gathered
        if len(leaving) == len(flight):
            answered.write(flight.rows, answer, m, scores)
            return flight.landed()
        answered.write(flight.rows[leaving], answer[leaving], m, scores[leaving])
        return self._trimmed(flight.take((~stop).nonzero().squeeze(1)))

    def _judge(
        self, plan: Plan, m: int, flight: Flight, score: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What is answered at an exit `[n, K]`, and how much speaks for stopping `[n]`."""
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
        return answer, scores

    def _force(self, plan: Plan, m: int, flight: Flight, answered: Answered) -> None:
        """Answer everybody with the exit that they have reached."""
        answer, scores = self._judge(plan, m, flight, score=plan.is_open[m])
        answered.write(flight.rows, answer, m, math.nan if scores is None else scores)
        answered.forced[flight.rows] = True

    def _trimmed(self, flight: Flight) -> Flight:
        return flight.at(self.network.trim(flight.state)) if len(flight) else flight


def _compiled(network: EarlyExitNetwork, backend: bool | str) -> list[Callable[[State], State]]:
    stages: list[nn.Module] = list(network.stages)
    if not backend:
        return list(stages)
    chosen = "inductor" if backend is True else backend
    return [torch.compile(stage, dynamic=True, backend=chosen) for stage in stages]


def _check_settings(precision: str, false_alarm_rate: float) -> None:
    if precision not in ("float32", "bfloat16"):
        raise ConfigError(f"`precision` must be float32 or bfloat16, got {precision!r}")
    if not 0 < false_alarm_rate < 1:
        raise ConfigError(f"`false_alarm_rate` must lie in (0, 1), got {false_alarm_rate}")


def checked_deadline(deadline: float | None) -> float:
    """Seconds; infinite for None.

    Raises:
        ConfigError: It is not positive.
    """
    if deadline is None:
        return math.inf
    if not deadline > 0:
        raise ConfigError(f"`deadline` must be a positive number of seconds, got {deadline}")
    return deadline


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
