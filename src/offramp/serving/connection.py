"""The connections of uvicorn, with limits for clients that send nothing, or a head without end."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

# A worker imports this before it has said where its metrics are, which prometheus_client reads
# when it is imported.
if TYPE_CHECKING:
    from offramp.serving.metrics import RequestMetrics

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

LONGEST_HEAD = 64 * 2**10  # bytes
SPARE_FILES = 100  # besides those of connections


class Connection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """A connection that must send the head of a request in time.

    uvicorn closes a connection that was answered and stays idle, and none that never sent a
    request. When files run out, the connection that has waited longest is closed for a new one.
    """

    header_timeout = 10.0  # seconds
    most = 10_000  # connections
    metrics: "ClassVar[RequestMetrics | None]" = None  # counts heads that are no requests

    def __init__(self, *parts: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*parts, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of a head that is not complete

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the head of a request."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > self.most:
            waiting = (each for each in self.connections if each.is_waiting and each is not self)
            oldest = min(waiting, key=lambda each: each.opened, default=self)
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        """Take what came, if it is a request or may become one."""
        was_waiting = self.is_waiting
        super().data_received(data)
        if not self.is_waiting:
            self._stop_timer()
            return
        self._head += len(data)
        is_rest = self.cycle is not None and self.cycle.more_body  # of a request that was refused
        if was_waiting and self._head > LONGEST_HEAD and not is_rest:
            self.transport.close()
        elif self._timer is None:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and count it."""
        if self.metrics is not None:
            self.metrics.count("none", 400, 0.0)
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self.opened = self.loop.time()
        self._timer = self.loop.call_later(self.header_timeout, self._late)

    def _stop_timer(self) -> None:
        self._head = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self.is_waiting:
            self.transport.close()


def connections(
    header_timeout: float, metrics: "RequestMetrics | None" = None
) -> type[Connection]:
    """Connections for `uvicorn.Config(http=...)`, as many as the files of this process allow."""
    if resource is not None:
        with suppress(ValueError, OSError):  # as many as an administrator allows
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        Connection.most = max(1, files - SPARE_FILES)
    Connection.header_timeout = header_timeout
    Connection.metrics = metrics
    return Connection
