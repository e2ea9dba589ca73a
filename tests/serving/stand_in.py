"""A stand-in for endpoints of language models: three models under faults, as an ASGI application.

A question such as `6-13` has the answer `6`. The small model knows five of seven answers, the
middle one six, and the large one all of them.
"""

import asyncio
import json
import math
from collections import Counter

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from offramp import Ledger, MaxProbability, Policy

MODELS = ("small", "middle", "large")
KNOWS = {"small": 5, "middle": 6, "large": 7}
DOLLARS = {"small": 1.0, "middle": 4.0, "large": 20.0}  # for a million tokens of either kind
TOKENS = 10, 1  # of a question and of an answer


def questions(count, start=0):
    return [f"{number % 7}-{number}" for number in range(start, start + count)]


def truth(question):
    return question.split("-")[0]


def said(model, question):
    """The answer of a model, and its confidence."""
    answer = truth(question)
    return (answer, 0.9) if int(answer) < KNOWS[model] else ("?", 0.3)


def completion(model, question):
    answer, confidence = said(model, question)
    token = {"token": answer, "logprob": math.log(confidence), "bytes": None, "top_logprobs": []}
    message = {"role": "assistant", "content": answer, "refusal": None}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "stop",
        "logprobs": {"content": [token], "refusal": None},
    }
    usage = dict(zip(("prompt_tokens", "completion_tokens"), TOKENS, strict=True))
    return {
        "id": f"chatcmpl-{question}",
        "object": "chat.completion",
        "created": 1,
        "model": f"{model}-2026",
        "choices": [choice],
        "usage": usage | {"total_tokens": sum(TOKENS)},
    }


class StandIn:
    """Answers as OpenAI's API does, with the faults that it is told to have.

    Args:
        faults: By model and question: `500`, `429`, `hang`, `slow`, `garbage` (not JSON),
            `unreadable` (billed, without log-probabilities), `400`; each once, unless its name
            ends with `!`.
        seconds: That an answer takes.
    """

    def __init__(self, faults=None, seconds=0.0):
        self.faults, self.seconds = dict(faults or {}), seconds
        self.calls, self.requests, self.active = Counter(), [], 0
        path = "/v1/chat/completions"
        self.app = Starlette(routes=[Route(path, self.answer, methods=["POST"])])

    async def answer(self, request):
        body = json.loads(await request.body())
        model, question = body["model"], body["messages"][-1]["content"]
        self.requests.append((body, dict(request.headers)))
        self.calls[model] += 1
        fault = self.faults.get((model, question), "")
        if not fault.endswith("!"):
            self.faults.pop((model, question), None)
        match fault.rstrip("!"):
            case "500":
                return JSONResponse({"error": {"message": "out of order"}}, 500)
            case "429":
                return JSONResponse({"error": {"message": "busy"}}, 429, {"Retry-After": "0.05"})
            case "400":
                return JSONResponse({"error": {"message": "too long"}}, 400)
            case "hang":
                await asyncio.sleep(3600)
            case "slow":
                await asyncio.sleep(5 * self.seconds + 0.05)
            case "garbage":
                return PlainTextResponse("<html>502 Bad Gateway</html>")
            case "unreadable":
                found = completion(model, question)
                found["choices"][0]["logprobs"] = None
                return JSONResponse(found)
        await asyncio.sleep(self.seconds)
        return JSONResponse(completion(model, question))


def policy_for(cascade, budget=0.6):
    """A policy that asks the next model where the one before says that it does not know."""
    asked = questions(210)
    cost = [DOLLARS[model] * sum(TOKENS) / 1e6 for model in MODELS]
    ledger = Ledger.from_answers(
        [[said(model, text)[0] for model in MODELS] for text in asked],
        confidence=[[said(model, text)[1] for model in MODELS] for text in asked],
        labels=[truth(text) for text in asked],
        costs=[[cost[0], sum(cost[:2]), sum(cost)]] * len(asked),
        unit="dollars",
        split="all",
        network=cascade.fingerprint(),
    )
    held_out, val, _ = ledger.partition()
    return Policy(MaxProbability()).fit(held_out).tune(val, "shared").at(max_drop=0.0)


def config_text(address, policy=None, call_timeout=1.0, **settings):
    """A configuration file for the stand-in at an address."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [] if policy is None else [f"policy = {json.dumps(str(policy))}"]
    for model in MODELS:
        price = f"{{input = {DOLLARS[model]}, output = {DOLLARS[model]}}}"
        lines += ["[[members]]", f'name = "{model}"', f'url = "{address}/v1"', f"price = {price}"]
        lines += [f"timeout = {call_timeout}"]
    return "\n".join(lines) + "\n"
