"""Settings of a service: limits and batches of any server, and how one machine runs it."""

from dataclasses import dataclass

from offramp import check
from offramp.machine import PRECISIONS

API_KEY, ADMIN_TOKEN = "OFFRAMP_API_KEY", "OFFRAMP_ADMIN_TOKEN"
"""Environment variables with the key of clients and with the token of its operators."""

LONGEST_WAIT = 30.0  # seconds


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """How requests are limited, batched and answered, behind any ASGI server.

    Args:
        max_batch: Largest number of requests that are answered together.
        batch_wait: Seconds that a request waits for others. While a batch runs, requests gather
            anyway.
        concurrency: Batches that are answered at the same time, each in a thread. More than one
            helps a cascade whose models answer from elsewhere.
        device: Device of the network: `cpu`, `cuda`, `cuda:1`, `mps`, ...; `auto`: a GPU if there
            is one, else the CPU.
        precision: `float32`, `bfloat16`, `float16`, or `auto`: the fastest of the device.
        threads: Threads of torch or ONNX Runtime in each process. Default: their own choice.
        max_bytes: Size limit of a request's body.
        max_pixels: Size limit of an image as it is sent.
        body_timeout: Seconds in which a body must arrive.
        request_timeout: Seconds after which a request without an answer gets a 504.
        max_requests: Largest number of requests in flight; further ones get a 503.
        access_log: Log every answer, as a line of JSON on stderr. Answers of 500 and above always
            are.
        cors_origins: Web pages of these origins may ask, such as `https://example.org`, or `*`.
        remote_admin: Let other machines change the budget and the policy, too.

    Raises:
        ConfigError: A value is impossible.
    """

    max_batch: int = 32
    batch_wait: float = 0.002
    concurrency: int = 1
    device: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    max_bytes: int = 4 * 2**20
    max_pixels: int = 16_000_000
    body_timeout: float = 10.0
    request_timeout: float = 30.0
    max_requests: int = 1000
    access_log: bool = True
    cors_origins: tuple[str, ...] = ()
    remote_admin: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch", "concurrency", "max_bytes", "max_pixels", "max_requests"):
            check.whole(name, getattr(self, name), 1)
        if self.threads is not None:
            check.whole("threads", self.threads, 1)
        check.one_of("precision", self.precision, ("auto", *PRECISIONS))
        check.positive("body_timeout", self.body_timeout)
        check.within("batch_wait", self.batch_wait, 0, LONGEST_WAIT, ends="[)")
        check.within("request_timeout", self.request_timeout, self.batch_wait, 86_400, ends="(]")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(AppConfig):
    """How one machine serves an application, with uvicorn.

    Args:
        host: Address or name to listen on: `127.0.0.1` for this machine only, `0.0.0.0` or `::`
            for all.
        port: Port to listen on, 1 to 65535.
        workers: Number of processes that each load the model.
        drain_timeout: Seconds that open requests get once the server is to stop.
        header_timeout: Seconds in which a connection must send the head of a request; one that
            sends nothing is closed then.
        idle_timeout: Seconds after which a connection without a further request is closed.

    Example:
        >>> ServeConfig(port=80_000)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `port` must lie in [1, 65535], got 80000
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    drain_timeout: float = 30.0
    header_timeout: float = 10.0
    idle_timeout: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.within("port", self.port, 1, 65535)
        check.whole("workers", self.workers, 1)
        check.at_least("drain_timeout", self.drain_timeout, 0)
        check.positive("header_timeout", self.header_timeout)
        check.positive("idle_timeout", self.idle_timeout)
