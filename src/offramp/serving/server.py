"""`serve`: the application of `offramp.serving.app` on one machine, run by uvicorn."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from offramp.errors import ConfigError, OfframpError, ProcessError
from offramp.imports import require
from offramp.runtime.engine import StagedRunner
from offramp.serving.config import ServeConfig
from offramp.serving.images import Reading
from offramp.serving.logs import log_as_json
from offramp.serving.model import Model

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from offramp.policy import Policy
    from offramp.runtime.cascade import Cascade
    from offramp.serving.gateway_config import GatewayConfig
    from offramp.serving.requests import ReadItem

SERVICE_FOLDER = "OFFRAMP_SERVICE"  # environment variable: what the processes of a service share
METRICS = "metrics"  # a folder in it
ALREADY_SENT = 0.2  # seconds in which requests that were sent before a signal are still read
log = logging.getLogger("offramp.serving")


def serve(
    model: "Model | StagedRunner | Cascade",
    config: ServeConfig | None = None,
    *,
    reading: Reading | None = None,
    policy: "Policy | None" = None,
    read_item: "ReadItem | None" = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer requests until Ctrl-C or SIGTERM, and then the requests that are open.

    With one worker, the application runs in this process, which SIGTERM then ends as usual. With
    several, uvicorn starts a process for each, and another one for each that ends.

    Args:
        model: Folders; or a `Runner`, an `OnnxRunner` or a `Cascade`, which one worker can serve.
        config: Where and how to serve it.
        reading: See `app`, as for the next two.
        policy: Of a cascade.
        read_item: Makes items of requests.
        ready: Called with the address as soon as requests are answered.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The model cannot be loaded, or
            the address cannot be listened at.
        ProcessError: A worker could not start.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("starlette", "uvicorn", "prometheus_client", "PIL.Image"):
        require(module, extra="serve")
    from offramp.serving.application import app  # needs these modules

    config = config or ServeConfig()
    log_as_json()
    with _bound(config, ready) as listening:
        if config.workers == 1:
            here = app(model, config, reading=reading, policy=policy, read_item=read_item)
            _run_here(here, config, listening)
        elif isinstance(model, Model):
            _run_workers(model, config, listening)
        else:
            raise ConfigError(
                f"{config.workers} workers each load a model of folders, got a "
                f"{type(model).__name__}: export it and serve the export, or leave `workers` at 1"
            )


def serve_gateway(
    gateway: "GatewayConfig",
    config: ServeConfig | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer as OpenAI's API does, with a cascade of endpoints; see `serve`.

    Args:
        gateway: The members and the policy.
        config: Where to serve it.
        ready: Called with the address as soon as requests are answered.
    """
    for module in ("starlette", "uvicorn", "prometheus_client", "httpx2"):
        require(module, extra="serve")
    from offramp.serving.gateway import gateway as application

    config = config or ServeConfig()
    if config.workers != 1:
        raise ConfigError(
            "a gateway runs in one process, which waits for its members: leave `workers` at 1"
        )
    app = application(gateway)
    with _bound(config, ready) as listening:
        _run_here(app, config, listening)


def _uvicorn_options(config: ServeConfig) -> dict[str, Any]:
    """What is the same for one process and for several."""
    return {
        "access_log": False,
        "log_config": None,
        "http": "offramp.serving.connection:Connection",
        "timeout_keep_alive": config.idle_timeout,
        "timeout_graceful_shutdown": config.drain_timeout,
    }


def _run_here(app: "Starlette", config: ServeConfig, listening: socket.socket) -> None:
    import uvicorn

    from offramp.serving.connection import connections

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # What clients have sent may not have been read yet, and closing would destroy it.
            await asyncio.sleep(ALREADY_SENT)
            await super().shutdown(sockets)

    connections(config.header_timeout, app.state.metrics)
    server = Server(uvicorn.Config(app, **_uvicorn_options(config)))
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when all is answered
        server.run(sockets=[listening])


def _run_workers(model: Model, config: ServeConfig, listening: socket.socket) -> None:
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    from offramp.serving.served import Release

    model.runner("cpu")  # mistakes show here
    # Each process has an alarm of its own, and one false alarm is one too many.
    model = replace(model, false_alarm_rate=model.false_alarm_rate / config.workers)
    with TemporaryDirectory(prefix="offramp-") as name:
        folder = Path(name)
        (folder / METRICS).mkdir()
        Release.of(model, config, folder).publish(folder)
        os.environ[SERVICE_FOLDER] = name
        supervisor = Multiprocess(
            uvicorn.Config(
                "offramp.serving.server:app_of_worker",
                factory=True,
                workers=config.workers,
                **_uvicorn_options(config),
            ),
            [listening],
        )
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise ProcessError("a worker could not start: see above")


def app_of_worker() -> "Starlette":
    """The application of one of several processes, which uvicorn calls in each."""
    folder = Path(os.environ[SERVICE_FOLDER])
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder / METRICS)
    from uvicorn.config import STARTUP_FAILURE

    from offramp.serving.application import Service  # prometheus_client reads that when imported
    from offramp.serving.connection import connections
    from offramp.serving.served import Release, SharedServed

    log_as_json()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        served = SharedServed(folder)
    except OfframpError as error:
        log.critical("%s", error)
        sys.exit(STARTUP_FAILURE)  # uvicorn starts no other one
    service = Service(served, served.config)
    connections(Release.read(folder).config.header_timeout, service.metrics)
    return service.app()


def _end_with_parent() -> None:
    """Stop as soon as the supervisor was killed, which could not tell its processes to."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _bound(config: ServeConfig, ready: Callable[[str], None]) -> Iterator[socket.socket]:
    """A socket at the address, which does not listen yet: clients are refused, and do not wait.

    `ready` is called with the address as soon as connections are taken there.
    """
    over = threading.Event()

    def announce(host: str, port: int) -> None:
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        while not over.wait(0.05):
            with suppress(OSError), socket.create_connection((host, port), timeout=1):
                ready(address)
                return

    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((config.host, config.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {config.host}:{config.port}: {error.strerror or error}; "
                "choose another with --port or --host"
            ) from None
        threading.Thread(target=announce, args=made.getsockname()[:2], daemon=True).start()
        try:
            yield made
        finally:
            over.set()
