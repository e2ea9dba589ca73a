"""Metrics for Prometheus, counted where HTTP is spoken."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Response

from offramp.extras import require

__all__ = ["Metrics", "Watch"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Requests by status, their latency, exits taken, and compute spent and saved.

    Args:
        exits: M.

    Example:
        >>> metrics = Metrics(exits=2)
        >>> metrics.add(status=200, seconds=0.01, exit_index=0, cost=0.25)
        >>> b'offramp_cost_saved_total 0.75' in metrics.text()
        True
    """

    def __init__(self, exits: int) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = client.CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Any:  # noqa: ANN401
            return client.Counter(name, text, labels, registry=self._registry)

        self._requests = counter("offramp_requests", "Requests, by HTTP status", "status")
        self._exits = counter("offramp_exits", "Answers, by the exit taken", "exit")
        self._spent = counter("offramp_cost", "Compute spent, in runs of the full network")
        self._saved = counter("offramp_cost_saved", "Compute saved, in runs of the full network")
        self._seconds = client.Histogram(
            "offramp_request_seconds",
            "Time from the first byte of a request to its answer",
            buckets=SECONDS,
            registry=self._registry,
        )
        for exit_index in range(exits):  # so that all are there from the start
            self._exits.labels(exit_index)

    def add(
        self, status: int, seconds: float, exit_index: int | None = None, cost: float = 0.0
    ) -> None:
        """Count a request; an exit and a cost (share of the full network) if it was answered."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)
        if exit_index is not None:
            self._exits.labels(exit_index).inc()
            self._spent.inc(cost)
            # Early exits' heads can make a sample dearer than the network without exits.
            self._saved.inc(max(0.0, 1 - cost))

    def text(self) -> bytes:
        """Everything, in Prometheus' format."""
        found: bytes = self._client.generate_latest(self._registry)
        return found

    def page(self) -> Response:
        """The same as an answer to `GET /metrics`."""
        return Response(self.text(), media_type=self._client.CONTENT_TYPE_LATEST)


class Watch:
    """ASGI middleware that counts the requests to one path.

    Args:
        app: What answers them.
        metrics: Where they are counted.
        path: Of the requests that count.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics, path: str) -> None:
        self.app, self.metrics, self.path = app, metrics, path

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on, and look at the head of the answer."""
        if scope["type"] != "http" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        asked = dict(scope["headers"]).get(b"x-request-id")

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                if asked is not None:
                    message["headers"] = [*message["headers"], (b"x-request-id", asked)]
                self._count(message, time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, watched)

    def _count(self, message: Message, seconds: float) -> None:
        headers = dict(message["headers"])
        found = headers.get(b"x-offramp-exit")
        exit_index = None if found is None else int(found)
        cost = float(headers.get(b"x-offramp-cost", b"0"))
        self.metrics.add(message["status"], seconds, exit_index, cost)
