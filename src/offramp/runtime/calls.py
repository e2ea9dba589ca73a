"""Calls of the models of a cascade: how often they are tried, how long they may take, and where.

A call that fails for a reason that passes is tried again with longer and longer pauses. Where that
does not help, the response has an `error` instead of an answer. What was billed is paid all the
same: a response with an `error` may state its `cost`, as may an exception.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from offramp import check
from offramp.arrays import Array
from offramp.errors import ConfigError, LedgerError, NetworkError
from offramp.ledger.answers import Normalise
from offramp.runtime.members import ModelRun, Response

logger = logging.getLogger("offramp")
Result = TypeVar("Result")

PASSING = (408, 409, 429)  # and 5xx: states of HTTP that pass
# Of httpx, openai, aiohttp and requests, which are not imported here.
PASSING_NAMES = {
    *("ConnectionError", "TimeoutError", "gaierror"),
    *("TransportError", "APIConnectionError", "ClientConnectionError", "Timeout"),
}

FOUND = ("macs", "seconds")  # units of costs that nobody needs to state

FREE: AbstractAsyncContextManager[None] = nullcontext()  # however many calls there are


class LateError(Exception):
    """The time for the items is up."""


def passes(error: Exception) -> bool:
    """Whether a call that failed may work next time: lost connections, 408, 409, 429 and 5xx.

    Example:
        >>> passes(ConnectionResetError()), passes(ValueError("not JSON"))
        (True, False)
    """
    status = _status(error)
    if status is not None:
        return status in PASSING or status >= 500
    return any(kind.__name__ in PASSING_NAMES for kind in type(error).__mro__)


def _status(error: Exception) -> int | None:
    """The status of HTTP that an error of a client states."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (response, "status_code"), (error, "status")):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None


