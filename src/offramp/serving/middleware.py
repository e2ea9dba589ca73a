"""What stands before any application of a service: ids, counts and logs; limits; and keys.

All of it is ASGI, and knows nothing of what is answered: `guards` lists it for an application.
"""

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offramp.serving.config import AppConfig
from offramp.serving.logs import REQUEST_ID, access
from offramp.serving.metrics import RequestMetrics

MAX_ID = 200  # characters of a request id
HEALTH = ("/health", "/health/live", "/health/ready")
"""Paths that are always answered, without a key."""
BODIES = 32  # bodies of the largest size that are held at the same time
GONE = 499  # the client has gone, as nginx counts it; nobody gets this status
FAULT = "this request could not be answered; the server's log says why"
log = logging.getLogger("offramp.serving")


def refusal(error: HTTPException) -> Response:
    """The reason as JSON, `{"detail": ...}`."""
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def busy(reason: str, status: int = 503, seconds: float = 1) -> HTTPException:
    """A refusal that asks to come back."""
    return HTTPException(status, reason, {"Retry-After": str(max(1, round(seconds)))})


def guards(
    config: AppConfig,
    metrics: RequestMetrics,
    *,
    keys: Collection[str] = (),
    open_paths: Collection[str] = HEALTH,
    shows_ids: bool = True,
) -> list[Middleware]:
    """What stands before an application: `Starlette(middleware=guards(...))`.

    In this order: ids, metrics and logs; CORS; limits; keys.

    Args:
        config: The limits, `cors_origins` and `access_log`.
        metrics: Counts the answers.
        keys: If there are any, clients must send one.
        open_paths: Paths that need no key.
        shows_ids: Whether answers have `X-Request-ID`; a router before the service may set it.
    """
    found = [Middleware(Observed, metrics, config.access_log, shows_ids)]
    if config.cors_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-ID", "Retry-After"],
            )
        )
    found.append(Middleware(Limits, config))
    return [*found, Middleware(Keys, keys, open_paths)] if keys else found


class Observed:
    """Gives every request an id, counts and logs its answer, and makes a 500 of an exception.

    The id is the client's `X-Request-ID` or a new one; every answer has it as a header, and every
    record that is logged meanwhile. What the application puts into `scope["state"]["log"]`, a
    dictionary, is logged with the answer. Where opentelemetry is installed, there is a span, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: RequestMetrics,
        access_log: bool = True,
        shows_ids: bool = True,
    ) -> None:
        self._app, self._metrics = app, metrics
        self._access_log, self._shows_ids = access_log, shows_ids
        self._span = _spans()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        fields: dict[str, Any] = {}
        state["log"] = fields
        request_id = state["request_id"] = _id_of(scope) or uuid.uuid4().hex
        status, is_complete, began = 0, False, time.perf_counter()

        def done() -> None:
            self._metrics.open.dec()
            self._done(scope, status or GONE, time.perf_counter() - began, fields)

        async def observed(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", request_id.encode("latin-1"))] * self._shows_ids
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            elif not message.get("more_body", False) and not is_complete:
                is_complete = True
                done()  # first: whoever has the answer may ask for the metrics
            await send(message)

        token = REQUEST_ID.set(request_id)
        self._metrics.open.inc()
        try:
            with self._span(scope):
                await self._app(scope, receive, observed)
        except Exception:
            log.exception("a request could not be answered")
            if not status:
                await refusal(HTTPException(500, FAULT))(scope, receive, observed)
            elif not is_complete:
                status = 500
                raise  # the server then closes the connection
        finally:
            if not is_complete:
                done()
            REQUEST_ID.reset(token)

    def _done(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        path = route_of(scope)
        is_probe, is_fault = path in HEALTH, status >= 500
        self._metrics.count(path, status, seconds)
        if is_fault or (self._access_log and not is_probe):
            client = scope.get("client")
            line = {
                "client": client[0] if client else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(1000 * seconds, 1),
                **fields,
            }
            text = f"{scope['method']} {scope['path']} {status}"
            access.log(logging.ERROR if is_fault else logging.INFO, text, extra={"fields": line})


def _id_of(scope: Scope) -> str | None:
    """The id that the client gave, if it is one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if 0 < len(given) <= MAX_ID and given.isprintable() else None


def _spans() -> Callable[[Scope], AbstractContextManager[object]]:
    """Makes the span of a request, where opentelemetry is installed."""
    if find_spec("opentelemetry") is None:
        return lambda scope: nullcontext()
    from opentelemetry import propagate, trace

    tracer = trace.get_tracer("offramp")

    def span(scope: Scope) -> AbstractContextManager[object]:
        method, path = scope["method"], scope["path"]
        return tracer.start_as_current_span(
            f"{method} {path}",
            context=propagate.extract(Headers(scope=scope)),
            kind=trace.SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "url.path": path,
                "offramp.request_id": scope["state"]["request_id"],
            },
        )

    return span


