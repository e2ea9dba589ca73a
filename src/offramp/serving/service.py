"""The server of `serve`, built with FastAPI and uvicorn; imported only where these are there."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from offramp import __version__
from offramp.errors import OfframpError
from offramp.runtime.stats import Operation
from offramp.serving.answers import Model, Worker
from offramp.serving.http import Gate, PrometheusMetrics, make_api, read_body, same_text
from offramp.serving.requests import Parser, RequestParser, is_answered, tokenizer_of
from offramp.serving.server import ADMIN_TOKEN, ServeConfig
from offramp.serving.workers import Answers, Batcher, ProcessSlot, ThreadSlot, WorkerSlot

if TYPE_CHECKING:
    from offramp.serving.cascades import CascadeWorker

LAST = 0.2  # seconds in which connections from just before are refused in words, not reset
LINGER = 0.5  # seconds in which requests that were on their way are still refused in words
log = logging.getLogger("offramp.serving")


class Served(Protocol):
    """What a service keeps of a runner or a cascade."""

    operation: Operation

    @property
    def num_classes(self) -> int | None:
        """K, where it is known."""
        ...

    @property
    def about(self) -> dict[str, Any]:
        """Number of `exits`, fingerprints of the `network` and the `policy`."""
        ...


class Service:
    """A model that answers over HTTP; the operating point and what was done at it are kept here.

    Workers are told the operating point with every batch, so that it can change at any moment, and
    all of them are counted together.
    """

    def __init__(
        self,
        runner: Served,
        slots: Sequence[WorkerSlot],
        parser: Parser,
        config: ServeConfig,
        model: Model | None = None,
    ) -> None:
        self.config, self._parser, self._model = config, parser, model
        self._operation, self._about, self._set_budget = _kept(runner)
        self._slots = slots
        self.batcher = Batcher(slots, self._choose, config, config.request_timeout)
        self.api_key: str | None = None
        self.admin_token: str | None = None
        self.access_log: logging.Logger | None = None
        self.gate = Gate()

    @classmethod
    def of_model(cls, model: Model, config: ServeConfig) -> "Service":
        """Serve folders, which worker processes load; they are loaded here once, for a check."""
        runner = model.runner("cpu")
        tokenizer = tokenizer_of(model.tokenizer)
        parser = RequestParser(runner.inputs, model.images, config, tokenizer)
        slots = [ProcessSlot(model, config, config.threads) for _ in range(config.workers)]
        return cls(runner, slots, parser, config, model)

    @classmethod
    def of_worker(cls, worker: Worker, config: ServeConfig) -> "Service":
        """Serve a live runner, in a thread."""
        parser = RequestParser(worker.runner.inputs, worker.images, config)
        return cls(worker.runner, [ThreadSlot(worker)], parser, config)

    @classmethod
    def of_cascade(cls, worker: "CascadeWorker", config: ServeConfig) -> "Service":
        """Serve a cascade; `workers` batches can be on their way at once, each in a thread."""
        slots = [ThreadSlot(worker) for _ in range(config.workers)]
        return cls(worker, slots, worker.parser(config), config)

    def _choose(self) -> tuple[int, Callable[[Answers], None]]:
        operation, point = self._operation, self._operation.point

        def count(answers: Answers) -> None:
            exits = [each["exit"] for each in answers if is_answered(each)]
            operation.add(point, exits, len(answers) - len(exits))

        return point.index, count

    @property
    def about(self) -> dict[str, Any]:
        """What is served."""
        points, stats = self._operation.ladder.points, self._operation.snapshot()
        chosen = self._operation.point.index
        budget = float(points.budgets[chosen]) if stats.held is None else stats.held.budget
        return {**self._about, "budget": budget, "version": __version__}

    def app(self) -> FastAPI:
        """The application, with all routes."""
        self.gate = Gate(self.api_key)
        metrics = PrometheusMetrics(self._about["exits"])
        api = make_api(self.batcher, self._parser, metrics, self.gate, self.access_log)

        async def metrics_page() -> Response:
            stats = self._operation.snapshot()
            return metrics.page(stats, self.about, self.batcher.restarts)

        async def info() -> Response:
            return JSONResponse({"model": self.about})

        api.add_api_route("/metrics", metrics_page, methods=["GET"], response_model=None)
        api.add_api_route("/info", info, methods=["GET"], response_model=None)
        for path, method, change in (
            ("/admin/budget", "PUT", self._change_budget),
            ("/admin/reload", "POST", self._reload),
        ):
            api.add_api_route(path, change, methods=[method], response_model=None)
        return api

    async def _change_budget(self, request: Request) -> Response:
        """Move to the operating point of another budget, `{"budget": 0.4}`."""
        self._check_admin(request)
        body = await read_body(request, self._parser)
        try:
            budget = json.loads(body)["budget"]
        except (ValueError, KeyError, TypeError):
            raise HTTPException(422, 'give {"budget": SHARE}') from None
        try:
            self._set_budget(budget)
        except OfframpError as error:
            raise HTTPException(422, str(error)) from None
        log.warning("the budget was set to %s", budget)
        return JSONResponse(self.about)

    async def _reload(self, request: Request) -> Response:
        """Read the folders again that the server was started with."""
        self._check_admin(request)
        if self._model is None:
            raise HTTPException(409, "this server runs a live runner, and has no folders to read")
        try:
            runner = await run_in_threadpool(self._model.runner, "cpu")
            if (
                runner.about["exits"] != self._about["exits"]
                or runner.inputs != self._parser.inputs
            ):
                raise HTTPException(
                    409, "the new network has other inputs or exits: start another server"
                )
            kept = _kept(runner)
            await self.batcher.reload(runner.about["policy"], lambda: self._swap(kept))
        except OfframpError as error:
            raise HTTPException(409, f"nothing was changed: {error}") from None
        log.warning("the policy was read again: %s", self._about["policy"][:16])
        return JSONResponse(self.about)

    def _swap(self, kept: tuple[Any, dict[str, Any], Callable[[float], None]]) -> None:
        self._operation, self._about, self._set_budget = kept

    def _check_admin(self, request: Request) -> None:
        """Only with the token, and only from this machine unless the settings say otherwise."""
        if self.admin_token is None:
            raise HTTPException(
                403, f"nothing can be changed: start the server with a token in {ADMIN_TOKEN}"
            )
        client = request.client.host if request.client else ""
        if not (self.config.remote_admin or _is_loopback(client)):
            raise HTTPException(403, "this can only be changed from the server's own machine")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same_text(token, self.admin_token):
            raise HTTPException(
                401, "send the token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )

    def close(self) -> None:
        """End the workers."""
        for slot in self._slots:
            slot.kill()


def _kept(
    runner: Served,
) -> tuple[Any, dict[str, Any], Callable[[float], None]]:
    """What a service keeps of a runner: not the network, which only the workers need."""
    operation = runner.operation
    about = {**runner.about, "classes": runner.num_classes}
    return operation, about, lambda budget: operation.start(operation.ladder.for_budget(budget))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class _Server(uvicorn.Server):
    """Refuses new requests in words and answers the open ones before it closes anything."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at a second Ctrl-C at once. uvicorn's own would raise the signal afterwards."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close."""
        gate = self._service.gate
        gate.draining = True
        until = time.monotonic() + self._service.config.drain_timeout
        linger = time.monotonic() + LINGER
        while not self.force_exit and time.monotonic() < (until if gate.inside else linger):
            await asyncio.sleep(0.02)
        if gate.inside:
            log.error("%d requests were not answered in time", gate.inside)
        if not self.force_exit:
            await self._close_door(sockets or [])
            # Who came last may still be sending: one second cuts slow ones off, with a traceback.
            left = max(1, math.ceil(until - time.monotonic()))
            self.config.timeout_graceful_shutdown = left
        await super().shutdown(sockets)

    async def _close_door(self, sockets: list[socket.socket]) -> None:
        """Take nobody new, and refuse in words whoever is connected already.

        The system resets connections that still wait when the door closes, so they are let in
        at the last moment.
        """
        loop, waiting = asyncio.get_running_loop(), []
        for door in sockets:
            with contextlib.suppress(BlockingIOError):
                while True:
                    waiting.append(door.accept()[0])
        for server in self.servers:
            server.close()
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, connection)
        await asyncio.sleep(LAST)
        # Where this process had to wait for a core, the time is over before what arrived meanwhile
        # was read, and closing a connection with something unread resets it.
        await asyncio.sleep(0)

    def _protocol(self) -> asyncio.Protocol:
        """How uvicorn itself answers a connection."""
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def run_server(service: Service, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests until a signal comes; raises what ended the workers."""
    failures: list[BaseException] = []

    def is_ready() -> None:
        service.gate.ready = True
        ready()

    @contextlib.asynccontextmanager
    async def working(_: FastAPI) -> Any:  # noqa: ANN401 - an async iterator
        async def work() -> None:
            try:
                await service.batcher.run(is_ready)
            except Exception as error:
                failures.append(error)
                server.should_exit = server.force_exit = True

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()

    app = service.app()
    app.router.lifespan_context = working
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            limit_concurrency=service.config.max_requests,
            timeout_graceful_shutdown=1,
        ),
        service,
    )
    try:
        server.run(sockets=[listening])
    finally:
        service.close()
    if failures:
        raise failures[0]
