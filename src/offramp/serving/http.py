"""HTTP around requests and answers, the same for every server: bodies, routes and metrics.

Bodies are read and checked in the process that speaks HTTP, so a bad request is refused there and
never shares a batch with good ones. Only servers import this module: fastapi is optional.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.requests import ClientDisconnect

from offramp.extras import require
from offramp.runtime.stats import RunStats
from offramp.serving.requests import (
    MAX_ID,
    Parser,
    Query,
    RequestError,
    UnansweredError,
    is_answered,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
GAUGES = {
    "drift": "1 if the exits differ from those of val; stays on",
    "drift_log_evidence": "Natural logarithm of the evidence for drift",
    "mean_cost": "Mean cost per answer since the budget was set, in runs of the full network",
    "expected_cost": "The same on val",
    "budget": "Mean cost on val of the operating point that was chosen",
    "held_point_cost": "With a held budget: mean cost on val of the present operating point",
    "held_recent_cost": "With a held budget: mean cost of the last window of answers",
    "held_expected_loss": "With a held budget: accuracy on val, chosen point minus present one",
    "held_at_limit": "With a held budget: 1 if no operating point is cheap or dear enough",
    "worker_restarts": "Workers that died or hung and were started again",
}
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Gate:
    """Who is let in: nobody before the workers are ready, and nobody once the server drains."""

    def __init__(self, api_key: str | None = None) -> None:
        self.ready = self.draining = False
        self.inside = 0  # requests that are being answered
        self._api_key = api_key

    @property
    def closed(self) -> str | None:
        """Why nobody is let in, or None."""
        if self.draining:
            return "the server is shutting down"
        return None if self.ready else "the workers are not ready yet"

    async def check(self, request: Request, parser: Parser) -> None:
        """Raise `HTTPException` if a request is not let in."""
        reason, status = self.closed, 503
        sent = request.headers.get("x-api-key", "")
        if reason is None and self._api_key and not same_text(sent, self._api_key):
            reason, status = "send the key of this server as X-API-Key", 401
        if reason is None:
            return
        # Read first: what is left unread when a connection closes destroys the answer.
        with contextlib.suppress(HTTPException):
            await read_body(request, parser)
        headers = {"Connection": "close", **({"Retry-After": "1"} if status == 503 else {})}
        raise HTTPException(status, reason, headers=headers)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request as being answered."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


def same_text(one: str, other: str) -> bool:
    """Whether texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


async def read_query(request: Request, parser: Parser) -> Query:
    """Read a request and check it; mistakes are a 4xx."""
    body = await read_body(request, parser)
    kind = request.headers.get("content-type", "")
    request_id = request.headers.get("x-request-id")
    try:
        # In a thread: decoding takes milliseconds, in which other requests should not wait.
        return await run_in_threadpool(parser.parse, kind, body, request_id)
    except RequestError as error:
        raise HTTPException(error.status, error.reason) from None


async def read_body(request: Request, parser: Parser) -> bytes:
    """The body, if it arrives in time and is not too large; otherwise a 4xx."""
    timeout = parser.settings.body_timeout
    try:
        async with asyncio.timeout(timeout):
            return await _read_body(request, parser.settings.max_bytes)
    except ClientDisconnect:
        # Nobody reads this; the number, which is nginx's, is for metrics and the log.
        raise HTTPException(499, "the client has gone") from None
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
    """An answer of a worker as JSON; what the metrics count is in the headers, too."""
    if not is_answered(answer):
        failed = answer.get("detail")  # of models that may be there again in a moment
        reason = failed or "the network has no finite answer to this input"
        headers = {"Retry-After": "1"} if failed else None
        body = {"detail": reason, "id": answer["id"]}
        return JSONResponse(body, 503 if failed else 422, headers)
    headers = {
        "X-Offramp-Exit": str(answer["exit"]),
        "X-Offramp-Cost": str(answer["cost"]),
        "X-Offramp-Likely-Wrong": str(int(answer["likely_wrong"])),
    }
    return JSONResponse(answer, headers=headers)


