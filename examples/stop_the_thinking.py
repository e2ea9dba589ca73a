"""Watch a language model think, over an OpenAI-style API, and cut it off when it will not help.

The thinking is streamed. After every so many tokens, a second, short request asks for the answer
as it stands: the thinking so far is given back to the model, and one token is read with its
log-probability. That is a stage: an answer, a confidence, and the tokens until then. On some
questions all stages are recorded, and a policy is fitted and tuned on them; on new questions its
session says after each look whether to go on, and closes the stream if not.

    python examples/stop_the_thinking.py                        # a small stand-in for a server
    python examples/stop_the_thinking.py --url http://127.0.0.1:8000/v1 --model my-model \
        --questions questions.jsonl                             # {"question": "", "answer": ""}

Other servers may name things differently: `stream_of` and `look` are the two places to change.
"""

import argparse
import hashlib
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import offramp
from offramp import Ledger, Policy
from offramp.scorers import LogisticCorrector

LOOKS = (8, 16, 32, 64, 128)
"""After how many tokens of thinking the answer is asked for."""


@dataclass(frozen=True)
class Server:
    """An OpenAI-style API."""

    url: str
    model: str

    def post(self, body: dict[str, Any]) -> tuple[HTTPConnection, HTTPResponse]:
        """Ask for a chat completion."""
        place = urlparse(self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=60)
        text = json.dumps({"model": self.model, **body})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{place.path}/chat/completions", text, headers)
        return connection, connection.getresponse()

    def stream_of(self, question: str) -> Iterator[str]:
        """The thinking, token by token; the request ends when this is closed."""
        messages = [{"role": "user", "content": question}]
        connection, response = self.post({"messages": messages, "stream": True})
        try:
            for line in response:
                data = line.decode().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data:
                    delta = json.loads(data)["choices"][0]["delta"]
                    if token := delta.get("reasoning_content"):
                        yield token
        finally:
            connection.close()

    def look(self, question: str, thinking: str) -> tuple[str, float]:
        """The answer as it stands, and its log-probability."""
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"<think>{thinking}</think>The answer is"},
        ]
        connection, response = self.post({"messages": messages, "max_tokens": 1, "logprobs": True})
        choice = json.load(response)["choices"][0]
        connection.close()
        token = choice["logprobs"]["content"][0]
        return token["token"], token["logprob"]

    def stages(self, question: str) -> Iterator[tuple[str, float, int]]:
        """Answer, log-probability and tokens so far, by look; closing it cuts the thinking."""
        thinking, count, stream = "", 0, self.stream_of(question)
        try:
            for limit in LOOKS:
                for token in stream:
                    thinking, count = thinking + token, count + 1
                    if count == limit:
                        break
                yield *self.look(question, thinking), count
                if count < limit:  # it has thought to the end
                    return
        finally:
            stream.close()  # type: ignore[attr-defined] - a generator


def record(server: Server, questions: list[tuple[str, str]]) -> Ledger:
    """Let the model think to the end about questions with known answers; keep every look."""
    chains = [list(server.stages(question)) for question, _ in questions]
    return Ledger.from_answers(
        [[answer for answer, _, _ in chain] for chain in chains],
        log_confidence=[[log_prob for _, log_prob, _ in chain] for chain in chains],
        costs=[[tokens for _, _, tokens in chain] for chain in chains],
        labels=[answer for _, answer in questions],
        unit="tokens",
        split="all",
        normalise=str.strip,
        network=server.model,
    )


def ask(server: Server, policy: Policy, question: str) -> offramp.session.Session:
    """Think until the policy says that it is enough."""
    session = policy.start(normalise=str.strip)
    stages = server.stages(question)
    for answer, log_prob, tokens in stages:
        if session.observe(answer, log_confidence=log_prob, cost=tokens):
            break
    stages.close()  # type: ignore[attr-defined] - a generator
    return session


class StandIn(ThreadingHTTPServer):
    """Pretends to be such a server: it thinks in made-up words, and counts what it has sent."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pause = pause  # seconds per token
        self.tokens: dict[str, int] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on what it is asked about, and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()) / 2**48


class _Handler(BaseHTTPRequestHandler):
    """One request to the stand-in."""

    server: StandIn

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Stream some thinking, or answer with one token."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][0]["content"]
        self.send_response(200)
        self.end_headers()
        if not body.get("stream"):
            content = body["messages"][1]["content"]
            reply = self._answer(question, content.count("hm"))
            self.wfile.write(json.dumps({"choices": [reply]}).encode())
            return
        self.server.tokens[question] = 0
        try:
            for _ in range(int(60 + 90 * chance(question, "length"))):
                chunk = {"choices": [{"delta": {"reasoning_content": "hm "}}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.flush()
                self.server.tokens[question] += 1
                time.sleep(self.server.pause)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # the client has had enough
            return

    @staticmethod
    def _answer(question: str, thought: int) -> dict[str, Any]:
        first, second = map(int, question.removesuffix("?").split(" + "))
        needed = 200 * chance(question, "difficulty") ** 2  # tokens; some take more than there are
        is_found = thought >= needed
        odds = (1.5 if is_found else -0.7) + 3 * (chance(question, thought) - 0.5)
        wrong = first + second + 1 + int(3 * chance(question, thought, "wrong"))
        token = str(first + second if is_found else wrong)
        log_prob = -math.log1p(math.exp(-odds))
        return {"logprobs": {"content": [{"token": token, "logprob": log_prob}]}}


def sums(count: int, start: int) -> list[tuple[str, str]]:
    """Questions for the stand-in."""
    return [(f"{n} + {n % 7}?", str(n + n % 7)) for n in range(start, start + count)]


def main() -> None:
    """Record, fit, and answer new questions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--url", help="of the API, up to /v1; by default, a stand-in is started")
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--questions", type=Path, help="JSON lines with `question` and `answer`")
    parser.add_argument("--budget", type=float, default=0.5, help="share of the tokens (0.5)")
    given = parser.parse_args()
    questions = sums(count=360, start=0)
    if given.questions is not None:
        rows = map(json.loads, given.questions.read_text().splitlines())
        questions = [(row["question"], row["answer"]) for row in rows]
    known, new = questions[: len(questions) * 5 // 6], questions[len(questions) * 5 // 6 :]
    stand_in = None if given.url else StandIn()
    server = Server(given.url or stand_in.url, given.model)  # type: ignore[union-attr]
    held_out, val, test = record(server, known).partition(0.4, 0.4, 0.2)
    policy = Policy(LogisticCorrector()).fit(held_out).tune(val, "smooth").at(budget=given.budget)
    print(offramp.evaluate(policy, test), "\n")
    sessions = [ask(server, policy, question) for question, _ in new]
    right = [s.answer.strip() == answer for s, (_, answer) in zip(sessions, new, strict=True)]
    tokens = sum(session.cost or 0 for session in sessions) / len(sessions)
    whole = test.reference_cost
    print(
        f"{len(new)} new questions: {sum(right) / len(new):.0%} right with {tokens:.0f} tokens of"
    )
    print(f"thinking each, where the full chains of test have {whole:.0f}")


if __name__ == "__main__":
    main()
