"""Workers that answer batches: processes with a model each, or one thread with a live runner."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from offramp.errors import ProcessError
from offramp.serving.answers import Model, Worker
from offramp.serving.requests import Query, RequestSettings, UnansweredError

log = logging.getLogger("offramp.serving")

DEATHS, WITHIN = 5, 60.0  # so many deaths of workers within so many seconds end the server
Answers = list[dict[str, Any]]


class WorkerSlot(Protocol):
    """One worker at a time."""

    async def start(self) -> str:
        """Be ready to answer; returns the fingerprint of the policy that is answered with."""
        ...

    def answer(self, queries: Sequence[Query], point: int) -> "asyncio.Future[Answers]":
        """The answers to a batch at an operating point, as soon as all before are answered."""
        ...

    def kill(self) -> None:
        """End the worker at once; it can be started again."""
        ...


class LiveWorker(Protocol):
    """Answers batches in this process."""

    @property
    def policy(self) -> str:
        """The fingerprint of the policy."""
        ...

    def __call__(self, queries: Sequence[Query], point: int) -> Answers:
        """Answer a batch at the operating point with this number."""
        ...


class ThreadSlot:
    """A runner or a cascade in a thread, which cannot be ended before its batch is answered."""

    def __init__(self, worker: "LiveWorker") -> None:
        self._worker = worker
        self._executor = ThreadPoolExecutor(1, "offramp-worker")

    async def start(self) -> str:
        """Nothing has to be loaded."""
        return self._worker.policy

    def answer(self, queries: Sequence[Query], point: int) -> "asyncio.Future[Answers]":
        """The answers to a batch at an operating point."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._worker, queries, point)

    def kill(self) -> None:
        """Leave what runs in the thread alone, and take another one."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = ThreadPoolExecutor(1, "offramp-worker")


class ProcessSlot:
    """A worker in a process of its own, which is started again if it dies."""

    def __init__(self, model: Model, settings: RequestSettings, threads: int | None) -> None:
        self._arguments = model, settings.device, settings.precision, threads
        self._pool: ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None

    @property
    def _executor(self) -> Executor:
        if self._pool is None:
            # Not forked: this process has threads, whose locks a fork would copy as they are.
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._pool

    async def start(self) -> str:
        """Load the model, once more if it was loaded before."""
        loop, known = asyncio.get_running_loop(), set(active_children())
        with _blocked_signals():  # they are for this process, which then ends its workers
            loading = loop.run_in_executor(self._executor, _load, *self._arguments)
        self._process = next(iter(set(active_children()) - known), self._process)
        return await loading

    def answer(self, queries: Sequence[Query], point: int) -> "asyncio.Future[Answers]":
        """The answers to a batch at an operating point."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, _answer, queries, point)

    def kill(self) -> None:
        """End the process, and make room for another one."""
        if self._process is not None:
            self._process.kill()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._process = None


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Processes that are started here never get SIGINT and SIGTERM; this one gets them later."""
    resource_tracker.ensure_running()  # which would let signals through again, if it came later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: Worker | None = None  # that of this process, if it is one


def _load(model: Model, device: str, precision: str, threads: int | None) -> str:
    """In the process of a worker: load the model, and return the fingerprint of its policy."""
    global _worker
    if _worker is None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = Worker(model, device, precision, threads)
    return _worker.policy


def _answer(queries: Sequence[Query], point: int) -> Answers:
    assert _worker is not None, "a worker is loaded before it is asked"
    return _worker(queries, point)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass(eq=False)
class _Waiting:
    query: Query
    answer: "asyncio.Future[dict[str, Any]]"
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Gathers requests into batches, one per free worker, and gives each request its answer.

    Args:
        slots: The workers.
        choose: Says at which operating point a batch is answered, by its number, and what its
            answers are passed to.
        settings: How batches are gathered.
        timeout: Seconds after which a request is given up.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        choose: Callable[[], tuple[int, Callable[[Answers], None]]],
        settings: RequestSettings,
        timeout: float,
    ) -> None:
        self._slots, self._choose = slots, choose
        self._settings, self._timeout = settings, timeout
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._gathering = asyncio.Lock()  # one batch is filled after the other
        self._loading = asyncio.Lock()  # no batch goes to a worker while models are loaded again
        self._deaths: list[float] = []
        self.restarts = 0

    async def __call__(self, query: Query) -> dict[str, Any]:
        """The answer to one request; raises `UnansweredError` if there is none."""
        waiting = _Waiting(query, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(waiting)
        try:
            async with asyncio.timeout(self._timeout):
                return await waiting.answer
        except TimeoutError:
            reason = f"no answer within {self._timeout:g} seconds: the server has too much to do"
            raise UnansweredError(504, reason) from None

    async def run(self, ready: Callable[[], None]) -> None:
        """Start all workers, call `ready`, and answer until this is cancelled.

        Raises `ProcessError` where workers die again and again.
        """
        await asyncio.gather(*(slot.start() for slot in self._slots))
        ready()
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._work(slot))
        except* ProcessError as errors:
            raise errors.exceptions[0] from None

    async def reload(self, policy: str, swap: Callable[[], None]) -> None:
        """Load the models again, which must have this policy now, and call `swap`.

        Batches before are answered with the old models, and those after with the new ones.
        """
        async with self._loading:
            found = await asyncio.gather(*(slot.start() for slot in self._slots))
            if set(found) != {policy}:
                raise ProcessError(
                    "the policy was changed again while workers loaded it: reload once more"
                )
            swap()

    async def _work(self, slot: WorkerSlot) -> None:
        while True:
            batch = await self._gathered()
            if batch:
                await self._answer(slot, batch)

    async def _gathered(self) -> list[_Waiting]:
        """The requests to answer next; those that were given up are left out."""
        async with self._gathering:
            found = [await self._queue.get()]
            until = time.monotonic() + self._settings.batch_wait
            while len(found) < self._settings.max_batch:
                if self._queue.empty():
                    try:
                        async with asyncio.timeout(until - time.monotonic()):
                            found.append(await self._queue.get())
                    except TimeoutError:
                        break
                else:
                    found.append(self._queue.get_nowait())
        return [each for each in found if not each.answer.done()]

    async def _answer(self, slot: WorkerSlot, batch: list[_Waiting]) -> None:
        try:
            async with self._loading:
                point, count = self._choose()
                answering = slot.answer([each.query for each in batch], point)
            async with asyncio.timeout(self._timeout):
                answers = await answering
        except BrokenProcessPool:
            _refuse(batch, 503, "the worker that had this request has died: send it again")
            await self._restart(slot, "a worker has died")
        except TimeoutError:
            _refuse(batch, 504, f"no answer within {self._timeout:g} seconds")
            await self._restart(slot, f"a worker gave no answer within {self._timeout:g} seconds")
        except Exception:  # a fault of the network or of ours; the next batch may be fine
            log.exception("a batch of %d requests could not be answered", len(batch))
            _refuse(batch, 500, "this request could not be answered; the server's log says why")
        else:
            for each, answer in zip(batch, answers, strict=True):
                if not each.answer.done():
                    each.answer.set_result(answer)
            count(answers)

    async def _restart(self, slot: WorkerSlot, why: str) -> None:
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if at > now - WITHIN] + [now]
        if len(self._deaths) >= DEATHS:
            raise ProcessError(
                f"{why}, {DEATHS} times within {WITHIN:g} seconds: see above, and check the "
                "memory of this machine"
            )
        log.warning("%s; another one is started", why)
        self.restarts += 1
        slot.kill()
        try:
            await slot.start()
        except BrokenProcessPool:
            await self._restart(slot, "a worker has died while it was started")


def _refuse(batch: Sequence[_Waiting], status: int, reason: str) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(UnansweredError(status, reason))
