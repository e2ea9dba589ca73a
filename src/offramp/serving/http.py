"""HTTP around requests and answers, the same for every server: bodies, routes and metrics.

Bodies are read and checked in the process that speaks HTTP, so a bad request is refused there and
never shares a batch with good ones. Only servers import this module: fastapi is optional.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse

from offramp.extras import require
from offramp.serving.requests import Query, RequestError, RequestParser

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


async def read_query(request: Request) -> Query:
    """Read a request and check it with the `parser` in the app's state; mistakes are a 4xx."""
    parser: RequestParser = request.app.state.parser
    timeout = parser.settings.body_timeout
    try:
        async with asyncio.timeout(timeout):
            body = await _read_body(request, parser.settings.max_bytes)
        kind = request.headers.get("content-type", "")
        request_id = request.headers.get("x-request-id")
        # In a thread: decoding takes milliseconds, in which other requests should not wait.
        return await run_in_threadpool(parser.parse, kind, body, request_id)
    except TimeoutError:
        reason = f"the body did not arrive within {timeout:g} seconds"
        raise HTTPException(408, reason, headers={"Connection": "close"}) from None
    except RequestError as error:
        raise HTTPException(error.status, error.reason) from None


async def _read_body(request: Request, limit: int) -> bytes:
    """At most `limit` bytes, counted as they arrive, whatever the header says."""
    too_large = RequestError(413, f"a body may have {limit:,} bytes; send a smaller one")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def to_response(answer: dict[str, Any]) -> Response:
    """An answer of a `Worker` as JSON; exit and cost are also headers, for the metrics."""
    if answer["class"] is None:
        reason = "the network has no finite answer to this input"
        return JSONResponse({"detail": reason, "id": answer["id"]}, 422)
    headers = {"X-Offramp-Exit": str(answer["exit"]), "X-Offramp-Cost": str(answer["cost"])}
    return JSONResponse(answer, headers=headers)


def make_api(
    answer: Callable[[Query], Awaitable[dict[str, Any]]],
    parser: RequestParser,
    metrics: "RequestMetrics",
) -> FastAPI:
    """An application with `/predict` and `/health`, for Ray Serve; `answer` answers a request."""

    async def predict(query: Annotated[Query, Depends(read_query)]) -> Response:
        return to_response(await answer(query))

    async def health() -> Response:
        return PlainTextResponse("ok")  # a replica is asked only once it has loaded its model

    api = FastAPI(openapi_url=None)  # its page would load scripts from elsewhere
    api.state.parser = parser
    api.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    api.add_api_route("/health", health, methods=["GET"], response_model=None)
    # Ray itself returns a request's id.
    api.add_middleware(MetricsMiddleware, metrics=metrics, path="/predict", echo=False)
    return api


class RequestMetrics:
    """Requests by status, their latency, exits taken, and compute spent and saved.

    Subclasses make the counters and the histogram; both return a function that adds.
    """

    def __init__(self) -> None:
        self._requests = self.counter("offramp_requests", "Requests, by HTTP status", "status")
        self._exits = self.counter("offramp_exits", "Answers, by the exit taken", "exit")
        self._spent = self.counter("offramp_cost", "Compute spent, in runs of the full network")
        self._saved = self.counter(
            "offramp_cost_saved", "Compute saved, in runs of the full network"
        )
        self._seconds = self.histogram(
            "offramp_request_seconds", "Time from the first byte of a request to its answer"
        )

    def counter(self, name: str, text: str, label: str | None = None) -> Callable[..., None]:
        """A function `add(value, label's value)` for a counter of that name."""
        raise NotImplementedError

    def histogram(self, name: str, text: str) -> Callable[[float], None]:
        """A function that adds a number of seconds."""
        raise NotImplementedError

    def add(
        self, status: int, seconds: float, exit_index: int | None = None, cost: float = 0.0
    ) -> None:
        """Count a request, with its exit and cost (share of the full network) if answered."""
        self._requests(1, status)
        self._seconds(seconds)
        if exit_index is not None:
            self._exits(1, exit_index)
            self._spent(cost)
            # The heads of early exits can make a sample dearer than the network without exits.
            self._saved(max(0.0, 1 - cost))


class PrometheusMetrics(RequestMetrics):
    """Kept in this process, and shown as a page."""

    def __init__(self, exits: int) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = client.CollectorRegistry()
        super().__init__()
        for exit_index in range(exits):  # every exit is listed from the start
            self._exits(0, exit_index)

    def counter(self, name: str, text: str, label: str | None = None) -> Callable[..., None]:
        """A counter in the registry."""
        labels = () if label is None else (label,)
        made = self._client.Counter(name, text, labels, registry=self._registry)

        def add(value: float, *values: object) -> None:
            (made.labels(*values) if values else made).inc(value)

        return add

    def histogram(self, name: str, text: str) -> Callable[[float], None]:
        """A histogram in the registry."""
        made = self._client.Histogram(name, text, buckets=SECONDS, registry=self._registry)
        observe: Callable[[float], None] = made.observe
        return observe

    def page(self) -> Response:
        """The response to `GET /metrics`, in Prometheus' format."""
        text = self._client.generate_latest(self._registry)
        return Response(text, media_type=self._client.CONTENT_TYPE_LATEST)


class RayMetrics(RequestMetrics):
    """Kept by Ray, which adds up replicas and exports all names with the prefix `ray_`."""

    def __init__(self) -> None:
        self._ray = require("ray.serve.metrics", extra="ray")
        super().__init__()

    def counter(self, name: str, text: str, label: str | None = None) -> Callable[..., None]:
        """A counter of Ray."""
        made = self._ray.Counter(name, text, () if label is None else (label,))

        def add(value: float, *values: object) -> None:
            if value > 0:  # Ray refuses to add zero
                made.inc(value, {str(label): str(found) for found in values})

        return add

    def histogram(self, name: str, text: str) -> Callable[[float], None]:
        """A histogram of Ray."""
        made = self._ray.Histogram(name, text, list(SECONDS))

        def observe(value: float) -> None:
            made.observe(value, {})

        return observe


class MetricsMiddleware:
    """ASGI middleware that counts the requests to one path, and returns their ids if `echo`."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        metrics: RequestMetrics,
        path: str,
        echo: bool = True,
    ) -> None:
        self.app, self.metrics, self.path, self.echo = app, metrics, path, echo

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on, and read the headers of the answer."""
        # A path is relative to where the app is mounted.
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path != self.path:
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = dict(scope["headers"]).get(b"x-request-id")

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if request_id is not None and self.echo:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                self._count(message, time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, counted)

    def _count(self, message: Message, seconds: float) -> None:
        headers = dict(message["headers"])
        found = headers.get(b"x-offramp-exit")
        exit_index = None if found is None else int(found)
        cost = float(headers.get(b"x-offramp-cost", b"0"))
        self.metrics.add(message["status"], seconds, exit_index, cost)
