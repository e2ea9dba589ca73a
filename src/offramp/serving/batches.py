"""Requests that arrive together are answered in one batch."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from offramp.serving.requests import Query

log = logging.getLogger("offramp.serving")

Records = list[dict[str, Any]]


@dataclass(eq=False)
class _Waiting:
    query: Query
    answer: "asyncio.Future[dict[str, Any]]"
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Gathers requests into batches, and gives each request its own answer.

    Nothing runs while no request waits, so it needs no start and no end.

    Args:
        answer: Answers a batch.
        max_batch: Largest size of a batch.
        batch_wait: Seconds that a request waits for others, counted from its own arrival.
        timeout: Seconds after which a request without an answer raises `HTTPException`.
        concurrency: How many batches may be answered at the same time.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Query]], Awaitable[Records]],
        max_batch: int,
        batch_wait: float,
        timeout: float,
        concurrency: int = 1,
    ) -> None:
        self._answer, self._max_batch, self._batch_wait = answer, max_batch, batch_wait
        self._timeout, self._concurrency = timeout, concurrency
        self._queue: deque[_Waiting] = deque()
        self._working: set[asyncio.Task[None]] = set()  # one task per batch that may be under way
        self._gathering = asyncio.Lock()  # one batch is filled after the other
        self._full = asyncio.Event()  # enough requests wait for the largest batch
        self._began: dict[int, float] = {}  # when the batches that are being answered began

    async def __call__(self, query: Query) -> dict[str, Any]:
        """The answer to one request; raises `HTTPException` if there is none."""
        waiting = _Waiting(query, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if len(self._queue) >= self._max_batch:
            self._full.set()
        if len(self._working) < self._concurrency:
            self._working.add(asyncio.create_task(self._work()))
        try:
            async with asyncio.timeout(self._timeout):
                return await waiting.answer
        except TimeoutError:
            reason = f"no answer within {self._timeout:g} seconds: the server has too much to do"
            raise HTTPException(504, reason) from None

    @property
    def is_stuck(self) -> bool:
        """Whether a batch has been running for longer than any request waits."""
        return any(time.monotonic() - began > self._timeout for began in self._began.values())

    async def _work(self) -> None:
        """Answer batches until no request waits."""
        task = asyncio.current_task()
        assert task is not None, "this runs as a task"
        try:
            while self._queue:
                async with self._gathering:
                    batch = await self._gathered()
                if batch:
                    await self._answer_batch(batch)
        finally:
            # In the same step as the queue was found empty: the next request starts another task.
            self._working.discard(task)

    async def _gathered(self) -> list[_Waiting]:
        """The requests to answer next, without the requests that nobody waits for any more."""
        while self._queue and len(self._queue) < self._max_batch:
            left = self._queue[0].since + self._batch_wait - time.monotonic()
            if left <= 0:
                break
            self._full.clear()
            try:
                async with asyncio.timeout(left):
                    await self._full.wait()
            except TimeoutError:
                break
        size = min(len(self._queue), self._max_batch)
        batch = [self._queue.popleft() for _ in range(size)]
        return [each for each in batch if not each.answer.done()]

    async def _answer_batch(self, batch: list[_Waiting]) -> None:
        number = id(batch)
        self._began[number] = time.monotonic()
        try:
            records = await self._answer([each.query for each in batch])
        except Exception:  # a fault of the network or of ours; the next batch may be fine
            log.exception("a batch of %d requests could not be answered", len(batch))
            reason = "this request could not be answered; the server's log says why"
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(HTTPException(500, reason))
        else:
            for each, record in zip(batch, records, strict=True):
                if not each.answer.done():
                    each.answer.set_result(record)
        finally:
            del self._began[number]
