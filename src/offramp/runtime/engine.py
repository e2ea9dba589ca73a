"""How any runner answers batches and streams: stage by stage, in batches that shrink."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, all_finite, as_numpy, is_tensor
from offramp.decide import ExitOutput
from offramp.errors import MemoryLimitError
from offramp.networks.inputs import Inputs
from offramp.networks.state import State, batch_size, join_key, take
from offramp.runtime.output import (
    ConfidenceFunction,
    OutputBuffer,
    RunOutput,
    in_numpy,
    taken_by_one,
    unknown_confidence,
)
from offramp.runtime.prepared_points import PreparedPoint
from offramp.runtime.shrinking_batch import ShrinkingBatch, finite_samples, join_batches
from offramp.runtime.stats import Operation, RunStats

# Torch on the CPU and ONNX Runtime report a failed allocation in no error class of its own.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "Failed to allocate memory for requested buffer",
)

Write = Callable[[Array, int, ExitOutput], None]


class StagedRunner(ABC):
    """Runs stages one after the other and removes the samples that stop from the batch.

    A subclass says what a batch is, how it begins, how a stage runs and what its exit puts out.
    The decision is `Decider`'s, at the operating point that `operation` holds, which counts what
    is done there. `confidence` is None if it is not known.
    """

    def __init__(
        self,
        operation: Operation,
        num_classes: int,
        confidence: ConfidenceFunction | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_classes = num_classes
        self.operation = operation
        self._confidence = confidence
        self._clock = clock

    def __call__(self, x: Any, deadline: float | None = None) -> RunOutput:  # noqa: ANN401
        """Answer a batch.

        Tensors are answered with tensors, and arrays of NumPy with arrays.

        Args:
            x: A batch as the network takes it: a tensor, an array, or a mapping for text.
            deadline: Seconds after which all remaining samples are answered at the exit they
                have reached. The clock is read between stages, so a deadline can be overrun by
                one stage; the first stage always runs.

        Returns:
            One row per sample, in order. A sample with NaN or infinite inputs fails alone.

        Raises:
            NetworkError: The batch is not what the network takes.
            MemoryLimitError: The batch does not fit into memory.
        """
        until = None
        if deadline is not None:
            check.positive("deadline", deadline)
            until = self._clock() + deadline
        point, state = self.operation.point, self._begin(x)
        output = None
        if until is None and batch_size(state) == 1:
            output = self._answer_one(point, state)
        if output is None:
            output = self._finish(point, self._answer(point, state, until))
        return output.as_tensors() if holds_tensors(x) else output

    def _answer_one(self, point: PreparedPoint, state: State) -> RunOutput | None:
        """The answer to a single sample, without what many samples need; None where it fails.

        The stages and decisions of `_run_stage`, in half of the time around them.
        """
        if finite_samples(state) is not None:
            return None
        decider = point.decider
        with self._running(1):
            history = decider.begin(1, self.num_classes)
            batch = ShrinkingBatch(_rows(0, 1), self.inputs.trim(state), history)
            for exit_index in range(decider.last + 1):
                self._advance(point, exit_index, batch)
                if not decider.needs_head[exit_index]:
                    continue
                output = decider.at_exit(exit_index, history, self._outputs(exit_index, batch))
                scores = output.scores
                if scores is not None and scores.item() >= decider.limits[exit_index]:
                    break
        answer, score = in_numpy(output)
        if not all_finite(answer):
            return None
        self.operation.add(point, (exit_index,))
        taken = partial(taken_by_one, exit_index, score, point)
        return RunOutput(answer, taken, self._confidence or unknown_confidence)

    def _answer(
        self, point: PreparedPoint, state: State, until: float | None = None
    ) -> OutputBuffer:
        samples = batch_size(state)
        buffer = self._buffer(samples)
        with self._running(samples):
            batch = self._enter(point, state, samples, first_row=0)
            for exit_index in range(len(point.costs)):
                if batch is None:
                    break
                late = until is not None and exit_index and self._clock() >= until
                reached = self._reached(point, exit_index - 1, batch) if late else None
                if reached is not None:
                    end, output = reached
                    buffer.write(batch.rows, end, output, forced=end < point.decider.last)
                    break
                batch = self._run_stage(point, exit_index, batch, buffer.write)
        return buffer

    def _enter(
        self, point: PreparedPoint, state: State, samples: int, first_row: int
    ) -> ShrinkingBatch | None:
        """All samples before the first stage, except those with NaN or infinite inputs."""
        rows = _rows(first_row, samples)
        finite = finite_samples(state)
        if finite is not None:
            rows, state, samples = rows[finite], take(state, finite), len(finite)
        if not samples:
            return None
        history = point.decider.begin(samples, self.num_classes)
        return ShrinkingBatch(rows, self.inputs.trim(state), history)

    def _run_stage(
        self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch, write: Write
    ) -> ShrinkingBatch | None:
        """Run one stage, write the answers of the samples that stop, and return the others.

        Returns None where all have stopped.
        """
        self._advance(point, exit_index, batch)
        decider = point.decider
        if not decider.needs_head[exit_index]:
            return batch
        output = decider.at_exit(exit_index, batch.history, self._outputs(exit_index, batch))
        scores, samples = output.scores, len(batch)
        if exit_index == decider.last:
            count = samples
        elif scores is None:
            return batch
        elif samples == 1:  # as numbers, which takes a tenth of the time
            count = int(scores.item() >= decider.limits[exit_index])
        else:
            stop = as_numpy(decider.stops(exit_index, scores))
            count = int(np.count_nonzero(stop))
        if not count:
            return batch  # as it is: nothing is copied
        if count == samples:
            write(batch.rows, exit_index, output)
            return None
        leaving = np.flatnonzero(stop)
        write(batch.rows[leaving], exit_index, output.take(leaving))
        staying = batch.take(np.flatnonzero(~stop))
        staying.state = self.inputs.trim(staying.state)
        return staying

    def _buffer(self, samples: int) -> OutputBuffer:
        return OutputBuffer(samples, self.num_classes)

    def _finish(self, point: PreparedPoint, buffer: OutputBuffer) -> RunOutput:
        output = buffer.finish(point, self._confidence)
        exits = buffer.exits_of_answered(output)
        self.operation.add(point, exits, buffer.failed, buffer.forced)
        return output

    def stream(self, batches: Iterable[Any], window: int = 16) -> Iterator[RunOutput]:
        """Answer many batches, for data larger than memory.

        The samples that remain of several batches are merged, so that deep stages do not run on
        a few samples each. At most `window` batches are unfinished at any time; further ones are
        read when there is room. Texts of different lengths are padded to the longest text that
        they are merged with; inputs of different shapes run separately.

        Args:
            batches: Inputs as `runner(x)` takes them.
            window: How many input batches may be unfinished.

        Yields:
            One output per batch, in order.

        Raises:
            ConfigError: `window` is not positive.
        """
        check.whole("window", window, least=1)
        of_tensors: deque[bool] = deque()  # the unfinished batches

        def noted() -> Iterator[Any]:
            for x in batches:
                of_tensors.append(holds_tensors(x))
                yield x

        for point, buffer in _Stream(self, window).run(noted()):
            output = self._finish(point, buffer)
            yield output.as_tensors() if of_tensors.popleft() else output

    @property
    def stats(self) -> RunStats:
        """Cost and exit shares since the budget was set, and whether they have drifted."""
        return self.operation.snapshot()

    def set_budget(self, budget: float) -> None:
        """Move to another of the policy's operating points; nothing is refitted.

        Unfinished batches finish at the old one. `stats` starts again, but an alarm stays on.

        Args:
            budget: Mean cost as a share of the network without exits, in (0, 1].

        Raises:
            BudgetError: No operating point is that cheap; the message says what is possible.
        """
        self.operation.start(self._index_for(budget))

    @contextmanager
    def _running(self, samples: int) -> Iterator[None]:
        """The mode in which stages run; if memory runs out, the error suggests a batch size.

        Samples whose logits overflow fail, and NumPy need not warn of them, too.
        """
        try:
            with self._mode(), np.errstate(all="ignore"):
                yield
        except Exception as error:  # ONNX Runtime's errors share no other class
            if not _is_out_of_memory(error):
                raise
            raise MemoryLimitError(_advice(samples)) from error

    def _mode(self) -> AbstractContextManager[Any]:
        """In which mode and precision of its library stages run."""
        return nullcontext()

    @abstractmethod
    def full(self, x: Any) -> Any:  # noqa: ANN401 - a batch as the network takes it
        """The network without exits, `[N, K]` float32, for comparison; nothing is decided."""

    @property
    @abstractmethod
    def inputs(self) -> Inputs:
        """What a batch looks like."""

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What runs: the number of `exits`, and fingerprints of the `network` and the `policy`."""

    def _index_for(self, budget: float) -> int:
        return self.operation.points.for_budget(budget)

    @abstractmethod
    def _begin(self, x: Any) -> State:  # noqa: ANN401
        """Check a batch, and turn it into the state that the first stage takes."""

    @abstractmethod
    def _advance(self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch) -> None:
        """Run one stage on all samples of a batch, and put the new state into it."""

    @abstractmethod
    def _outputs(self, exit_index: int, batch: ShrinkingBatch) -> AnyArray:
        """What the exit after a stage puts out, `[n, K]` float32."""

    def _reached(
        self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch
    ) -> tuple[int, ExitOutput] | None:
        """The exit that a batch has reached when its deadline has passed, and what it comes to.

        None if the batch cannot be answered before the next stage has run.
        """
        outputs = self._outputs(exit_index, batch)
        return exit_index, point.decider.at_exit(exit_index, batch.history, outputs)


