"""HTTP around samples and answers, the same for every server.

Requests are read and checked where HTTP is spoken, so that a bad one is turned away there and
never shares a batch with good ones. Imported by servers alone: fastapi is optional.
"""

import asyncio
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from offramp.serving.requests import Query, RequestError


async def receive(request: Request) -> Query:
    """Read a request and check it.

    The app's state must have an `intake` and a `body_timeout` in seconds.

    Raises:
        HTTPException: 4xx with the reason.
    """
    intake, timeout = request.app.state.intake, request.app.state.body_timeout
    try:
        async with asyncio.timeout(timeout):
            body = await _body(request, intake.max_bytes)
        kind, request_id = request.headers.get("content-type", ""), _header_id(request)
        # Decoding takes milliseconds, in which other requests should not wait.
        return await run_in_threadpool(intake.parse, kind, body, request_id)
    except TimeoutError:
        reason = f"the body did not arrive within {timeout:g} seconds"
        raise HTTPException(408, reason, headers={"Connection": "close"}) from None
    except RequestError as error:
        raise HTTPException(error.status, error.reason) from None


async def _body(request: Request, most: int) -> bytes:
    """At most so many bytes: counted as they come, whatever the header says."""
    too_large = RequestError(413, f"a body may have {most:,} bytes; send a smaller one")
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _header_id(request: Request) -> str | None:
    found: str | None = request.headers.get("x-request-id")
    return found


def respond(answer: dict[str, Any]) -> Response:
    """An answer as JSON; the exit and the cost are in headers too, where the metrics find them.

    Args:
        answer: As `Answerer` gives it.
    """
    if answer["class"] is None:
        reason = "the network has no finite answer to this input"
        return JSONResponse({"detail": reason, "id": answer["id"]}, 422)
    headers = {"X-Offramp-Exit": str(answer["exit"]), "X-Offramp-Cost": str(answer["cost"])}
    return JSONResponse(answer, headers=headers)
