"""A gateway: `/v1/chat/completions` as OpenAI's API has it, answered by a cascade of endpoints."""

import asyncio
import contextlib
import json
import logging
import math
import os
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response as Reply
from starlette.routing import Route

from offramp import __version__
from offramp.errors import ConfigError, OfframpError
from offramp.imports import require
from offramp.policy import Policy
from offramp.runtime.cascade import Cascade
from offramp.runtime.cascade_run import CascadeAnswer
from offramp.runtime.members import Response
from offramp.serving.chat import Answered, Endpoint, check_request, chunks
from offramp.serving.config import API_KEY
from offramp.serving.gateway_config import GatewayConfig, named
from offramp.serving.metrics import RequestMetrics
from offramp.serving.middleware import Observed, bearer_token, same_text

log = logging.getLogger("offramp.serving")
PATHS = ("/v1/chat/completions", "/v1/models", "/health", "/info", "/metrics")


class RefusedError(Exception):
    """A request that is not answered, as OpenAI's API words it."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    def reply(self) -> JSONResponse:
        """The error as JSON."""
        error = {"message": str(self), "type": self.kind, "param": None, "code": None}
        return JSONResponse({"error": error}, self.status)


class Gateway:
    """Answers requests with a cascade of endpoints, and writes down what it decided.

    Args:
        config: The members, the policy, and limits.

    Raises:
        ConfigError, NetworkError, FileFormatError: They do not fit together.
        MissingExtraError: The extra `serve` is not installed.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._http = require("httpx2", extra="serve")
        self.config = config
        self._endpoints = [Endpoint(each) for each in config.members]
        form_of = named(config.normalise) if config.normalise else None

        def normalise(answered: Answered) -> Any:  # noqa: ANN401
            return answered.form if form_of is None else form_of(answered.form)

        self._normalise = normalise
        self.cascade = Cascade(
            [each.member() for each in self._endpoints],
            unit="dollars",
            concurrency=config.concurrency,
            retries=config.retries,
            backoff=config.backoff,
            normalise=normalise,
        )
        self.policy = self._policy()
        if config.log is not None:
            Path(config.log).parent.mkdir(parents=True, exist_ok=True)
        self._api_key = os.environ.get(API_KEY) or None
        self._behind: set[asyncio.Task[None]] = set()
        self.metrics = GatewayMetrics(self.cascade.stage_names)

    def _policy(self) -> Policy | None:
        config = self.config
        if config.policy is None:
            if config.certified or config.budget is not None:
                raise ConfigError("`certified` and `budget` are of a policy: give `policy`")
            return None
        found = Policy.load(config.policy)
        found = found if config.budget is None else found.at(budget=config.budget)
        self.cascade.check_policy(found)
        if config.certified and found.guarantee is None:
            raise ConfigError(
                f"the operating point of {config.policy} is not certified: certify the policy "
                "(offramp certify), or leave `certified` out"
            )
        return found

    def app(self) -> Starlette:
        """The application, with all routes; any ASGI server can run it."""
        routes = [
            Route("/v1/chat/completions", self._completions, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/health", lambda _: PlainTextResponse("ok"), methods=["GET"]),
            Route("/info", self._info, methods=["GET"]),
            Route("/metrics", lambda _: self.metrics.page(), methods=["GET"]),
        ]
        before = [Middleware(Observed, self.metrics)]
        made = Starlette(routes=routes, middleware=before, lifespan=self._lifespan)
        made.state.metrics = self.metrics
        return made

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """One client for all endpoints, on the server's event loop."""
        limits = self._http.Limits(max_connections=None, max_keepalive_connections=256)
        async with self._http.AsyncClient(timeout=None, limits=limits) as client:
            for endpoint in self._endpoints:
                endpoint.client = client
            yield
            if self._behind:  # what shadows have asked for is paid, and belongs into the log
                await asyncio.wait(self._behind, timeout=self.config.timeout)

    async def _completions(self, request: Request) -> Reply:
        try:
            return await self._answer(await self._body(request))
        except RefusedError as error:
            return error.reply()
        except OfframpError as error:
            log.exception("a request could not be answered")
            return RefusedError(500, str(error), "server_error").reply()

    async def _body(self, request: Request) -> dict[str, Any]:
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > self.config.max_bytes:
                raise RefusedError(413, f"a body may have {self.config.max_bytes:,} bytes")
        if self._api_key and not same_text(bearer_token(request.headers), self._api_key):
            raise RefusedError(401, "send the key of this gateway as Authorization: Bearer KEY")
        try:
            body: dict[str, Any] = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body must be JSON: {error}") from None
        try:
            check_request(body)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        return body

    async def _answer(self, body: dict[str, Any]) -> Reply:
        found = await self._asked(body)
        shadow = random.random() < self.config.shadow
        behind = asyncio.create_task(self._write_down(body, found, shadow))
        self._behind.add(behind)
        behind.add_done_callback(self._done)
        if not shadow:
            await behind  # a decision is in the log before it is sent
        if found.answer is None:
            raise _all_failed(found)
        about = self._about(found)
        completion = {**found.answer.completion, "offramp": about}
        if not body.get("logprobs"):
            # They were asked for to read the confidence, and not by the client.
            choices = completion["choices"]
            completion["choices"] = [{**each, "logprobs": None} for each in choices]
        headers = {
            f"x-offramp-{name}": _header(value)
            for name, value in about.items()
            if value not in (None, [])
        }
        if not body.get("stream"):
            return JSONResponse(completion, headers=headers)
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        lines = [f"data: {json.dumps(each)}\n\n" for each in chunks(completion, with_usage)]
        stream = iter([*lines, "data: [DONE]\n\n"])
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def _done(self, behind: asyncio.Task[None]) -> None:
        self._behind.discard(behind)
        if not behind.cancelled() and behind.exception() is not None:
            log.error("a decision was not written down: %s", behind.exception())

    async def _asked(self, body: dict[str, Any]) -> CascadeAnswer:
        """What the policy comes to; without one, what the last member says."""
        if self.policy is not None:
            deadline = self.config.timeout
            (found,) = await self.cascade.arun([body], self.policy, deadline)
            return found
        last = self.cascade.num_stages - 1
        others = {stage: Response(error="not asked") for stage in range(last)}
        response = (await self.cascade.arecord_item(body, others))[last]
        name = self.config.members[-1].name
        sure = math.nan if response.confidence is None else response.confidence
        failures = (name,) if response.error else ()
        cost, why = response.cost or 0.0, "failed" if response.error else "last"
        answer, asked = response.answer, {last: response}
        return CascadeAnswer(answer, sure, last, name, cost, why, failures, asked=asked)

    async def _write_down(self, body: dict[str, Any], found: CascadeAnswer, shadow: bool) -> None:
        """Count a decision and append it to the log, with the other members if it has a shadow."""
        asked = dict(found.asked)
        self.metrics.add(found, asked, "answer")
        if shadow:
            everything = dict(enumerate(await self.cascade.arecord_item(body, asked)))
            others = {stage: everything[stage] for stage in everything.keys() - asked.keys()}
            self.metrics.add(None, others, "shadow")
            asked = everything
        if self.config.log is None:
            return
        stages = [asked.get(stage, Response(error="not asked")) for stage in
                  range(self.cascade.num_stages)]  # fmt: skip
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "answers": [None if each.error else self._normalise(each.answer) for each in stages],
            "confidence": [None if each.error else each.confidence for each in stages],
            "mask": [not each.error for each in stages],
            "model_costs": [each.cost for each in stages],
            "unit": "dollars",
            "network": self.cascade.fingerprint(),
            "decision": self._about(found),
            "shadow": shadow,
            "errors": {stage: each.error for stage, each in asked.items() if each.error},
            "messages": body["messages"],
        }
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        with Path(self.config.log).open("a", encoding="utf-8") as file:
            file.write(line)

    def _about(self, found: CascadeAnswer) -> dict[str, Any]:
        """Which member answered, why, for how much, and with which score."""
        numbers = {"confidence": found.confidence, "score": found.score}
        return {
            "member": found.member,
            "why": found.why,
            "cost": found.cost,
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "asked": [self.cascade.stage_names[stage] for stage in sorted(found.asked)],
            "failures": list(found.failures),
        }

    async def _models(self, _: Request) -> Reply:
        model = {"id": self.config.model, "object": "model", "created": 0, "owned_by": "offramp"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _info(self, _: Request) -> Reply:
        policy = self.policy
        return JSONResponse(
            {
                "members": self.cascade.stage_names,
                "policy": None if policy is None else policy.fingerprint(),
                "guarantee": None if policy is None else policy.guarantee,
                "shadow": self.config.shadow,
                "version": __version__,
            }
        )


class GatewayMetrics(RequestMetrics):
    """What a gateway has done and paid, for Prometheus.

    Args:
        members: Their names, which are listed from the start.
    """

    def __init__(self, members: Sequence[str]) -> None:
        super().__init__(PATHS, "offramp_gateway")
        self._members = list(members)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"offramp_gateway_{name}", text, labels, registry=self.registry)

        self._answers = counter("answers", "Answers, by member and reason", "member", "why")
        self._calls = counter("calls", "Members asked, by outcome", "member", "outcome", "kind")
        self._dollars = counter("dollars", "Dollars paid, by member", "member", "kind")
        for member in members:
            self._dollars.labels(member, "answer")

    def add(self, found: CascadeAnswer | None, asked: Mapping[int, Response], kind: str) -> None:
        """Count an answer, and what was asked for it; `kind` is `answer` or `shadow`."""
        if found is not None and found.answer is not None:
            self._answers.labels(found.member, found.why).inc()
        for stage, response in asked.items():
            name = self._members[stage]
            self._calls.labels(name, "failed" if response.error else "answered", kind).inc()
            self._dollars.labels(name, kind).inc(response.cost or 0.0)


def _header(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, float):
        return f"{value:.9g}"
    return ",".join(value) if isinstance(value, list) else str(value)


def _all_failed(found: CascadeAnswer) -> RefusedError:
    """Why there is no answer: the request, if all members say so, else the members."""
    errors = [response.error for response in found.asked.values()]
    refused = [re.match(r"HTTP (\d+): ", error) for error in errors]
    if errors and all(refused):
        assert refused[-1] is not None
        return RefusedError(int(refused[-1][1]), errors[-1])
    if found.why == "deadline":
        return RefusedError(504, "no member has answered in time", "server_error")
    why = "; ".join(
        f"{name}: {error}" for name, error in zip(found.failures, errors, strict=False)
    )
    return RefusedError(503, f"every member failed: {why}", "server_error")


def gateway(config: GatewayConfig) -> Starlette:
    """The ASGI application of a gateway; see docs/guides/deploy.md."""
    return Gateway(config).app()
