"""Settings of a service: limits and batches of any server, and how one machine runs it."""

from dataclasses import dataclass

from offramp import check
from offramp.registry import PRECISIONS

API_KEY, ADMIN_TOKEN = "OFFRAMP_API_KEY", "OFFRAMP_ADMIN_TOKEN"
"""Environment variables with the key of clients and with the token of whoever operates it."""

LONGEST_WAIT = 30.0  # seconds


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """How requests are limited, batched and answered, behind any ASGI server.

    Raises:
        ConfigError: A value is impossible.
    """

    max_batch: int = 32  # largest number of requests that are answered together
    # Seconds that a request waits for others. While a batch runs, requests gather anyway.
    batch_wait: float = 0.002
    # Batches that are answered at the same time, each in a thread. More than one helps a cascade
    # whose models answer from elsewhere.
    concurrency: int = 1
    device: str = "auto"  # where networks run; `auto`: on a GPU if there is one
    precision: str = "float32"  # `float32`, `bfloat16`, `float16` or `auto`
    threads: int | None = None  # of torch or ONNX Runtime in each process; None for their choice
    max_bytes: int = 4 * 2**20  # size limit of a body
    max_pixels: int = 16_000_000  # size limit of an image as it is sent
    body_timeout: float = 10.0  # seconds in which a body must arrive
    request_timeout: float = 30.0  # seconds after which a request without an answer gets a 504
    max_requests: int = 1000  # largest number of open requests; further ones get a 503
    access_log: bool = False  # whether every prediction is written to stderr, as a line of JSON
    remote_admin: bool = False  # whether other machines can change the budget and the policy, too

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

    Example:
        >>> ServeConfig(port=80_000)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `port` must lie in [1, 65535], got 80000
    """

    host: str = "127.0.0.1"  # this machine only; 0.0.0.0 and :: for all
    port: int = 8000
    workers: int = 1  # processes that each load the model
    drain_timeout: float = 30.0  # seconds that open requests get once the server is to stop

    def __post_init__(self) -> None:
        super().__post_init__()
        check.within("port", self.port, 1, 65535)
        check.whole("workers", self.workers, 1)
        check.at_least("drain_timeout", self.drain_timeout, 0)
