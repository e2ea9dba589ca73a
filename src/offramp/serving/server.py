"""`serve`: a network and its policy behind HTTP, on one machine."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from types import FrameType
from typing import Annotated, Any

import torch
from fastapi import Depends, Response
from litserve import LitAPI, LitServer
from litserve.loops import BatchedLoop
from litserve.transport.base import MessageTransport

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.serving.answers import Answerer
from offramp.serving.http import receive, respond
from offramp.serving.images import ImageReader
from offramp.serving.metrics import PrometheusMetrics, Watch
from offramp.serving.model import Model
from offramp.serving.requests import Intake, Query

HOSTS = ("127.0.0.1", "0.0.0.0", "::")  # what LitServe can bind to
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class ServeConfig:
    """How a network is served.

    Args:
        host: 127.0.0.1 is reached from this machine only; 0.0.0.0 and :: from everywhere.
        port: 1024 to 65535.
        max_batch: Requests that are answered together, at most.
        batch_wait: Seconds that a request waits for others. While a batch runs, requests gather
            anyway.
        workers: Processes that each hold the network.
        threads: Of torch in each worker; None for torch's choice.
        precision: `float32` or `bfloat16`.
        body_timeout: Seconds in which a body must have arrived.
        request_timeout: Seconds after which a request that still waits is given up.
        max_requests: At the same time; more are turned away with 503.

    Raises:
        ConfigError: A value that is not possible.

    Example:
        >>> ServeConfig(port=80)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `port` must lie in 1024..65535, got 80
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 32
    batch_wait: float = 0.002
    workers: int = 1
    threads: int | None = None
    precision: str = "float32"
    body_timeout: float = 10.0
    request_timeout: float = 30.0
    max_requests: int = 1000

    def __post_init__(self) -> None:
        if self.host not in HOSTS:
            raise ConfigError(f"`host` must be one of {', '.join(HOSTS)}, got {self.host!r}")
        if not 1024 <= self.port <= 65535:
            raise ConfigError(f"`port` must lie in 1024..65535, got {self.port}")
        for name in ("max_batch", "workers", "max_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        for name in ("body_timeout", "request_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}")
        if not 0 <= self.batch_wait < self.request_timeout:
            raise ConfigError(
                f"`batch_wait` must lie in 0..{self.request_timeout:g}, got {self.batch_wait}"
            )
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"`threads` must be at least 1, got {self.threads}")


def _check_port(config: ServeConfig) -> None:
    """The server itself would only say so after its workers have started."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {config.host}:{config.port}: {error.strerror or error}; "
                "choose another with --port or --host"
            ) from None


def serve(model: Model, intake: Intake, config: ServeConfig | None = None) -> None:
    """Answer requests until SIGINT or SIGTERM; then end all processes and return.

    `POST /predict` takes JSON, PNG and JPEG; `GET /health` says whether the workers are ready, and
    `GET /metrics` is for Prometheus. See docs/serving.md.

    Args:
        model: What to load; it is loaded once here, so that mistakes show before the port opens.
        intake: What requests may hold.
        config: Where and how.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The parts do not fit.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("litserve", "prometheus_client", "PIL.Image"):
        require(module, extra="serve")
    config = config or ServeConfig()
    _check_port(config)
    runner = model.runner(config.precision)
    exits, classes = runner.network.num_exits, runner.network.num_classes
    about = {"exits": exits, "classes": classes, "network": runner.network.fingerprint()}
    del runner
    from offramp.serving.server import make_server

    server = make_server(model, intake, config, about)
    with _stopping():
        try:
            server.run(
                host=config.host,
                port=config.port,
                num_api_servers=1,
                log_level="warning",
                generate_client_file=False,
                limit_concurrency=config.max_requests,
                access_log=False,
            )
        except KeyboardInterrupt:
            # Before everything was up LitServe leaves its processes behind. Nothing is being
            # answered, and those that were forked ignore SIGTERM as this one does now.
            for child in multiprocessing.active_children():
                child.kill()
                child.join()


@contextmanager
def _stopping() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into the interrupt after which LitServe ends its processes.

    The process that speaks HTTP is forked from this one and inherits what is done on a signal;
    when it has ended its requests it raises the signal again, which must be nothing there.
    """
    here = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == here:
            # Once is enough: a second one would cut short what the first has begun.
            for each in STOPS:
                signal.signal(each, signal.SIG_IGN)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
