"""The server itself: LitServe's queues and processes around a `Runner`.

Imported by `serve` alone: litserve is optional.
"""

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

from offramp.runtime.images import ImageReader
from offramp.runtime.model import Model
from offramp.runtime.serving import ServeConfig
from offramp.runtime.serving_answers import Answerer
from offramp.runtime.serving_http import receive, respond
from offramp.runtime.serving_metrics import PrometheusMetrics, Watch
from offramp.runtime.serving_requests import Intake, Query

__all__ = ["PolicyAPI", "make_server"]


class PolicyAPI(LitAPI):  # type: ignore[misc]
    """What a worker does: samples in, answers out."""

    def __init__(self, model: Model, reader: ImageReader | None, config: ServeConfig) -> None:
        super().__init__(
            max_batch_size=config.max_batch,
            batch_timeout=config.batch_wait,
            loop=PatientLoop(),
        )
        self.model, self.reader, self.config = model, reader, config

    def setup(self, device: str) -> None:
        """Load the network and the policy, once per worker."""
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self.answer = Answerer(self.model, self.reader, self.config.precision)

    def decode_request(self, request: Annotated[Query, Depends(receive)]) -> Query:
        """Nothing: `receive` has done it, in the process that speaks HTTP."""
        return request

    def batch(self, inputs: Sequence[Query]) -> Sequence[Query]:
        """Left to `predict`, which also needs the ids."""
        return inputs

    def predict(self, x: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch; every sample leaves at its own exit."""
        return self.answer(x)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One answer per request already."""
        return output

    def encode_response(self, output: dict[str, Any]) -> Response:
        """JSON."""
        return respond(output)


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
    metrics = PrometheusMetrics(about["exits"])
    server = QuietServer(
        PolicyAPI(model, intake.reader, config),
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