class Limits:
    """Takes as many requests as fit, each for its time, and stops work for clients that left.

    Requests in flight are counted, not connections, and the bytes of their bodies. A body is read
    before the application is called, so an application gets it whole.
    """

    def __init__(self, app: ASGIApp, config: AppConfig) -> None:
        self._app, self._config = app, config
        self._open = self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http" or route_of(scope) in HEALTH:
            await self._app(scope, receive, send)
            return
        try:
            async with self._body(scope, receive) as body:
                await self._answer(body, scope, receive, send)
        except HTTPException as error:
            if error.status_code != GONE:
                await refusal(error)(scope, receive, send)

    @asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The body of a request, for which there is room as long as it is answered."""
        if self._open >= self._config.max_requests:
            raise busy(f"more than {self._config.max_requests} requests are open; try again later")
        self._open += 1
        body = bytearray()
        timeout = self._config.body_timeout
        try:
            try:
                async with asyncio.timeout(timeout):
                    await self._read(body, scope, receive)
            except TimeoutError:
                reason = f"the body did not arrive within {timeout:g} seconds"
                raise HTTPException(408, reason, {"Connection": "close"}) from None
            yield bytes(body)
        finally:
            self._open -= 1
            self._bytes -= len(body)

    async def _read(self, body: bytearray, scope: Scope, receive: Receive) -> None:
        limit = self._config.max_bytes
        too_large = HTTPException(413, f"a body may have {limit:,} bytes; send a smaller one")
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared[:20]) > limit:
            raise too_large
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(GONE)
            chunk = message.get("body", b"")
            if len(body) + len(chunk) > limit:  # whatever the header says
                raise too_large
            if self._bytes + len(chunk) > BODIES * limit:
                raise busy("the bodies of open requests take all room; try again later")
            body += chunk
            self._bytes += len(chunk)
            more = message.get("more_body", False)

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application until it has answered, the time is up, or the client has gone."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        is_begun = is_complete = False

        async def begun(message: Message) -> None:
            nonlocal is_begun, is_complete
            is_begun = True
            await send(message)
            is_body = message["type"] == "http.response.body"
            is_complete = is_body and not message.get("more_body", False)

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            messages.put_nowait({"type": "http.disconnect"})

        timeout = self._config.request_timeout
        answer = asyncio.ensure_future(self._app(scope, messages.get, begun))
        left = asyncio.ensure_future(gone())
        try:
            await asyncio.wait(
                (answer, left), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if is_complete:  # servers say that a client has gone, too, when it has its answer
                await asyncio.wait((answer,), timeout=timeout)
        finally:
            is_done, has_left = answer.done(), left.done()
            for task in (answer, left):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await answer  # its exception is the application's
        if not (is_done or has_left or is_begun):
            reason = f"no answer within {timeout:g} seconds: the server has too much to do"
            raise HTTPException(504, reason, {"Retry-After": "1"})


class Throttle:
    """Counts wrong guesses by host, and says how long a host has to wait after too many.

    Args:
        most: Wrong guesses that are taken at once.
        seconds: After this time, they are forgotten.

    Example:
        >>> throttle = Throttle(most=2)
        >>> for _ in range(2):
        ...     throttle.failed("10.0.0.1")
        >>> throttle.wait("10.0.0.1") > 59, throttle.wait("10.0.0.2")
        (True, 0.0)
    """

    def __init__(self, most: int = 10, seconds: float = 60.0) -> None:
        self._most, self._seconds = most, seconds
        self._failures: dict[str, tuple[int, float]] = {}  # how many, and until when

    def wait(self, host: str) -> float:
        """Seconds until a host may try again."""
        count, until = self._failures.get(host, (0, 0.0))
        return max(0.0, until - time.monotonic()) if count >= self._most else 0.0

    def failed(self, host: str) -> None:
        """Count a wrong guess."""
        now = time.monotonic()
        self._failures = {name: each for name, each in self._failures.items() if each[1] > now}
        count, until = self._failures.get(host, (0, now + self._seconds))
        self._failures[host] = count + 1, until


class Keys:
    """Asks for a key, as `X-API-Key` or as a bearer token.

    After ten wrong ones in a minute, a host that sends another wrong one gets a 429.
    """

    def __init__(
        self, app: ASGIApp, keys: Collection[str], open_paths: Collection[str] = HEALTH
    ) -> None:
        self._app, self._keys = app, tuple(keys)
        self._open_paths, self._throttle = frozenset(open_paths), Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        is_open = scope["type"] != "http" or route_of(scope) in self._open_paths
        if is_open or self._is_known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = HTTPException(401, "send the key of this server as X-API-Key")
        host = (scope.get("client") or ("",))[0]
        if (seconds := self._throttle.wait(host)) > 0:
            error = busy("too many wrong keys; try again later", 429, seconds)
        self._throttle.failed(host)
        await refusal(error)(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        sent = headers.get("x-api-key") or bearer_token(headers)
        return sum(same_text(sent, key) for key in self._keys) > 0  # whichever key it is


def route_of(scope: Scope) -> str:
    """The path of a request, below the place where the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def bearer_token(headers: Headers) -> str:
    """The token in `Authorization: Bearer TOKEN`, or nothing."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def same_text(one: str, other: str) -> bool:
    """Whether texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
