"""What a replica of Ray Serve runs: the routes, the batches, and metrics among Ray's own.

Imported in replicas alone: ray and fastapi are optional.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from offramp.extras import require
from offramp.runtime.serving_answers import Answerer
from offramp.runtime.serving_http import receive, respond
from offramp.runtime.serving_metrics import SECONDS, Metrics, Watch
from offramp.runtime.serving_requests import Intake, Query

__all__ = ["RayMetrics", "make_api"]


class RayMetrics(Metrics):
    """Kept by Ray, which adds up replicas and exports all names with `ray_` in front."""

    def __init__(self) -> None:
        self._ray = require("ray.serve.metrics", extra="ray")
        super().__init__()

    def counter(self, name: str, text: str, label: str | None = None) -> Callable[..., None]:
        """A counter of Ray."""
        made = self._ray.Counter(name, text, () if label is None else (label,))

        def add(value: float, *values: object) -> None:
            if value > 0:  # Ray refuses to add nothing
                made.inc(value, {str(label): str(found) for found in values})

        return add

    def histogram(self, name: str, text: str) -> Callable[[float], None]:
        """A histogram of Ray."""
        made = self._ray.Histogram(name, text, list(SECONDS))

        def observe(value: float) -> None:
            made.observe(value, {})

        return observe


def make_api(
    answerer: Answerer, intake: Intake, max_batch: int, batch_wait: float, body_timeout: float
) -> FastAPI:
    """The routes of a replica.

    Args:
        answerer: Answers batches.
        intake: What requests may hold.
        max_batch: Requests that are answered together, at most.
        batch_wait: Seconds that a request waits for others.
        body_timeout: Seconds in which a body must have arrived.
    """
    serve = require("ray.serve", extra="ray")

    async def answer_all(queries: list[Query]) -> list[dict[str, Any]]:
        # In a thread, so that meanwhile others are read, and gather.
        return await run_in_threadpool(answerer, queries)

    batched = serve.batch(max_batch_size=max_batch, batch_wait_timeout_s=batch_wait)(answer_all)

    async def predict(query: Annotated[Query, Depends(receive)]) -> Response:
        return respond(await batched(query))

    api = FastAPI(openapi_url=None)  # its page loads scripts from elsewhere
    api.state.intake, api.state.body_timeout = intake, body_timeout
    api.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    api.add_api_route("/health", _health, methods=["GET"], response_model=None)
    # Ray itself sends a request's id back.
    api.add_middleware(Watch, metrics=RayMetrics(), path="/predict", echo=False)
    return api


async def _health() -> Response:
    """A replica is asked only when it has loaded its network."""
    return PlainTextResponse("ok")
