"""The server itself: LitServe's queues and processes around a `Runner`.

Requests are read and checked in the process that speaks HTTP, so that a bad one is turned away
there and never shares a batch with good ones. Imported by `serve` alone: litserve is optional.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from queue import Queue
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Depends, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from litserve import LitAPI, LitServer
from litserve.loops import BatchedLoop
from litserve.transport.base import MessageTransport

from offramp.data.images import Normalization
from offramp.runtime.output import RunOutput
from offramp.runtime.serving import Model, ServeConfig
from offramp.runtime.serving_metrics import Metrics, Watch
from offramp.runtime.serving_requests import Intake, Query, RequestError

__all__ = ["PolicyAPI", "make_server"]


async def receive(request: Request) -> Query:
    """Read a request and check it.

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


class PolicyAPI(LitAPI):  # type: ignore[misc]
    """What a worker does: samples in, answers out."""

    def __init__(self, model: Model, normalization: Normalization, config: ServeConfig) -> None:
        super().__init__(
            max_batch_size=config.max_batch,
            batch_timeout=config.batch_wait,
            loop=PatientLoop(),
        )
        self.model, self.normalization, self.config = model, normalization, config

    def setup(self, device: str) -> None:
        """Load the network and the policy, once per worker."""
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self.runner = self.model.runner(self.config.precision)

    def decode_request(self, request: Annotated[Query, Depends(receive)]) -> Query:
        """Nothing: `receive` has done it, in the process that speaks HTTP."""
        return request

    def batch(self, inputs: Sequence[Query]) -> Sequence[Query]:
        """Left to `predict`, which also needs the ids."""
        return inputs

    def predict(self, x: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch; every sample leaves at its own exit."""
        output = self.runner(self._collated(x))
        return [self._answer(query, output, row) for row, query in enumerate(x)]

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One answer per request already."""
        return output

    def encode_response(self, output: dict[str, Any]) -> Response:
        """JSON; the exit and the cost are in headers too, where the metrics find them."""
        if output["class"] is None:
            reason = "the network has no finite answer to this input"
            return JSONResponse({"detail": reason, "id": output["id"]}, 422)
        headers = {"X-Offramp-Exit": str(output["exit"]), "X-Offramp-Cost": str(output["cost"])}
        return JSONResponse(output, headers=headers)

    def _collated(self, queries: Sequence[Query]) -> Any:  # noqa: ANN401
        if "input_ids" in queries[0].parts:
            return _padded([query.parts for query in queries])
        return torch.stack([self._sample(query) for query in queries])

    def _sample(self, query: Query) -> torch.Tensor:
        if "pixels" in query.parts:
            return self.normalization(torch.from_numpy(query.parts["pixels"])[None])[0]
        return torch.from_numpy(query.parts["inputs"])

    def _answer(self, query: Query, output: RunOutput, row: int) -> dict[str, Any]:
        failed, found = bool(output.failed[row]), int(output.predictions[row])
        names, confidence = self.model.class_names, float(output.confidence[row])
        return {
            "id": query.id,
            "class": None if failed else found,
            "name": None if failed or names is None else names[found],
            "confidence": None if confidence != confidence else round(confidence, 6),
            "likely_wrong": bool(output.likely_wrong[row]),
            "exit": int(output.exits[row]),
            "cost": round(float(output.costs[row]), 6),
        }


def _padded(texts: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Texts of different lengths as one batch; what is added is masked out."""
    length = max(len(text["input_ids"]) for text in texts)
    # Some may name segments and others not: then those are all in the first.
    names = {name for text in texts for name in text}

    def widened(text: dict[str, Any], name: str) -> torch.Tensor:
        part = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return torch.from_numpy(np.pad(part, (0, length - len(part))))

    return {name: torch.stack([widened(text, name) for text in texts]) for name in names}


class PatientLoop(BatchedLoop):  # type: ignore[misc]
    """Sleeps until a request comes, and waits for others only from then on.

    LitServe's own loop asks for requests a thousand times a second, and its window for a batch
    may be nearly over when the first one comes.
    """

    def get_batch_requests(
        self,
        lit_api: LitAPI,
        request_queue: "Queue[Any]",
        transport: MessageTransport,
    ) -> tuple[list[Any], list[Any]]:
        """The requests to answer next, and those that have waited too long."""
        found = [self.get_request(request_queue, timeout=1.0)]
        until = time.monotonic() + lit_api.batch_timeout
        while found[-1] is not None and len(found) < lit_api.max_batch_size:
            rest = until - time.monotonic()
            found.append(self.get_request(request_queue, block=rest > 0, timeout=max(rest, 0)))
        oldest = time.monotonic() - lit_api.request_timeout
        present = [request for request in found if request is not None]
        fresh = [(queue, uid, query) for queue, uid, at, query in present if at >= oldest]
        return fresh, [(queue, uid) for queue, uid, at, _ in present if at < oldest]


class QuietServer(LitServer):  # type: ignore[misc]
    """Stops without a traceback.

    A terminal sends Ctrl-C to all processes, and a worker that it reaches would die with one; so
    workers leave it to the process that started them.
    """

    def launch_inference_worker(self, lit_api: LitAPI) -> list[Any]:
        """Start the workers; a signal that is ignored here stays so in them."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            workers: list[Any] = super().launch_inference_worker(lit_api)
            return workers
        finally:
            signal.signal(signal.SIGINT, before)

    def _perform_graceful_shutdown(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        # The thread that watches the workers must neither take their end for a crash, nor ask a
        # manager that has ended.
        self._shutdown_event = threading.Event()
        self._shutdown_event.set()
        super()._perform_graceful_shutdown(*arguments, **options)


def make_server(
    model: Model, intake: Intake, config: ServeConfig, about: dict[str, Any]
) -> LitServer:
    """A server that is ready to run."""
    normalization = Normalization() if intake.reader is None else intake.reader.normalization
    metrics = Metrics(about["exits"])
    server = QuietServer(
        PolicyAPI(model, normalization, config),
        accelerator="cpu",
        workers_per_device=config.workers,
        timeout=config.request_timeout,
        model_metadata=about,
        middlewares=[(Watch, {"metrics": metrics, "path": "/predict"})],
        disable_openapi_url=True,  # its page loads scripts from elsewhere
    )
    server.app.state.intake = intake
    server.app.state.body_timeout = config.body_timeout
    # There is one process that speaks HTTP, so that its counts are all there are.
    server.app.add_api_route("/metrics", metrics.page, methods=["GET"], response_model=None)
    return server