def retry_after(error: Exception) -> float:
    """Seconds that the server asked to wait for, with `Retry-After`; 0 where it did not."""
    for holder in (getattr(error, "response", None), error):
        headers = getattr(holder, "headers", None) or {}
        value = headers.get("retry-after") or headers.get("Retry-After")
        if value is None:
            continue
        with suppress(ValueError):
            return max(0.0, float(value))
        with suppress(ValueError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0


@dataclass(frozen=True)
class CallSettings:
    """How models are called; see `Cascade`."""

    concurrency: int = 8
    retries: int = 2
    backoff: float = 0.5
    timeout: float | None = None
    retry_on: Callable[[Exception], bool] = passes
    normalise: Normalise | None = None
    unit: str = "relative"

    def __post_init__(self) -> None:
        check.whole("concurrency", self.concurrency, least=1)
        check.whole("retries", self.retries)
        check.at_least("backoff", self.backoff, 0)
        if self.timeout is not None:
            check.positive("timeout", self.timeout)
        if not callable(self.retry_on):
            raise ConfigError(
                "`retry_on` must be a function of the exception that says whether to try again, "
                f"got {self.retry_on!r}"
            )


class Calls:
    """Calls on one event loop, at most so many at once; or without one, in the caller's thread.

    Args:
        settings: How often and when to try again.
        in_loop: Whether an event loop runs. Without one, there are no async models and no
            timeouts, and nothing here ever waits for anything but the models.
    """

    def __init__(self, settings: CallSettings, in_loop: bool = True) -> None:
        self.in_loop, self._settings = in_loop, settings
        self._limit = asyncio.Semaphore(settings.concurrency) if in_loop else FREE
        self._noted: set[str] = set()

    async def batch(
        self, run: ModelRun, stage: int, rows: Array, until: float | None
    ) -> list[Response]:
        """The responses of a synchronous model to these items."""

        async def call() -> list[Response]:
            if self.in_loop:
                return await in_thread(lambda: run.batch(stage, rows))
            return run.batch(stage, rows)

        found = await self._tried(run, call, until)
        if isinstance(found, Response):
            return [found] * len(rows)
        return [self._usable(run, response) for response in found]

    async def item(self, run: ModelRun, row: int, until: float | None) -> Response:
        """The response of an async model to an item."""
        found = await self._tried(run, lambda: run.item(row), until, self._limit)
        return self._usable(run, Response.of(found))

    async def _tried(
        self,
        run: ModelRun,
        call: Callable[[], Awaitable[Any]],
        until: float | None,
        limit: AbstractAsyncContextManager[Any] = FREE,
    ) -> Any:  # noqa: ANN401 - what the call returns, or a response with the error
        """The result of a call, tried again with longer and longer pauses.

        Raises:
            LateError: The time is up.
        """
        settings, attempt = self._settings, 0
        while True:
            try:
                async with limit:
                    return await self._in_time(run, call, until)
            except (NetworkError, LateError):  # no retry will change that
                raise
            except Exception as error:
                if attempt >= settings.retries or not settings.retry_on(error):
                    return self._failed(run, error)
                pause = max(settings.backoff * 2**attempt, retry_after(error))
                if until is not None and time.monotonic() + pause >= until:
                    return self._failed(run, error)  # the next model may have time
            attempt += 1
            if self.in_loop:
                await asyncio.sleep(pause)
            else:
                time.sleep(pause)

    async def _in_time(
        self, run: ModelRun, call: Callable[[], Awaitable[Any]], until: float | None
    ) -> Any:  # noqa: ANN401
        if not self.in_loop:
            return await call()
        longest = run.member.timeout or self._settings.timeout
        left = None if until is None else until - time.monotonic()
        if longest is None and left is None:
            return await call()
        is_last = longest is None or (left is not None and left <= longest)
        try:
            async with asyncio.timeout(left if is_last else longest) as clock:
                return await call()
        except TimeoutError as error:
            if not clock.expired():  # the model's own
                raise
            if is_last:
                raise LateError from None
            raise TimeoutError(f"no answer within {longest:g} s") from error

    def _failed(self, run: ModelRun, error: Exception) -> Response:
        response = Response(error=one_line(error), cost=getattr(error, "cost", None))
        self._check_cost(run, response)
        return self._noted_once(run, response)

    def _usable(self, run: ModelRun, response: Response) -> Response:
        """The response; with an error where it has no answer, or NaN as its confidence."""
        self._check_cost(run, response)
        is_nan = response.confidence != response.confidence
        if not (is_nan or response.error or response.answer is None):
            return response
        if not response.error:
            cost = run.member.own_cost if response.cost is None else response.cost
            what = "a finite confidence" if is_nan else "an answer"
            response = Response(error=f"a response without {what}", cost=cost)
        return self._noted_once(run, response)

    def _check_cost(self, run: ModelRun, response: Response) -> None:
        """Check what a call has cost as soon as it is stated, before more is paid."""
        member, cost = run.member, response.cost
        if cost is not None and (isinstance(cost, str) or not 0 <= cost < math.inf):
            raise NetworkError(
                f"`{member.name}` must return a cost of at least 0 with its answer, got {cost!r}"
            )

    def _noted_once(self, run: ModelRun, response: Response) -> Response:
        name = run.member.name
        if response.error and name not in self._noted:
            self._noted.add(name)
            logger.warning("`%s` of a cascade failed: %s", name, response.error)
        return response


def unknown_cost(name: str) -> LedgerError:
    """The error where nothing states what a model costs."""
    return LedgerError(
        f"what `{name}` costs is not known: give Member(..., cost=...), return a cost with each "
        "answer, or time all models with cascade.measure(inputs)"
    )


async def in_thread(function: Callable[[], Result]) -> Result:
    """What a function returns, called in a thread that is left to itself if nobody waits longer.

    A thread of a pool would hold up the pool, and the end of the program, for as long as it hangs.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:  # noqa: ANN401
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value: Any = None
        failed: Exception | None = None
        try:
            value = function()
        except StopIteration as error:
            failed = RuntimeError(f"StopIteration: {error}")  # no future can hold it
        except Exception as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=work, daemon=True, name="offramp-call").start()
    return await future


def driven(call: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never waits, without an event loop, which takes longer.

    Example:
        >>> async def three():
        ...     return 3
        >>> driven(three())
        3
    """
    try:
        call.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("a coroutine waits, and no event loop runs")


class BackgroundLoop:
    """An event loop in a thread of its own, for programs that are not async.

    It lives as long as its cascade, so that clients with connections that belong to a loop can be
    used by one call after the other.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, daemon=True, name="offramp-cascade")
        self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                return self._loop.run_forever()
            except BaseException:  # a model's sys.exit() ends the loop; its caller gets it, too
                continue

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine; when the waiting is interrupted, it is cancelled."""
        if threading.current_thread() is self._thread:
            call.close()
            raise ConfigError("a model of a cascade cannot call cascade.run: await cascade.arun")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1) if others else None
            await self._loop.shutdown_asyncgens()

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._loop.close()


def one_line(error: Exception) -> str:
    """Somebody else's error in one line.

    Example:
        >>> one_line(ConnectionError("no key"))
        'ConnectionError: no key'
    """
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())
