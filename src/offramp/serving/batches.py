"""Requests that arrive together are answered in one batch."""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from offramp.serving.config import AppConfig
from offramp.serving.metrics import Metrics
from offramp.serving.middleware import FAULT
from offramp.serving.responses import Record, Reply

log = logging.getLogger("offramp.serving")
T = TypeVar("T")


class _Waiting(NamedTuple):
    """A request that is not answered yet."""

    sample: Any
    answer: "asyncio.Future[Record]"
    latest: float  # when its batch is no longer held open, in the loop's time


class Batcher:
    """Gathers samples into batches, and gives each request its own answer.

    Nothing runs while no request waits, so it needs no start and no end.

    Args:
        answer: Answers a batch.
        config: Sizes and times. A request waits for others from its own arrival on.
        metrics: Told the sizes of batches, and how many requests wait.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]],
        config: AppConfig,
        metrics: Metrics | None = None,
    ) -> None:
        self._answer, self._config, self._metrics = answer, config, metrics
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._gathering = asyncio.Lock()  # one batch is filled after the other
        # Tasks that answer batches, and since when each has been waiting for the model.
        self._working: dict[asyncio.Task[None], float] = {}

    async def __call__(self, sample: Any) -> Record:  # noqa: ANN401
        """The answer to one sample; `HTTPException` if there is none."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(sample, loop.create_future(), loop.time() + self._config.batch_wait)
        self._queue.put_nowait(waiting)
        if len(self._working) < self._config.concurrency:
            self._working[loop.create_task(self._work())] = math.inf
        try:
            return await waiting.answer
        finally:
            waiting.answer.cancel()  # if the request was given up

    @property
    def is_stuck(self) -> bool:
        """Whether a batch has been running for longer than any request waits."""
        longest = time.monotonic() - min(self._working.values(), default=math.inf)
        return longest > self._config.request_timeout

    async def _work(self) -> None:
        """Answer batches until no request waits."""
        task = asyncio.current_task()
        assert task is not None, "this runs as a task"
        try:
            while not self._queue.empty():
                async with self._gathering:
                    batch = await self._gathered()
                if batch:
                    self._working[task] = time.monotonic()
                    await self._answer_batch(batch)
                    self._working[task] = math.inf
        finally:
            # In the same step as the queue was found empty: the next request starts another task.
            del self._working[task]

    async def _gathered(self) -> list[_Waiting]:
        """The requests to answer next, without requests whose clients were answered already."""
        if self._queue.empty():  # another task has taken them
            return []
        batch = [self._queue.get_nowait()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(batch[0].latest):
                while len(batch) < self._config.max_batch:
                    each = await self._queue.get()
                    if not each.answer.done():
                        batch.append(each)
        return [each for each in batch if not each.answer.done()]

    async def _answer_batch(self, batch: list[_Waiting]) -> None:
        replies: Sequence[Reply]
        if self._metrics is not None:
            self._metrics.batches.observe(len(batch))
            self._metrics.queue.set(self._queue.qsize())
        try:
            replies = await self._answer([each.sample for each in batch])
        except Exception:  # a fault of the network or of ours; the next batch may be fine
            log.exception("a batch of %d requests could not be answered", len(batch))
            replies = [HTTPException(500, FAULT)] * len(batch)
        for each, reply in zip(batch, replies, strict=True):
            if each.answer.done():
                continue
            if isinstance(reply, HTTPException):
                each.answer.set_exception(reply)
            else:
                each.answer.set_result(reply)


class Room:
    """Room for so much at the same time; who needs more than is free waits for its turn.

    Args:
        size: Of all. More is never needed at once.
    """

    def __init__(self, size: int) -> None:
        self._free, self._waiting = size, deque[tuple[int, asyncio.Future[None]]]()

    async def run(self, size: int, function: Callable[[], T]) -> T:
        """Run a function in a thread, as soon as there is room.

        The room is free again when the thread is done, also where nobody waits for it any more.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((size, turn))
                size = 0
            self._give_back(size, turn)
            raise
        work = asyncio.ensure_future(run_in_threadpool(function))
        work.add_done_callback(partial(self._give_back, size))
        return await asyncio.shield(work)

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.popleft()
            self._free -= size
            turn.set_result(None)

    def _give_back(self, size: int, done: "asyncio.Future[Any]") -> None:
        if not done.cancelled():
            done.exception()  # whoever still waits for it gets it
        self._free += size
        self._admit()
