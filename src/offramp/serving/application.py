"""The service as an ASGI application: routes, keys, limits of bodies, and changes while it runs.

Requests are read and checked before they join a batch, so that a bad one is refused alone. Only
servers import this module: starlette is optional.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from offramp.errors import OfframpError
from offramp.runtime.engine import StagedRunner
from offramp.serving.batches import Batcher
from offramp.serving.config import ADMIN_TOKEN, API_KEY, AppConfig
from offramp.serving.images import Reading
from offramp.serving.metrics import Metrics
from offramp.serving.model import Model
from offramp.serving.requests import MAX_ID, Query, ReadItem, decoded
from offramp.serving.responses import (
    Record,
    Reply,
    cascade_responder,
    model_responder,
    runner_responder,
)
from offramp.serving.served import Served

if TYPE_CHECKING:
    from offramp.policy import Policy
    from offramp.runtime.cascade import Cascade

SHOW_EVERY = 1.0  # seconds between two updates of the gauges
log = logging.getLogger("offramp.serving")


class Budget(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to change the budget."""

    budget: float


class Service:
    """Answers the requests of one process.

    Args:
        served: What it answers with.
        config: Limits, and how requests are batched.
        alone: Whether nothing stands before it: a router to several replicas has request ids,
            metrics and administration of its own.
    """

    def __init__(self, served: Served, config: AppConfig, alone: bool = True) -> None:
        self.config, self._served, self._alone = config, served, alone
        self._batcher = Batcher(self._answer, config)
        self.metrics = Metrics(served.responder.loaded["exits"])
        self._shown = 0.0  # when the gauges were set
        self._api_key = os.environ.get(API_KEY) or None
        self._admin_token = os.environ.get(ADMIN_TOKEN) or None

    def app(self) -> Starlette:
        """The application, with all routes."""
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        if self._alone:
            routes += [
                Route("/info", self._info, methods=["GET"]),
                Route("/metrics", self._metrics_page, methods=["GET"]),
                Route("/admin/budget", self._change_budget, methods=["PUT"]),
                Route("/admin/reload", self._reload, methods=["POST"]),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _as_json})

    async def _predict(self, request: Request) -> Response:
        began = time.perf_counter()
        query: Query | None = None
        record: Record | None = None
        try:
            query = await self._query(request)
            record = await self._batcher(query.sample)
            response = JSONResponse({"id": query.id, **record})
        except HTTPException as error:
            response = _refusal(error, query)
        if self._batcher.is_stuck and self._served.is_shared:
            log.critical("a batch is not answered in time: this process ends")
            os._exit(1)  # the supervisor starts another one
        seconds = time.perf_counter() - began
        self.metrics.add(response.status_code, seconds, record)
        if self.config.access_log:
            sys.stderr.write(_line(request, response.status_code, seconds, record))
        if self._alone and "x-request-id" in request.headers:
            response.headers["X-Request-ID"] = request.headers["x-request-id"]
        return response

    async def _query(self, request: Request) -> Query:
        """Read a request and check it; mistakes are a 4xx."""
        sent = request.headers.get("x-api-key", "")
        if self._api_key is not None and not _same_text(sent, self._api_key):
            # Read first: what is left unread when a connection closes destroys the answer.
            with contextlib.suppress(HTTPException):
                await self._body(request)
            raise HTTPException(401, "send the key of this server as X-API-Key")
        body = await self._body(request)
        kind = request.headers.get("content-type", "")
        request_id = request.headers.get("x-request-id")
        # In a thread: decoding takes milliseconds, in which other requests should not wait.
        return await run_in_threadpool(self._served.responder.parser, kind, body, request_id)

    async def _body(self, request: Request) -> bytes:
        """The body, if it arrives in time and is not too large; otherwise a 4xx."""
        limit, timeout = self.config.max_bytes, self.config.body_timeout
        too_large = HTTPException(413, f"a body may have {limit:,} bytes; send a smaller one")
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:  # whatever the header says
                        raise too_large
        except ClientDisconnect:
            # The status is not sent to anybody. Metrics and the log have it, as nginx's have.
            raise HTTPException(499, "the client has gone") from None
        except TimeoutError:
            reason = f"the body did not arrive within {timeout:g} seconds"
            raise HTTPException(408, reason, headers={"Connection": "close"}) from None
        return bytes(body)

    async def _answer(self, samples: Sequence[Any]) -> list[Reply]:
        """Answer a batch with what the service serves now."""
        responder = await self._served.current()
        found = await run_in_threadpool(responder.answer, samples)
        if time.monotonic() > self._shown + SHOW_EVERY:
            self.show()
        return found

    def show(self) -> None:
        """Set the gauges."""
        self._shown = time.monotonic()
        self.metrics.show(self._served.responder)

    async def _health(self, _: Request) -> Response:
        if self._batcher.is_stuck:
            return PlainTextResponse("a batch is not answered in time", 503)
        return PlainTextResponse("ok")

    async def _info(self, _: Request) -> Response:
        return JSONResponse({"model": (await self._served.current()).about})

    async def _metrics_page(self, _: Request) -> Response:
        await self._served.current()
        self.show()
        return self.metrics.page()

    async def _change_budget(self, request: Request) -> Response:
        """Move to the operating point of another budget, `{"budget": 0.4}`."""
        self._check_admin(request)
        budget = decoded(await self._body(request), Budget, 'give {"budget": SHARE}').budget
        try:
            await self._served.set_budget(budget)
        except OfframpError as error:
            raise HTTPException(422, str(error)) from None
        log.warning("the budget was set to %s", budget)
        return JSONResponse(self._served.responder.about)

    async def _reload(self, request: Request) -> Response:
        """Read the folders again that the service was started with."""
        self._check_admin(request)
        try:
            await self._served.reload()
        except OfframpError as error:
            raise HTTPException(409, f"nothing was changed: {error}") from None
        about = self._served.responder.about
        log.warning("the policy was read again: %s", about["policy"][:16])
        return JSONResponse(about)

    def _check_admin(self, request: Request) -> None:
        """Only with the token, and only from this machine unless the settings say otherwise."""
        if self._admin_token is None:
            raise HTTPException(
                403, f"nothing can be changed: start the server with a token in {ADMIN_TOKEN}"
            )
        client = request.client.host if request.client else ""
        if not (self.config.remote_admin or _is_loopback(client)):
            raise HTTPException(403, "this can only be changed from the server's own machine")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not _same_text(token, self._admin_token):
            raise HTTPException(
                401, "send the token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )


def app(
    model: "Model | StagedRunner | Cascade",
    config: AppConfig | None = None,
    *,
    reading: Reading | None = None,
    policy: "Policy | None" = None,
    read_item: ReadItem | None = None,
) -> Starlette:
    """An ASGI application that answers with a model; any ASGI server can run it.

    `POST /predict` takes JSON, PNG and JPEG; `GET /health` says whether requests are answered, and
    `GET /metrics` is for Prometheus. See docs/serving.md. The model is loaded here, so that
    mistakes show before a server starts. `offramp.serving.serve` runs it with uvicorn.

    Args:
        model: Folders; or a `Runner`, an `OnnxRunner` or a `Cascade`.
        config: Limits, and how requests are batched.
        reading: How samples are read and classes are named, for a runner; without it, a runner
            takes numbers. A `Model` has its own.
        policy: At an operating point, for a cascade.
        read_item: Makes an item of what stands under `item` in a request's JSON, for a cascade; by
            default the item is that itself. For models of arrays, `numpy.asarray` makes one.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The model cannot be loaded.
        MissingExtraError: The extra `serve` is not installed.
    """
    config = config or AppConfig()
    if isinstance(model, Model):
        served = Served(model_responder(model, config), model, config)
    elif isinstance(model, StagedRunner):
        served = Served(runner_responder(model, reading or Reading(), config.max_pixels))
    else:
        served = Served(cascade_responder(model, policy, read_item))
    return Service(served, config).app()


def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the application registers it for these"
    return _refusal(error)


def _refusal(error: HTTPException, query: Query | None = None) -> JSONResponse:
    """The reason as JSON, with the id of a request that was read."""
    found = {"detail": error.detail}
    content = found if query is None else {**found, "id": query.id}
    return JSONResponse(content, error.status_code, error.headers)


def _same_text(one: str, other: str) -> bool:
    """Whether texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _line(request: Request, status: int, seconds: float, record: Mapping[str, Any] | None) -> str:
    """A request as one line of JSON, for the access log."""
    request_id = request.headers.get("x-request-id")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": request.client.host if request.client else None,
        "method": request.method,
        "path": request.url.path,
        "status": status,
        "ms": round(1000 * seconds, 1),
        "exit": None if record is None else record["exit"],
        "id": None if request_id is None else request_id[:MAX_ID],
    }
    return json.dumps(line) + "\n"
