"""What all runners share: samples go through stages together, and leave when they stop."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic

import torch

from offramp.errors import ConfigError, MemoryLimitError
from offramp.networks.state import State, batch_size
from offramp.runtime.inflight import Flight, Said, unbroken
from offramp.runtime.output import Answered, RunOutput, Sink, Verdict
from offramp.runtime.stats import RunStats, Tally
from offramp.runtime.stream import RouteT, Stream
from offramp.thresholds.rule import stops

# What torch on the CPU, and ONNX Runtime, say in errors of no class of their own.
PHRASES = (
    "DefaultCPUAllocator: can't allocate memory",
    "Failed to allocate memory for requested buffer",
)


@contextmanager
def suggesting_batch_size(samples: int) -> Iterator[None]:
    """Turn a failed allocation inside into an error that suggests a batch size.

    Args:
        samples: Of the batch that is run.

    Raises:
        MemoryLimitError: There was not enough memory.
    """
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no other class in common
        if not _is_out_of_memory(error):
            raise
        raise MemoryLimitError(_advice(samples)) from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(phrase in str(error) for phrase in PHRASES)


def _advice(samples: int) -> str:
    if samples <= 1:
        return "out of memory with a single sample: use smaller inputs, or a larger machine"
    # A power of two, half of the batch at most: what nearly fits is slow and fails again.
    fewer = 1 << ((samples // 2).bit_length() - 1)
    return (
        f"out of memory with a batch of {samples} samples: pass at most {fewer} at a time, for "
        f"instance runner.stream(inputs.split({fewer}))"
    )


class StagedRunner(ABC, Generic[RouteT]):
    """Runs stages one after the other, and takes out the samples that have their answer.

    A subclass says how a batch begins, how a stage is run, what is said at its exit, and how the
    operating point for a budget is found.

    Args:
        plan: The operating point to begin with.
        num_classes: K.
        false_alarm_rate: Of the drift alarm in `stats`, over the whole stream.
        clock: Seconds, for deadlines.

    Raises:
        ConfigError: The rate is no probability.
    """

    def __init__(
        self,
        plan: RouteT,
        num_classes: int,
        false_alarm_rate: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 0 < false_alarm_rate < 1:
            raise ConfigError(f"`false_alarm_rate` must lie in (0, 1), got {false_alarm_rate}")
        self.num_classes = num_classes
        self._plan = plan
        self._clock = clock
        self._tally = Tally(plan, false_alarm_rate)

    @abstractmethod
    def running(self, samples: int) -> AbstractContextManager[Any]:
        """The mode in which stages are run, with an error that helps if memory ends.

        Args:
            samples: How many are run inside, for the error.
        """

    @abstractmethod
    def _plan_at(self, budget: float) -> RouteT:
        """The operating point for a budget."""

    @abstractmethod
    def _begin(self, x: Any) -> State:  # noqa: ANN401
        """Check a batch, and turn it into the state that the first stage takes."""

    @abstractmethod
    def _advance(self, plan: RouteT, m: int, flight: Flight) -> Flight:
        """The same samples, a stage further."""

    @abstractmethod
    def _verdict(self, plan: RouteT, m: int, flight: Flight, score: bool) -> Verdict:
        """What is said about samples at the exit that they have reached.

        Args:
            plan: The operating point.
            m: The exit.
            flight: The samples.
            score: Whether a stop score is wanted.
        """

    @abstractmethod
    def _trim(self, state: State) -> State:
        """Cut what no remaining sample needs, such as columns that are padding for all."""

    @abstractmethod
    def align(self, states: Sequence[State]) -> list[State]:
        """Bring states of different batches to one shape where that changes no answer."""

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
        self._plan = self._plan_at(budget)
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
        until = self._clock() + _checked_deadline(deadline)
        plan = self._plan
        state = self._begin(x)
        samples = batch_size(state)
        answered = Answered(samples, self.num_classes)
        with self.running(samples):
            flight = self._departing(plan, state, samples, first_row=0)
            for exit_index in range(len(plan.costs)):
                if not len(flight):
                    break
                if exit_index and self._clock() >= until:
                    self._force(plan, exit_index - 1, flight, answered)
                    break
                flight = self.run_stage(plan, exit_index, flight, answered)
        return self._counted(plan, answered)

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
            yield self._counted(plan, answered)

    def _counted(self, plan: RouteT, answered: Answered) -> RunOutput:
        output = answered.output(plan)
        self._tally.add(plan, output, answered.forced)
        return output

    def depart(self, plan: RouteT, x: Any, first_row: int) -> tuple[Flight, int]:  # noqa: ANN401
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
        with self.running(samples):
            return self._departing(plan, state, samples, first_row), samples

    def _departing(self, plan: RouteT, state: State, samples: int, first_row: int) -> Flight:
        rows = torch.arange(first_row, first_row + samples)
        flight = Flight(rows, state, Said.nothing(plan, samples, self.num_classes))
        healthy = unbroken(state)
        return self._trimmed(flight if healthy is None else flight.take(healthy))

    def run_stage(self, plan: RouteT, m: int, flight: Flight, answered: Sink) -> Flight:
        """Run one stage, answer those who stop after it, and return the others.

        To be called inside `running`.
        """
        flight = self._advance(plan, m, flight)
        if not plan.needs_head[m]:
            return flight
        last = m == len(plan.costs) - 1
        verdict = self._verdict(plan, m, flight, score=plan.is_open[m] and not last)
        if last:
            answered.write(flight.rows, m, verdict, math.inf)
            return flight.landed()
        if verdict.scores is None:
            return flight
        stop = stops(verdict.scores, plan.limits[m])
        count = int(stop.count_nonzero())
        if not count:
            return flight  # as it is: nothing is gathered
        if count == len(flight):
            answered.write(flight.rows, m, verdict, math.nan)
            return flight.landed()
        leaving = stop.nonzero().squeeze(1)
        answered.write(flight.rows[leaving], m, verdict.take(leaving), math.nan)
        return self._trimmed(flight.take((~stop).nonzero().squeeze(1)))

    def _force(self, plan: RouteT, m: int, flight: Flight, answered: Answered) -> None:
        """Answer everybody with the exit that they have reached."""
        verdict = self._verdict(plan, m, flight, score=plan.is_open[m])
        answered.write(flight.rows, m, verdict, math.nan)
        answered.forced[flight.rows] = True

    def _trimmed(self, flight: Flight) -> Flight:
        return flight.at(self._trim(flight.state)) if len(flight) else flight


def _checked_deadline(deadline: float | None) -> float:
    """Seconds; infinite for None."""
    if deadline is None:
        return math.inf
    if not deadline > 0:
        raise ConfigError(f"`deadline` must be a positive number of seconds, got {deadline}")
    return deadline
