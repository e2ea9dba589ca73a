"""Endpoints that speak as OpenAI's API does, as members of a cascade."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from offramp.errors import ConfigError
from offramp.runtime.members import Member, Response
from offramp.serving.gateway_config import ChatMember, TokenPrice, named

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("offramp.serving")

Completion = dict[str, Any]
REFUSED = (400, 404, 413, 422)  # states of HTTP that blame the request
MAX_REASON = 300


class Answered(NamedTuple):
    """An answer of a chat model: the form in which it is compared, and the completion."""

    form: Any
    completion: Completion


class Endpoint:
    """An endpoint that is asked with a request for a completion.

    Args:
        config: Where it is, and how it is read.
        client: Set before the first call, on the event loop of the calls.
    """

    client: "httpx2.AsyncClient"

    def __init__(self, config: ChatMember) -> None:
        self.config, self._headers = config, config.headers
        self._read = _reader(config)
        self._url = f"{config.url.rstrip('/')}/chat/completions"

    def member(self) -> Member:
        """As a member of a cascade."""
        return Member(self, name=self.config.name, timeout=self.config.timeout)

    async def __call__(self, request: Mapping[str, Any]) -> Response:
        """The response to a request; errors of HTTP that may pass are raised."""
        config = self.config
        body = {key: value for key, value in request.items() if not key.startswith("stream")}
        body |= config.parameters | {"model": config.model or config.name}
        if "logprobs" in config.confidence:
            body["logprobs"] = True
        found = await self.client.post(self._url, json=body, headers=self._headers)
        if found.status_code in REFUSED:
            return Response(error=f"HTTP {found.status_code}: {found.text[:MAX_REASON]}")
        found.raise_for_status()
        completion: Any = None
        try:
            completion = found.json()
            form, confidence = self._read(completion)
        except Exception as error:  # a model's answer may be anything
            kind = f"{type(error).__name__}: {error}"
            cost = dollars(completion, config.price)
            return Response(error=f"an answer that cannot be read: {kind}"[:MAX_REASON], cost=cost)
        cost = dollars(completion, config.price)
        return Response(Answered(form, completion), float(confidence), cost)


def dollars(completion: Any, price: TokenPrice) -> float:  # noqa: ANN401 - whatever an endpoint sends
    """What a completion costs, by the tokens that it says it took.

    Example:
        >>> usage = {"prompt_tokens": 1000, "completion_tokens": 100}
        >>> round(dollars({"usage": usage}, TokenPrice(input=0.5, output=2.0)), 6)
        0.0007
    """
    usage = completion.get("usage") if isinstance(completion, dict) else None
    if not isinstance(usage, dict):
        if price.input or price.output:
            log.warning("a completion does not say its usage, and its tokens count nothing")
        usage = {}
    tokens = price.input * _number(usage, "prompt_tokens")
    return price.call + (tokens + price.output * _number(usage, "completion_tokens")) / 1e6


def _number(usage: Mapping[str, Any], name: str) -> float:
    value = usage.get(name)
    return value if isinstance(value, int | float) else 0.0


def text_of(completion: Completion) -> str:
    """What the first choice says."""
    message = completion["choices"][0]["message"]
    content = message.get("content")
    if isinstance(content, str):
        return content
    if message.get("tool_calls"):
        return json.dumps([each["function"] for each in message["tool_calls"]], sort_keys=True)
    raise ValueError("no content")


def _reader(config: ChatMember) -> Callable[[Completion], tuple[Any, float]]:
    """Makes an answer and a confidence of a completion."""
    if ":" in config.confidence:
        found: Callable[[Completion], tuple[Any, float]] = named(config.confidence)
        return found
    if config.confidence == "json":
        answer, confidence = config.fields

        def from_json(completion: Completion) -> tuple[Any, float]:
            fields = json.loads(text_of(completion))
            return fields[answer], float(fields[confidence])

        return from_json
    is_mean = config.confidence == "mean-logprobs"

    def from_logprobs(completion: Completion) -> tuple[Any, float]:
        tokens = completion["choices"][0]["logprobs"]["content"]
        total = sum(token["logprob"] for token in tokens)
        mean = total / len(tokens) if is_mean else total
        return text_of(completion).strip(), math.exp(min(0.0, mean))

    return from_logprobs


def check_request(body: Any) -> None:  # noqa: ANN401 - what a client sent
    """Raise where a request cannot be asked about.

    Raises:
        ConfigError: With what was expected.
    """
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise ConfigError("a request must be an object with `messages`, a list")
    if body.get("n", 1) != 1:
        raise ConfigError("`n` must be 1: a policy decides about one answer")


def chunks(completion: Completion, with_usage: bool) -> list[Completion]:
    """A completion as the chunks of a stream, as OpenAI's API sends them."""
    choice = completion["choices"][0]
    kept = ("id", "created", "model", "system_fingerprint", "offramp")
    base = {key: completion[key] for key in kept if key in completion}
    base["object"] = "chat.completion.chunk"
    message = dict(choice["message"])
    if message.get("tool_calls"):
        calls = enumerate(message["tool_calls"])
        message["tool_calls"] = [{"index": number, **each} for number, each in calls]
    first = {"index": 0, "delta": message, "finish_reason": None}
    if choice.get("logprobs"):
        first["logprobs"] = choice["logprobs"]
    last = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason", "stop")}
    found = [{**base, "choices": [first]}, {**base, "choices": [last]}]
    if with_usage:
        found.append({**base, "choices": [], "usage": completion.get("usage")})
    return found