def make_api(
    answer: Callable[[Query], Awaitable[dict[str, Any]]],
    parser: Parser,
    metrics: "RequestMetrics",
    gate: Gate,
    access_log: logging.Logger | None = None,
    echo: bool = True,
) -> FastAPI:
    """An application with `/predict` and `/health`; `answer` answers a request.

    With `echo`, the id of a request is returned as a header, which some servers do themselves.
    """

    async def predict(request: Request) -> Response:
        await gate.check(request, parser)
        with gate.entered():
            query = await read_query(request, parser)
            try:
                response = to_response(await answer(query))
            except UnansweredError as error:
                headers = {"Retry-After": "1"} if error.status == 503 else {}
                raise HTTPException(error.status, error.reason, headers=headers) from None
        if gate.draining:  # or the next request would come to a connection that is closed by then
            response.headers["Connection"] = "close"
        return response

    async def health() -> Response:
        closed = gate.closed
        return PlainTextResponse("ok") if closed is None else PlainTextResponse(closed, 503)

    api = FastAPI(openapi_url=None)  # its page would load scripts from elsewhere
    api.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    api.add_api_route("/health", health, methods=["GET"], response_model=None)
    api.add_middleware(
        MetricsMiddleware, metrics=metrics, path="/predict", log=access_log, echo=echo
    )
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
        self._doubted = self.counter(
            "offramp_likely_wrong", "Answers that are more probably wrong than right"
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

    def add(self, status: int, seconds: float, headers: dict[bytes, bytes]) -> None:
        """Count a request, and what the headers of its answer say."""
        self._requests(1, status)
        self._seconds(seconds)
        if b"x-offramp-exit" in headers:
            self._exits(1, int(headers[b"x-offramp-exit"]))
            cost = float(headers[b"x-offramp-cost"])
            self._spent(cost)
            # The heads of early exits can make a sample dearer than the network without exits.
            self._saved(max(0.0, 1 - cost))
            self._doubted(int(headers[b"x-offramp-likely-wrong"]))


class PrometheusMetrics(RequestMetrics):
    """Kept in this process, and shown as a page."""

    def __init__(self, exits: int) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = client.CollectorRegistry()
        super().__init__()
        for exit_index in range(exits):  # every exit is listed from the start
            self._exits(0, exit_index)
        self._gauges = {
            name: client.Gauge(f"offramp_{name}", text, registry=self._registry)
            for name, text in GAUGES.items()
        }
        self._policy = client.Gauge(
            "offramp_policy_info",
            "What is served: fingerprints of the policy and its network",
            ("policy", "network", "version"),
            registry=self._registry,
        )

    def _show(self, stats: RunStats, about: dict[str, Any], restarts: int) -> None:
        held = stats.held
        values = {
            "drift": stats.drift,
            "drift_log_evidence": stats.log_evidence,
            "mean_cost": stats.mean_cost,
            "expected_cost": stats.expected_cost,
            "budget": about["budget"],
            "held_point_cost": math.nan if held is None else held.point_cost,
            "held_recent_cost": math.nan if held is None else held.recent_cost,
            "held_expected_loss": math.nan if held is None else held.expected_loss,
            "held_at_limit": math.nan if held is None else held.at_limit,
            "worker_restarts": restarts,
        }
        for name, value in values.items():
            self._gauges[name].set(float(value))
        self._policy.clear()
        labels = (about["policy"][:16], about["network"][:16], about["version"])
        self._policy.labels(*labels).set(1)

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

    def page(self, stats: RunStats, about: dict[str, Any], restarts: int) -> Response:
        """The response to `GET /metrics`, in Prometheus' format."""
        self._show(stats, about, restarts)
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
    """ASGI middleware that counts requests to one path, returns ids if `echo`, writes a log."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        metrics: RequestMetrics,
        path: str,
        log: logging.Logger | None = None,
        echo: bool = True,
    ) -> None:
        self.app, self.metrics, self.path, self.log, self.echo = app, metrics, path, log, echo

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on, and read the headers of the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        # A path is relative to where the app is mounted.
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        request_id = dict(scope["headers"]).get(b"x-request-id")

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds, headers = time.perf_counter() - began, dict(message["headers"])
                if path == self.path:
                    self.metrics.add(message["status"], seconds, headers)
                if request_id is not None and self.echo:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                if self.log is not None:
                    self.log.info(_line(scope, path, message["status"], seconds, headers))
            await send(message)

        await self.app(scope, receive, counted)


def _line(
    scope: Message, path: str, status: int, seconds: float, headers: dict[bytes, bytes]
) -> str:
    """A request as one line of JSON."""
    found = headers.get(b"x-offramp-exit")
    request_id = dict(scope["headers"]).get(b"x-request-id")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": (scope.get("client") or (None,))[0],
        "method": scope["method"],
        "path": path,
        "status": status,
        "ms": round(1000 * seconds, 1),
        "exit": None if found is None else int(found),
        "id": None if request_id is None else request_id.decode("latin-1")[:MAX_ID],
    }
    return json.dumps(line)
