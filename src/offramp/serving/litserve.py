"""The server of `serve`, built with LitServe; imported only where that is installed."""

import signal
import threading
import time
from collections.abc import Sequence
from queue import Queue
from typing import Annotated, Any

import torch
from fastapi import Depends, Response
from litserve import LitAPI, LitServer
from litserve.loops import BatchedLoop
from litserve.transport.base import MessageTransport

from offramp.serving.answers import Model, Worker
from offramp.serving.http import MetricsMiddleware, PrometheusMetrics, read_query, to_response
from offramp.serving.requests import Query, RequestParser, RequestSettings


def make_server(
    api: "PolicyAPI",
    parser: RequestParser,
    about: dict[str, Any],
    workers: int,
    request_timeout: float,
) -> LitServer:
    """A server that is ready to run; `about` has the facts for `GET /info`, `exits` among them."""
    metrics = PrometheusMetrics(about["exits"])
    server = PolicyServer(
        api,
        accelerator="cpu",
        workers_per_device=workers,
        timeout=request_timeout,
        model_metadata=about,
        middlewares=[(MetricsMiddleware, {"metrics": metrics, "path": "/predict"})],
        disable_openapi_url=True,  # its page would load scripts from elsewhere
    )
    server.app.state.parser = parser
    # A single process speaks HTTP, so its counts are complete.
    server.app.add_api_route("/metrics", metrics.page, methods=["GET"], response_model=None)
    return server


class PolicyAPI(LitAPI):  # type: ignore[misc]
    """What each worker process does: parsed requests in, answers out."""

    def __init__(self, model: Model, settings: RequestSettings, threads: int | None) -> None:
        super().__init__(
            max_batch_size=settings.max_batch,
            batch_timeout=settings.batch_wait,
            loop=BlockingBatchedLoop(),
        )
        self.model, self.settings, self.threads = model, settings, threads

    def setup(self, device: str) -> None:
        """Load the network and the policy, once per worker; `device` is LitServe's, not ours."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        self.worker = Worker(self.model, self.settings.device, self.settings.precision)

    def decode_request(self, request: Annotated[Query, Depends(read_query)]) -> Query:
        """Do nothing: `read_query` has run already, in the process that speaks HTTP."""
        return request

    def batch(self, inputs: Sequence[Query]) -> Sequence[Query]:
        """Leave it to the worker, which also needs the ids."""
        return inputs

    def predict(self, x: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch; every sample leaves at its own exit."""
        return self.worker(x)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Do nothing: there is one answer per request already."""
        return output

    def encode_response(self, output: dict[str, Any]) -> Response:
        """An answer as JSON."""
        return to_response(output)


class BlockingBatchedLoop(BatchedLoop):  # type: ignore[misc]
    """Sleeps until a request comes, and only then starts to wait for others.

    LitServe's own loop polls for requests a thousand times a second, and its window for a batch
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


class PolicyServer(LitServer):  # type: ignore[misc]
    """Stops without a traceback.

    A terminal sends Ctrl-C to all processes, and a worker that receives it would die with a
    traceback; so workers leave it to the process that started them.
    """

    def launch_inference_worker(self, lit_api: LitAPI) -> list[Any]:
        """Start the workers, which inherit that the signal is ignored."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            workers: list[Any] = super().launch_inference_worker(lit_api)
            return workers
        finally:
            signal.signal(signal.SIGINT, before)

    def _perform_graceful_shutdown(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        # The thread that monitors the workers must neither take their end for a crash nor ask a
        # manager that has ended.
        self._shutdown_event = threading.Event()
        self._shutdown_event.set()
        super()._perform_graceful_shutdown(*arguments, **options)
