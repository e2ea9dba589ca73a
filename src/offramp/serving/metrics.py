"""Metrics for Prometheus, counted where HTTP is spoken."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Response

from offramp.extras import require

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Requests by status, their latency, exits taken, and compute spent and saved.

    Subclasses say how a counter and a histogram are made; both return a function that adds.
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
        """Count a request; an exit and a cost (share of the full network) if it was answered."""
        self._requests(1, status)
        self._seconds(seconds)
        if exit_index is not None:
            self._exits(1, exit_index)
            self._spent(cost)
            # Early exits' heads can make a sample dearer than the network without exits.
            self._saved(max(0.0, 1 - cost))


class PrometheusMetrics(Metrics):
    """Kept in this process, and shown as a page.

    Args:
        exits: M.

    Example:
        >>> metrics = PrometheusMetrics(exits=2)
        >>> metrics.add(status=200, seconds=0.01, exit_index=0, cost=0.25)
        >>> b'offramp_cost_saved_total 0.75' in metrics.text()
        True
    """

    def __init__(self, exits: int) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = client.CollectorRegistry()
        super().__init__()
        for exit_index in range(exits):  # so that all are there from the start
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
        echo: Whether a request's id is sent back as it came.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        metrics: Metrics,
        path: str,
        echo: bool = True,
    ) -> None:
        self.app, self.metrics, self.path, self.echo = app, metrics, path, echo

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on, and look at the head of the answer."""
        if scope["type"] != "http" or self._path(scope) != self.path:
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        asked = dict(scope["headers"]).get(b"x-request-id")

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                if asked is not None and self.echo:
                    message["headers"] = [*message["headers"], (b"x-request-id", asked)]
                self._count(message, time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, watched)

    @staticmethod
    def _path(scope: Message) -> str:
        """Below the place where the app is mounted."""
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", ""))

    def _count(self, message: Message, seconds: float) -> None:
        headers = dict(message["headers"])
        found = headers.get(b"x-offramp-exit")
        exit_index = None if found is None else int(found)
        cost = float(headers.get(b"x-offramp-cost", b"0"))
        self.metrics.add(message["status"], seconds, exit_index, cost)
