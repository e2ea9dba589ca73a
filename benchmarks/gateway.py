"""A hundred clients of a gateway in front of three models under faults, beside an ideal loop.

    python benchmarks/gateway.py [--requests 1000] [--clients 100] [--seconds 0.1]

Three processes on 127.0.0.1: models that fail in every known way, the gateway, and the clients.
The ideal loop asks the same models with the same thresholds, timeouts and retries, and serves
nobody.
"""

import argparse
import asyncio
import importlib
import math
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2

import offramp
from offramp.serving import GatewayConfig
from offramp.serving.chat import Answered
from offramp.serving.gateway import Gateway

sys.path.insert(0, str(Path(__file__).parents[1]))
stand_in: Any = importlib.import_module("tests.serving.stand_in")

RATES = {"500": 0.02, "429": 0.02, "slow": 0.02, "hang": 0.005, "garbage": 0.01}
RATES["unreadable"] = 0.01
TIMEOUT, RETRIES, BACKOFF = 2.0, 2, 0.02  # of a call; as in the configuration
Ask = Callable[[str], Awaitable[str]]


def faults(requests: int) -> dict[tuple[str, str], str]:
    """Which calls go wrong: a share of each kind, for every model."""
    rng = random.Random(0)
    found = {}
    for model in stand_in.MODELS:
        for question in stand_in.questions(requests):
            drawn = rng.random()
            for kind, rate in RATES.items():
                if 0 <= drawn < rate:
                    found[model, question] = kind
                drawn -= rate
    # The last model has no one behind it.
    final = ("garbage", "unreadable")
    return {key: kind for key, kind in found.items() if key[0] != "large" or kind not in final}


def free_port() -> int:
    """A port that nobody listens at."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def process(command: list[str], address: str) -> Iterator[None]:
    """A server that answers at an address."""
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                httpx2.get(address, timeout=1)
                break
            except httpx2.TransportError:
                time.sleep(0.05)
        yield
    finally:
        child.kill()  # calls that hang would keep it
        child.wait()


async def measured(ask: Ask, requests: int, clients: int) -> tuple[int, int, list[float]]:
    """Wrong and lost answers, and the seconds of each request, of so many clients at once."""
    questions = iter(stand_in.questions(requests))
    wrong = lost = 0
    seconds = []

    async def client() -> None:
        nonlocal wrong, lost
        for question in questions:
            began = time.perf_counter()
            try:
                answer = await ask(question)
                wrong += answer != stand_in.truth(question)
            except Exception:
                lost += 1
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return wrong, lost, sorted(seconds)


async def completion(client: httpx2.AsyncClient, url: str, model: str, question: str) -> Any:  # noqa: ANN401
    """What an endpoint says."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "logprobs": True}
    found = await client.post(f"{url}/chat/completions", json=body, timeout=30)
    found.raise_for_status()
    return found.json()


def own_loop(client: httpx2.AsyncClient, url: str, limits: list[float]) -> Ask:
    """What one would write without a library, with the thresholds of the policy."""

    async def tried(model: str, question: str) -> Any:  # noqa: ANN401
        for attempt in range(RETRIES + 1):
            try:
                async with asyncio.timeout(TIMEOUT):
                    return await completion(client, url, model, question)
            except (TimeoutError, httpx2.TransportError, httpx2.HTTPStatusError):
                await asyncio.sleep(BACKOFF * 2**attempt)
            except ValueError:
                return None
        return None

    async def ask(question: str) -> str:
        answer = ""
        for model, limit in zip(stand_in.MODELS, limits, strict=True):
            found = await tried(model, question)
            if found is None or found["choices"][0]["logprobs"] is None:
                continue
            choice = found["choices"][0]
            answer = choice["message"]["content"]
            sure = math.exp(sum(token["logprob"] for token in choice["logprobs"]["content"]))
            if math.log(sure / (1 - sure)) >= limit:
                break
        return answer

    return ask


def through(gateway: Gateway) -> Ask:
    """The cascade in the clients' own process."""

    async def ask(question: str) -> str:
        assert gateway.policy is not None
        body = {"messages": [{"role": "user", "content": question}]}
        (found,) = await gateway.cascade.arun([body], gateway.policy, 30.0)
        assert isinstance(found.answer, Answered)
        return str(found.answer.form)

    return ask


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--serve-models", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_models:
        import uvicorn

        app = stand_in.StandIn(faults(given.requests), given.seconds).app
        uvicorn.run(app, port=given.serve_models, log_level="error")
        return
    rows = {}
    for name in ("own loop", "`Cascade` in the client", "gateway"):
        port, front = free_port(), free_port()
        url = f"http://127.0.0.1:{port}/v1"
        models = [sys.executable, __file__, "--serve-models", str(port)]
        models += ["--requests", str(given.requests), "--seconds", str(given.seconds)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cascade.toml"
            settings = {"call_timeout": TIMEOUT, "backoff": BACKOFF, "log": "log.jsonl"}
            settings["concurrency"] = 512
            path.write_text(stand_in.config_text(url[:-3], **settings))
            policy = stand_in.policy_for(Gateway(GatewayConfig.load(path)).cascade)
            policy.save(Path(folder) / "policy")
            path.write_text(stand_in.config_text(url[:-3], "policy", **settings))
            served = [sys.executable, "-m", "offramp", "serve", str(path), "--port", str(front)]

            async def program(
                name: str = name,
                url: str = url,
                front: int = front,
                path: Path = path,
                policy: offramp.Policy = policy,
            ) -> tuple[int, int, list[float]]:
                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
                async with httpx2.AsyncClient(limits=limits, timeout=None) as client:
                    if name == "own loop":
                        ask = own_loop(client, url, policy.thresholds.tolist())
                    elif name == "gateway":

                        async def ask(question: str) -> str:
                            own = f"http://127.0.0.1:{front}/v1"
                            found = await completion(client, own, "cascade", question)
                            return str(found["choices"][0]["message"]["content"])
                    else:
                        made = Gateway(GatewayConfig.load(path))
                        for endpoint in made._endpoints:
                            endpoint.client = client
                        ask = through(made)
                    return await measured(ask, given.requests, given.clients)

            with process(models, f"{url}/none"):
                if name == "gateway":
                    with process(served, f"http://127.0.0.1:{front}/health"):
                        rows[name] = asyncio.run(program())
                else:
                    rows[name] = asyncio.run(program())
    print(f"| {given.clients} clients, {given.requests:,} requests | wrong | lost | p50 | p95 |")
    print("|---|---|---|---|---|")
    for name, (wrong, lost, seconds) in rows.items():
        p50, p95 = (1000 * seconds[int(share * len(seconds))] for share in (0.5, 0.95))
        print(f"| {name} | {wrong} | {lost} | {p50:.0f} | {p95:.0f} |")


if __name__ == "__main__":
    main()
