"""Chains of thought that a policy stops, in `transformers` and over streams."""

import asyncio
from types import SimpleNamespace

import pytest

from offramp import Ledger, MaxProbability, Policy
from offramp.errors import ConfigError
from offramp.runtime import StopThinking, Thought, athink, think
from offramp.runtime.thinking import answer_among

AT = [4, 8, 16]


def chain(number, tokens):
    """The answer after some tokens, and its confidence: sure from 4, 8 or 16 tokens on."""
    known = tokens >= AT[number % 3]
    return ("yes", 0.95) if known else ("no", 0.3 + 0.001 * (number % 7))


@pytest.fixture(scope="module")
def policy():
    numbers = range(210)
    ledger = Ledger.from_answers(
        [[chain(number, tokens)[0] for tokens in AT] for number in numbers],
        confidence=[[chain(number, tokens)[1] for tokens in AT] for number in numbers],
        labels=["yes"] * 210,
        costs=[tokens + 2 * look for look, tokens in enumerate(AT, start=1)],
        unit="tokens",
        split="all",
    )
    held_out, val, _ = ledger.partition()
    return Policy(MaxProbability()).fit(held_out).tune(val, "shared").at(max_drop=0.0)


class Stream:
    """Chunks of an OpenAI-style API, a token each."""

    def __init__(self, tokens=40, field="content"):
        self.sent, self.closed, self._tokens, self._field = 0, False, tokens, field

    def _chunk(self):
        self.sent += 1
        delta = SimpleNamespace(**{"content": None, self._field: "x"})
        return SimpleNamespace(choices=[SimpleNamespace(delta=delta)])

    def __iter__(self):
        yield SimpleNamespace(choices=[])  # as the usage comes
        yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=None))])
        for _ in range(self._tokens):
            yield self._chunk()

    async def __aiter__(self):
        for chunk in self:
            await asyncio.sleep(0)
            yield chunk

    def close(self):
        self.closed = True


class AsyncStream(Stream):
    async def close(self):
        self.closed = True


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_streams_are_closed_when_the_policy_stops(policy, number, field):
    stream = Stream(field=field)
    found = think(stream, Thought(policy, AT, 2), lambda text: chain(number, len(text)))
    assert stream.closed and stream.sent == found.tokens == AT[number]
    assert (found.answer, found.stopped) == ("yes", True)
    assert found.cost == AT[number] + 2 * (number + 1)
    assert found.why == ("last" if number == 2 else "sure")

    async def ask(text):
        return chain(number, len(text))

    again = AsyncStream(field=field)
    other = asyncio.run(athink(again, Thought(policy, AT, 2), ask))
    assert again.closed and (other.looks, other.why) == (found.looks, found.why)


def test_without_a_policy_the_looks_are_a_ledger():
    stream = Stream(tokens=10)
    thought = think(stream, Thought(None, AT, 3), lambda text: chain(1, len(text)))
    assert stream.closed and not thought.stopped and thought.why is None
    assert [tuple(look) for look in thought.looks] == [("no", 0.301, 7), ("yes", 0.95, 14)]
    assert (thought.answer, thought.cost) == ("yes", 16)


def test_chains_that_end_before_the_first_look_have_no_answer(policy):
    thought = think(Stream(tokens=2), Thought(policy, AT), lambda text: chain(0, 9))
    assert (thought.answer, thought.looks, thought.tokens) == (None, [], 2)


def test_a_failure_closes_the_stream(policy):
    def ask(text):
        raise ConnectionError

    stream = Stream()
    with pytest.raises(ConnectionError):
        think(stream, Thought(policy, AT), ask)
    assert stream.closed


def test_stages_that_a_policy_leaves_out_are_not_asked(policy):
    ledger = Ledger.from_answers(
        [[chain(n, t)[0] for t in AT] for n in range(210)],
        confidence=[[chain(n, t)[1] for t in AT] for n in range(210)],
        labels=["yes"] * 210,
        costs=AT,
        split="all",
    )
    held_out, val, _ = (part.keep_exits([0, 2]) for part in ledger.partition())
    fewer = Policy(MaxProbability()).fit(held_out).tune(val, "shared").at(max_drop=0.0)
    found = think(Stream(), Thought(fewer, AT), lambda text: chain(1, len(text)))
    assert [look.cost for look in found.looks] == [4, 16]


@pytest.mark.parametrize("at", [[], [8, 4], [4, 4], [-1, 4]])
def test_numbers_of_tokens_must_grow(at):
    with pytest.raises(ConfigError, match="`at` must be growing numbers of tokens"):
        Thought(None, at)


def test_a_policy_of_more_stages_is_refused(policy):
    with pytest.raises(ConfigError, match="fitted for stage 2, and `at` has 2 numbers"):
        Thought(policy, AT[:2])


@pytest.fixture(scope="module")
def tiny():
    """A causal language model that has learned nothing."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        pad_token_id=0,
        bos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config).eval()


def test_generate_stops_where_the_policy_does(policy, tiny):
    import torch

    prompt = torch.randint(2, 32, (3, 5))
    asked = []

    def ask(tokens):
        row = next(n for n in range(3) if torch.equal(tokens[:5], prompt[n]))
        asked.append((row, len(tokens) - 5))
        return chain(row, len(tokens) - 5)

    stop = StopThinking(policy, AT, ask, prompt_tokens=5)
    options = {"max_new_tokens": 30, "do_sample": False}
    out = tiny.generate(prompt, stopping_criteria=[stop], **options)
    assert [thought.tokens for thought in stop.thoughts] == AT
    assert out.shape[1] == 5 + 16  # the slowest of the three
    assert asked == [(0, 4), (1, 4), (2, 4), (1, 8), (2, 8), (2, 16)]
    alone = StopThinking(policy, AT, ask, prompt_tokens=5)
    assert tiny.generate(prompt[:1], stopping_criteria=[alone], **options).shape[1] == 5 + 4
    assert alone.thoughts[0].answer == "yes" and alone.thoughts[0].why == "sure"


def test_answers_are_read_from_the_models_next_token(tiny):
    import torch

    tokens, suffix = torch.randint(2, 32, (7,)), torch.tensor([3, 4])
    options = torch.tensor([5, 6, 7])
    answer, confidence = answer_among(tiny, suffix, options, ["a", "b", "c"])(tokens)
    with torch.no_grad():
        logits = tiny(torch.cat([tokens, suffix])[None]).logits[0, -1, options]
    assert answer == "abc"[int(logits.argmax())]
    assert confidence == pytest.approx(float(logits.softmax(0).max()))
