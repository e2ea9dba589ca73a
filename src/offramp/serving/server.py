"""`serve`: a network and its policy behind HTTP, on one machine."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.machine import find_device
from offramp.serving.answers import Model
from offramp.serving.requests import RequestParser, RequestSettings

HOSTS = ("127.0.0.1", "0.0.0.0", "::")  # what LitServe can bind to
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)  # the alarm repeats the others


@dataclass(frozen=True, kw_only=True)
class ServeConfig(RequestSettings):
    """How a model is served on one machine; see `RequestSettings` for the other settings.

    Args:
        host: 127.0.0.1 is reachable from this machine only; 0.0.0.0 and :: from everywhere.
        port: 1024 to 65535.
        workers: Number of processes that each hold the network.
        threads: Threads of torch in each worker; None for torch's choice.
        request_timeout: Seconds after which a waiting request is given up.

    Raises:
        ConfigError: A value is impossible.

    Example:
        >>> ServeConfig(port=80)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `port` must lie in 1024..65535, got 80
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int | None = None
    request_timeout: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.host not in HOSTS:
            raise ConfigError(f"`host` must be one of {', '.join(HOSTS)}, got {self.host!r}")
        if not 1024 <= self.port <= 65535:
            raise ConfigError(f"`port` must lie in 1024..65535, got {self.port}")
        if self.workers < 1:
            raise ConfigError(f"`workers` must be at least 1, got {self.workers}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"`threads` must be at least 1, got {self.threads}")
        if not self.request_timeout > self.batch_wait:
            raise ConfigError(
                f"`request_timeout` must be longer than `batch_wait` ({self.batch_wait:g} s), got "
                f"{self.request_timeout}"
            )


def serve(model: Model, config: ServeConfig | None = None) -> None:
    """Answer requests until SIGINT or SIGTERM; then end all processes and return.

    `POST /predict` takes JSON, PNG and JPEG; `GET /health` says whether the workers are ready, and
    `GET /metrics` is for Prometheus. See docs/serving.md.

    Args:
        model: What to serve; it is loaded here once, so mistakes show before the port opens.
        config: Where and how to serve it.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The model cannot be loaded.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("litserve", "prometheus_client", "PIL.Image"):
        require(module, extra="serve")
    from offramp.serving.litserve import PolicyAPI, make_server  # needs these modules

    config = config or ServeConfig()
    _check_port(config)
    find_device(config.device)  # raises if it is not there
    network = model.runner("cpu").network
    parser = RequestParser(network.inputs, model.images, config)
    about = {
        "exits": network.num_exits,
        "classes": network.num_classes,
        "network": network.fingerprint(),
    }
    del network  # only the workers need it
    api = PolicyAPI(model, config, config.threads)
    server = make_server(api, parser, about, config.workers, config.request_timeout)
    with _interrupt_on_signals():
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
            # LitServe leaves its processes behind if it is interrupted while it starts. Nothing
            # is being answered, and forked processes ignore SIGTERM as this one does now.
            for child in multiprocessing.active_children():
                child.kill()
                child.join()


def _check_port(config: ServeConfig) -> None:
    """Raise if the port is taken; the server itself would only say so after loading."""
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


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into the interrupt after which LitServe ends its processes.

    The process that speaks HTTP is forked from this one and inherits its handlers. When it has
    finished its requests it raises the signal again, which must do nothing there.
    """
    own_id = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own_id:
            return
        if _is_starting_process(frame):
            # Python drops an exception that is raised while it forks: try again in a moment.
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return
        # Once is enough: a second signal would cut short what the first has begun.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_starting_process(frame: FrameType | None) -> bool:
    """Whether this frame, or one that called it, is multiprocessing starting a process."""
    while frame is not None:
        if frame.f_code.co_name == "_launch":
            return True
        frame = frame.f_back
    return False
