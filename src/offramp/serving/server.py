"""`serve`: a network and its policy behind HTTP, on one machine."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.runtime.engine import StagedRunner
from offramp.serving.answers import Model, Worker
from offramp.serving.images import ImageReader
from offramp.serving.requests import ReadItem, RequestSettings

if TYPE_CHECKING:
    from offramp.policy import Policy
    from offramp.runtime.cascade import Cascade

API_KEY, ADMIN_TOKEN = "OFFRAMP_API_KEY", "OFFRAMP_ADMIN_TOKEN"
"""Environment variables with the key of clients and with the token of whoever operates it."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig(RequestSettings):
    """How a model is served on one machine; see `RequestSettings` for the other settings.

    Args:
        host: 127.0.0.1 is reachable from this machine only; 0.0.0.0 and :: from everywhere.
        port: 1 to 65535.
        workers: Number of processes that each hold the network.
        threads: Threads of torch or ONNX Runtime in each worker; None for their choice.
        request_timeout: Seconds after which a waiting request is given up.
        drain_timeout: Seconds that open requests get to be answered once the server is to stop.
        access_log: Whether every request is written to stderr, as a line of JSON.
        remote_admin: Whether the budget and the policy can be changed from other machines, too.

    Raises:
        ConfigError: A value is impossible.

    Example:
        >>> ServeConfig(port=80_000)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `port` must lie in 1..65535, got 80000
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int | None = None
    request_timeout: float = 30.0
    drain_timeout: float = 30.0
    access_log: bool = False
    remote_admin: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"`port` must lie in 1..65535, got {self.port}")
        if self.workers < 1:
            raise ConfigError(f"`workers` must be at least 1, got {self.workers}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"`threads` must be at least 1, got {self.threads}")
        if not self.drain_timeout >= 0:
            raise ConfigError(f"`drain_timeout` must not be negative, got {self.drain_timeout}")
        if not self.request_timeout > self.batch_wait:
            raise ConfigError(
                f"`request_timeout` must be longer than `batch_wait` ({self.batch_wait:g} s), got "
                f"{self.request_timeout}"
            )


def serve(
    model: "Model | StagedRunner | Cascade",
    config: ServeConfig | None = None,
    *,
    policy: "Policy | None" = None,
    read: ReadItem | None = None,
    class_names: Sequence[str] | None = None,
    images: ImageReader | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer requests until SIGINT or SIGTERM; then answer those that are open, and return.

    `POST /predict` takes JSON, PNG and JPEG; `GET /health` says whether the workers are ready, and
    `GET /metrics` is for Prometheus. See docs/serving.md.

    Args:
        model: Folders, which worker processes load; it is loaded here once, so mistakes show
            before the port opens. Or a `Runner` or an `OnnxRunner`, which answers in a thread of
            this process; or a `Cascade`, of which `workers` batches can be on their way at once.
        config: Where and how to serve it.
        policy: At an operating point, for a cascade.
        read: Makes an item of what stands under `item` in a request's JSON, for a cascade; by
            default the item is that itself. `torch.tensor` suits models of tensors.
        class_names: `[K]`, for a runner; a `Model` has its own.
        images: How image files are read, for a runner; without it, a runner takes numbers.
        ready: Called with the address when requests are answered.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The model cannot be loaded, or
            the address cannot be listened at.
        ProcessError: Workers died again and again.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("fastapi", "uvicorn", "prometheus_client", "PIL.Image"):
        require(module, extra="serve")
    from offramp.serving.service import Service, run_server  # needs these modules

    config = config or ServeConfig()
    with _bound(config) as listening:
        if isinstance(model, Model):
            model.check_place(config.device, config.precision)
            service = Service.of_model(model, config)
        elif isinstance(model, StagedRunner):
            worker = Worker(model, class_names=class_names, images=images)
            service = Service.of_worker(worker, config)
        else:
            from offramp.serving.cascades import CascadeWorker  # cascades bring torch

            service = Service.of_cascade(CascadeWorker(model, policy, read), config)
        if config.access_log:
            service.access_log = _access_log()
        service.api_key = os.environ.get(API_KEY) or None
        service.admin_token = os.environ.get(ADMIN_TOKEN) or None
        run_server(service, listening, lambda: ready(_address(listening)))


def _access_log() -> logging.Logger:
    """A logger that writes lines to stderr as they are."""
    log = logging.getLogger("offramp.access")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


@contextmanager
def _bound(config: ServeConfig) -> Iterator[socket.socket]:
    """A socket at the address, which does not listen yet: clients are refused, and do not wait."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen at {config.host!r}: {error.strerror or error}") from None
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(place)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {config.host}:{config.port}: {error.strerror or error}; "
                "choose another with --port or --host"
            ) from None
        yield made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