class _Stream:
    """Keeps the stages busy with full batches, all of them at one operating point.

    There is a queue before every stage. The deepest full queue runs first, which keeps few
    samples waiting; a new batch is read only when no queue is full. When `window` batches are
    unfinished, all queues are emptied from the first to the last, so no sample waits for ever and
    memory is bounded. A runner that holds its budget moves to another point whenever all batches
    are finished.
    """

    def __init__(self, runner: StagedRunner, window: int) -> None:
        self._runner = runner
        self._point = point = runner.operation.point
        self._window = window
        self._full = 1  # samples: as many as in the largest input batch so far
        self._queues: list[list[ShrinkingBatch]] = [[] for _ in point.costs]
        self._outputs = _OutputQueue()

    def run(self, batches: Iterable[Any]) -> Iterator[tuple[PreparedPoint, OutputBuffer]]:
        """Yield the answers to each batch, in order, as soon as they are complete."""
        for x in batches:
            self._accept(x)
            if len(self._outputs) >= self._window:
                self._empty()
            yield from self._complete()
        self._empty()
        yield from self._complete()

    def _complete(self) -> Iterator[tuple[PreparedPoint, OutputBuffer]]:
        for buffer in self._outputs.complete():
            yield self._point, buffer
        if self._runner.operation.holds_budget and not len(self._outputs):
            self._point = self._runner.operation.point

    def _accept(self, x: Any) -> None:  # noqa: ANN401 - a batch as the network takes it
        runner = self._runner
        state = runner._begin(x)
        samples = batch_size(state)
        with runner._running(samples):
            batch = runner._enter(self._point, state, samples, self._outputs.next_row)
        expected = 0 if batch is None else len(batch)
        self._outputs.open(runner._buffer(samples), expected)
        self._full = max(self._full, samples)
        if batch is not None:
            self._queues[0].append(batch)
        while (deepest := self._deepest_full()) is not None:
            self._run_queue(deepest)

    def _deepest_full(self) -> int | None:
        sizes = (sum(map(len, queue)) for queue in self._queues)
        full = (exit_index for exit_index, size in enumerate(sizes) if size >= self._full)
        return max(full, default=None)

    def _empty(self) -> None:
        for exit_index in range(len(self._queues)):
            self._run_queue(exit_index)

    def _run_queue(self, exit_index: int) -> None:
        """Run everything that waits before a stage; what remains waits before the next."""
        waiting, self._queues[exit_index] = self._queues[exit_index], []
        for batch in self._merged(waiting):
            with self._runner._running(len(batch)):
                remaining = self._runner._run_stage(
                    self._point, exit_index, batch, self._outputs.write
                )
            if remaining is not None:
                self._queues[exit_index + 1].append(remaining)

    def _merged(self, batches: Sequence[ShrinkingBatch]) -> list[ShrinkingBatch]:
        """As few batches as possible."""
        if len(batches) < 2:
            return list(batches)
        groups: dict[str, list[tuple[ShrinkingBatch, State]]] = {}
        states = self._runner.inputs.align([batch.state for batch in batches])
        for batch, state in zip(batches, states, strict=True):
            groups.setdefault(repr(join_key(state)), []).append((batch, state))
        with self._runner._mode():
            return [join_batches(*zip(*group, strict=True)) for group in groups.values()]


