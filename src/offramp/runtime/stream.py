"""Many batches: what stays of each is put together with the others, stage by stage."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from offramp.networks.state import State, join_key
from offramp.runtime.inflight import Flight, join_flights
from offramp.runtime.output import Answered, Sink, Verdict
from offramp.runtime.routes import Route

RouteT = TypeVar("RouteT", bound=Route)
Taken = TypeVar("Taken", bound=Route, contravariant=True)


class Engine(Protocol[Taken]):
    """What a stream needs of a runner."""

    num_classes: int

    def running(self, samples: int) -> AbstractContextManager[Any]:
        """The mode in which stages are run."""

    def depart(self, plan: Taken, x: Any, first_row: int) -> tuple[Flight, int]:  # noqa: ANN401
        """A batch before its first stage, and the number of its samples."""

    def run_stage(self, plan: Taken, m: int, flight: Flight, answered: Sink) -> Flight:
        """Run a stage, answer those who stop after it, and return the others."""

    def align(self, states: Sequence[State]) -> list[State]:
        """Bring states of different batches to one shape where that changes no answer."""


class _Board:
    """The answers of the batches that are on their way."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._batches: deque[tuple[int, Answered]] = deque()  # first row, answers
        self._missing: dict[int, int] = {}  # first row -> samples without an answer
        self.next_row = 0

    def __len__(self) -> int:
        return len(self._batches)

    def open(self, samples: int, expected: int) -> None:
        """Make room for a batch, of which so many samples will be answered."""
        self._batches.append((self.next_row, Answered(samples, self._num_classes)))
        self._missing[self.next_row] = expected
        self.next_row += max(samples, 1)  # so that an empty batch has a row of its own, too

    def write(self, rows: Tensor, exit_index: int, verdict: Verdict, unscored: float) -> None:
        """Hand answers on to the batches that they belong to."""
        for first, answered in self._batches:
            mine = ((rows >= first) & (rows < first + len(answered.exits))).nonzero().squeeze(1)
            if len(mine):
                answered.write(rows[mine] - first, exit_index, verdict.take(mine), unscored)
                self._missing[first] -= len(mine)

    def complete(self) -> Iterator[Answered]:
        """Take off the oldest batches, as long as they are answered."""
        while self._batches and not self._missing[self._batches[0][0]]:
            first, answered = self._batches.popleft()
            del self._missing[first]
            yield answered


class Stream(Generic[RouteT]):
    """Keeps the stages busy with full batches.

    Before every stage there is a queue. The deepest queue that is full runs first, which keeps
    few samples on their way; a new batch is read only when none is full. When `window` batches
    are on their way, all queues are emptied from the first to the last, so that nobody waits for
    ever and memory is bounded.

    Args:
        engine: Runs the stages.
        plan: The operating point of the whole stream.
        window: How many input batches are on their way, at most.
    """

    def __init__(self, engine: Engine[RouteT], plan: RouteT, window: int) -> None:
        self._engine = engine
        self._plan = plan
        self._window = window
        self._full = 1  # samples: as many as the largest batch that came in
        self._queues: list[list[Flight]] = [[] for _ in plan.costs]
        self._board = _Board(engine.num_classes)

    def run(self, batches: Iterable[Any]) -> Iterator[Answered]:
        """Yield the answers of each batch, in order, as soon as they are complete."""
        for x in batches:
            self._accept(x)
            if len(self._board) >= self._window:
                self._empty()
            yield from self._board.complete()
        self._empty()
        yield from self._board.complete()

    def _accept(self, x: Any) -> None:  # noqa: ANN401 - a batch as the network takes it
        flight, samples = self._engine.depart(self._plan, x, self._board.next_row)
        self._board.open(samples, expected=len(flight))
        self._full = max(self._full, samples)
        self._queues[0].append(flight)
        while (deepest := self._deepest_full()) is not None:
            self._run_queue(deepest)

    def _deepest_full(self) -> int | None:
        full = (m for m, queue in enumerate(self._queues) if sum(map(len, queue)) >= self._full)
        return max(full, default=None)

    def _empty(self) -> None:
        for exit_index in range(len(self._queues)):
            self._run_queue(exit_index)

    def _run_queue(self, exit_index: int) -> None:
        """Run everything that waits before a stage; what stays waits before the next."""
        waiting, self._queues[exit_index] = self._queues[exit_index], []
        for flight in self._together([each for each in waiting if len(each)]):
            with self._engine.running(len(flight)):
                staying = self._engine.run_stage(self._plan, exit_index, flight, self._board)
            if len(staying):
                self._queues[exit_index + 1].append(staying)

    def _together(self, flights: Sequence[Flight]) -> list[Flight]:
        """As few flights as possible."""
        if len(flights) < 2:
            return list(flights)
        groups: dict[Any, list[tuple[Flight, State]]] = {}
        states = self._engine.align([each.state for each in flights])
        for flight, state in zip(flights, states, strict=True):
            groups.setdefault(repr(join_key(state)), []).append((flight, state))
        with torch.inference_mode():
            return [join_flights(*zip(*group, strict=True)) for group in groups.values()]
