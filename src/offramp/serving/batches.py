"""Requests that arrive together are answered in one batch."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from offramp.serving.config import AppConfig
from offramp.serving.responses import Record, Reply

log = logging.getLogger("offramp.serving")


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
    """

    def __init__(
        self, answer: Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]], config: AppConfig
    ) -> None:
        self._answer, self._config = answer, config
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._gathering = asyncio.Lock()  # one batch is filled after the other
        # Tasks that answer batches, and since when each has been waiting for the model.
        self._working: dict[asyncio.Task[None], float] = {}

    async def __call__(self, sample: Any) -> Record:  # noqa: ANN401
        """The answer to one sample; raises `HTTPException` if there is none in time."""
        timeout = self._config.request_timeout
        loop = asyncio.get_running_loop()
        waiting = _Waiting(sample, loop.create_future(), loop.time() + self._config.batch_wait)
        self._queue.put_nowait(waiting)
        if len(self._working) < self._config.concurrency:
            self._working[loop.create_task(self._work())] = math.inf
        try:
            async with asyncio.timeout(timeout):
                return await waiting.answer
        except TimeoutError:
            reason = f"no answer within {timeout:g} seconds: the server has too much to do"
            raise HTTPException(504, reason) from None

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
                    batch.append(await self._queue.get())
        return [each for each in batch if not each.answer.done()]

    async def _answer_batch(self, batch: list[_Waiting]) -> None:
        replies: Sequence[Reply]
        try:
            replies = await self._answer([each.sample for each in batch])
        except Exception:  # a fault of the network or of ours; the next batch may be fine
            log.exception("a batch of %d requests could not be answered", len(batch))
            reason = "this request could not be answered; the server's log says why"
            replies = [HTTPException(500, reason)] * len(batch)
        for each, reply in zip(batch, replies, strict=True):
            if each.answer.done():
                continue
            if isinstance(reply, HTTPException):
                each.answer.set_exception(reply)
            else:
                each.answer.set_result(reply)