class _OutputQueue:
    """The answers to the batches of a stream that are unfinished, oldest first."""

    def __init__(self) -> None:
        self._buffers: deque[tuple[int, OutputBuffer]] = deque()  # first row, answers
        self._missing: dict[int, int] = {}  # first row -> samples without an answer
        self.next_row = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def open(self, buffer: OutputBuffer, expected: int) -> None:
        """Make room for a batch, of which `expected` samples will be answered."""
        self._buffers.append((self.next_row, buffer))
        self._missing[self.next_row] = expected
        self.next_row += max(buffer.samples, 1)  # an empty batch has a row of its own, too

    def write(self, rows: Array, exit_index: int, output: ExitOutput) -> None:
        """Pass answers on to the batches that they belong to."""
        for first, buffer in self._buffers:
            own = np.flatnonzero((rows >= first) & (rows < first + buffer.samples))
            if len(own):
                buffer.write(rows[own] - first, exit_index, output.take(own))
                self._missing[first] -= len(own)

    def complete(self) -> Iterator[OutputBuffer]:
        """Remove the oldest batches, as long as all of their samples are answered."""
        while self._buffers and not self._missing[self._buffers[0][0]]:
            first, buffer = self._buffers.popleft()
            del self._missing[first]
            yield buffer


@lru_cache(maxsize=8)  # of the same few batches, since nothing changes them
def _rows(first: int, samples: int) -> Array:
    return np.arange(first, first + samples)


def holds_tensors(x: Any) -> bool:  # noqa: ANN401 - a batch as the network takes it
    """Whether a batch is of tensors rather than of arrays of NumPy."""
    if isinstance(x, Mapping):
        return any(map(is_tensor, x.values()))
    return any(map(is_tensor, x)) if isinstance(x, list | tuple) else is_tensor(x)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return any(phrase in str(error) for phrase in OUT_OF_MEMORY)


def _advice(samples: int) -> str:
    if samples <= 1:
        return "out of memory with a single sample: use smaller inputs, or a larger machine"
    # A power of two, and at most half of the batch: what nearly fits is slow and fails again.
    fewer = 1 << ((samples // 2).bit_length() - 1)
    return (
        f"out of memory with a batch of {samples} samples: pass at most {fewer} at a time, for "
        f"instance runner.stream(inputs.split({fewer}))"
    )
