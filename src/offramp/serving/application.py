"""The service as an ASGI application: its routes, and changes while it runs.

Requests are read and checked before they join a batch, so that a bad one is refused alone. Only
servers import this module: starlette is optional. `middleware` has limits, keys and logs.
"""

import ipaddress
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from offramp import __version__
from offramp.errors import OfframpError
from offramp.runtime.engine import StagedRunner
from offramp.serving.batches import Batcher, Room
from offramp.serving.config import ADMIN_TOKEN, API_KEY, AppConfig
from offramp.serving.images import Reading
from offramp.serving.metrics import Metrics
from offramp.serving.middleware import (
    HEALTH,
    Throttle,
    bearer_token,
    busy,
    guards,
    refusal,
    same_text,
)
from offramp.serving.model import Model
from offramp.serving.requests import JSON, Parser, Picture, Query, ReadItem, decoded
from offramp.serving.responses import (
    Reply,
    Responder,
    cascade_responder,
    runner_responder,
)
from offramp.serving.served import Served, load

if TYPE_CHECKING:
    from offramp.policy import Policy
    from offramp.runtime.cascade import Cascade

OPEN = ("/docs", "/openapi.json", "/admin/budget", "/admin/reload")  # these need no key
PAGES = Path(__file__).parent / "pages"
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
        self.metrics = Metrics(served.responder.loaded["exits"])
        self._batcher = Batcher(self._answer, config, self.metrics)
        self._pixels = Room(config.max_pixels)
        self._guesses = Throttle()
        self._shown = 0.0  # when the gauges were set
        self._api_key = os.environ.get(API_KEY) or None
        self._admin_token = os.environ.get(ADMIN_TOKEN) or None

    def app(self) -> Starlette:
        """The application, with all routes and what stands before them."""
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            *(Route(path, self._health, methods=["GET"]) for path in HEALTH),
        ]
        if self._alone:
            page = (PAGES / "docs.html").read_text(encoding="utf-8")
            routes += [
                Route("/info", self._info, methods=["GET"]),
                Route("/metrics", self._metrics_page, methods=["GET"]),
                Route("/admin/budget", self._change_budget, methods=["PUT"]),
                Route("/admin/reload", self._reload, methods=["POST"]),
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/docs", lambda _: HTMLResponse(page), methods=["GET"]),
            ]
        keys = [self._api_key] if self._api_key else []
        before = guards(
            self.config,
            self.metrics,
            keys=keys,
            open_paths=(*HEALTH, *OPEN),
            shows_ids=self._alone,
        )
        made = Starlette(
            routes=routes, middleware=before, exception_handlers={HTTPException: _as_json}
        )
        made.state.metrics = self.metrics
        return made

    async def _predict(self, request: Request) -> Response:
        responder = await self._served.current()  # what reads the request also answers it
        query = await self._query(request, responder)
        try:
            record = await self._batcher((responder, query.sample))
        except HTTPException as error:
            return JSONResponse(
                {"detail": error.detail, "id": query.id}, error.status_code, error.headers
            )
        finally:
            if self._batcher.is_stuck and self._served.is_shared:
                log.critical("a batch is not answered in time: this process ends")
                os._exit(1)  # the supervisor starts another one
        self.metrics.add(record)
        request.state.log["exit"] = record["exit"]
        return JSONResponse({"id": query.id, **record})

    async def _query(self, request: Request, responder: Responder) -> Query:
        """Read a request and check it; mistakes are a 4xx."""
        kind, name = (request.headers.get(key) for key in ("content-type", "x-request-id"))
        body = await request.body()
        # In a thread: decoding takes milliseconds, in which other requests should not wait.
        query = await run_in_threadpool(responder.parser, kind or "", body, name)
        if not isinstance(query.sample, Picture):
            return query
        # Pictures become much larger when they are decoded, so only some are at the same time.
        picture = query.sample
        return query._replace(sample=await self._pixels.run(picture.pixels, picture.decoded))

    async def _answer(self, items: Sequence[tuple[Responder, Any]]) -> list[Reply]:
        """Answer a batch of samples, each with what has read it."""
        found: dict[int, Reply] = {}
        for responder in {id(each): each for each, _ in items}.values():  # two after a reload
            rows = [row for row, item in enumerate(items) if item[0] is responder]
            samples = [items[row][1] for row in rows]
            replies = await run_in_threadpool(responder.answer, samples)
            found |= zip(rows, replies, strict=True)
        if time.monotonic() > self._shown + SHOW_EVERY:
            self.show()
        return [found[row] for row in range(len(items))]

    def show(self) -> None:
        """Set the gauges."""
        self._shown = time.monotonic()
        self.metrics.show(self._served.responder)

    async def _health(self, _: Request) -> Response:
        await self._served.current()
        if self._batcher.is_stuck:
            return PlainTextResponse("a batch is not answered in time", 503)
        return PlainTextResponse("ok")

    async def _info(self, _: Request) -> Response:
        return JSONResponse({"model": (await self._served.current()).about})

    async def _metrics_page(self, _: Request) -> Response:
        await self._served.current()
        self.show()
        return self.metrics.page()

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(described(self._served.responder.parser))

    async def _change_budget(self, request: Request) -> Response:
        """Move to the operating point of another budget, `{"budget": 0.4}`."""
        self._check_admin(request)
        budget = decoded(await request.body(), Budget, 'give {"budget": SHARE}').budget
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
        log.warning("everything was read again: %s", about.get("content", "")[:16])
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
        if (seconds := self._guesses.wait(client)) > 0:
            raise busy("too many wrong tokens; try again later", 429, seconds)
        if not same_text(bearer_token(request.headers), self._admin_token):
            self._guesses.failed(client)
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
    `GET /metrics` is for Prometheus. See docs/reference/http-and-onnx.md. The model is loaded
    here, so that mistakes show before a server starts. `offramp.serving.serve` runs it.

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
        served = Served(load(model, config), model, config)
    elif isinstance(model, StagedRunner):
        served = Served(runner_responder(model, reading or Reading(), config.max_pixels))
    else:
        served = Served(cascade_responder(model, policy, read_item))
    return Service(served, config).app()


def described(parser: Parser) -> dict[str, Any]:
    """The routes of a service that takes these requests, as an OpenAPI document."""
    document: dict[str, Any] = json.loads((PAGES / "openapi.json").read_text(encoding="utf-8"))
    (body,), components = msgspec.json.schema_components(
        [parser.body], ref_template="#/components/schemas/{name}"
    )
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in parser.types}
    content[JSON] = {"schema": body}
    document["info"]["version"] = __version__
    document["paths"]["/predict"]["post"]["requestBody"]["content"] = content
    document["components"]["schemas"] = components
    return document


def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the application registers it for these"
    return refusal(error)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
