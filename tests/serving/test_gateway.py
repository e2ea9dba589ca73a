"""The gateway in front of three models under faults, driven by OpenAI's own client."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import httpx2
import openai
import pytest
import uvicorn

import offramp
from offramp.errors import ConfigError, FileFormatError, LedgerError, NetworkError
from offramp.serving import GatewayConfig
from offramp.serving.chat import Endpoint, chunks, dollars
from offramp.serving.gateway import Gateway
from offramp.serving.gateway_config import ChatMember, TokenPrice, named

from ..deployment import without_torch
from .stand_in import (
    DOLLARS,
    MODELS,
    TOKENS,
    StandIn,
    completion,
    config_text,
    policy_for,
    questions,
    truth,
)

CALL = {model: DOLLARS[model] * sum(TOKENS) / 1e6 for model in MODELS}


def configured(tmp_path, with_policy=True, **settings):
    path = tmp_path / "cascade.toml"
    path.write_text(config_text("http://models", **settings))
    if with_policy:
        cascade = Gateway(GatewayConfig.load(path)).cascade
        policy_for(cascade).save(tmp_path / "policy")
        path.write_text(config_text("http://models", "policy", **settings))
    return GatewayConfig.load(path)


@asynccontextmanager
async def running(config, stand_in):
    """A gateway, and OpenAI's client for it, without sockets."""
    made = Gateway(config)
    app = made.app()
    async with app.router.lifespan_context(app):
        upstream = httpx2.ASGITransport(app=stand_in.app)
        async with httpx2.AsyncClient(transport=upstream) as inner:
            for endpoint in made._endpoints:
                endpoint.client = inner
            outer = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
            client = openai.AsyncOpenAI(
                base_url="http://gateway/v1", api_key="mine", http_client=outer, max_retries=0
            )
            async with client:
                yield made, client
            if made._behind:
                await asyncio.wait(made._behind)


async def ask(client, question, **more):
    messages = [{"role": "user", "content": question}]
    return await client.chat.completions.create(model="cascade", messages=messages, **more)


def run(config, stand_in, program):
    async def whole():
        async with running(config, stand_in) as (made, client):
            return await program(made, client)

    return asyncio.run(whole())


def rows_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def test_a_hundred_clients_get_right_answers_from_models_under_faults(tmp_path):
    """500, 429, a hung call, a slow one, garbage: 0 wrong, 0 lost, and every dollar counts."""
    asked = questions(100)
    kinds = ["500", "429", "hang", "slow", "garbage", "unreadable", "500"]
    faults = {("small", asked[number]): kind for number, kind in enumerate(kinds)}
    faults |= {("large", asked[13]): "500", ("large", asked[20]): "hang"}
    stand_in = StandIn(faults, seconds=0.01)

    async def program(made, client):
        found = await asyncio.gather(*(ask(client, question) for question in asked))
        return found, made.metrics.page().body.decode()

    found, page = run(configured(tmp_path, log="log.jsonl", backoff=0.01), stand_in, program)
    assert [each.choices[0].message.content for each in found] == [truth(q) for q in asked]
    about = [each.offramp for each in found]
    assert {each["member"] for each in about} == {"small", "middle", "large"}
    assert about[4]["failures"] == about[5]["failures"] == ["small"]
    assert about[4]["cost"] == pytest.approx(CALL["middle"])  # nobody knows what garbage costs
    assert about[5]["cost"] == pytest.approx(CALL["small"] + CALL["middle"])
    rows = rows_of(tmp_path)
    assert len(rows) == 100
    paid = sum(cost or 0 for row in rows for cost in row["model_costs"])
    assert paid == pytest.approx(sum(each["cost"] for each in about))
    counted = [line for line in page.splitlines() if line.startswith("offramp_gateway_dollars_t")]
    assert sum(float(line.split()[-1]) for line in counted) == pytest.approx(paid)
    labels = 'path="/v1/chat/completions",status="200"'
    assert f"offramp_gateway_requests_total{{{labels}}} 100.0" in page


def test_headers_and_a_field_say_who_answered_why_and_for_how_much(tmp_path):
    async def program(made, client):
        raw = await client.chat.completions.with_raw_response.create(
            model="cascade", messages=[{"role": "user", "content": "6-6"}]
        )
        return raw.headers, raw.parse()

    headers, parsed = run(configured(tmp_path), StandIn(), program)
    assert headers["x-offramp-member"] == "large" and headers["x-offramp-why"] == "last"
    assert headers["x-offramp-asked"] == "small,middle,large"
    assert float(headers["x-offramp-cost"]) == pytest.approx(sum(CALL.values()))
    assert float(headers["x-offramp-confidence"]) == pytest.approx(0.9)
    assert float(headers["x-offramp-score"]) < 0  # of the middle model
    assert parsed.model == "large-2026" and parsed.usage.total_tokens == 11
    assert parsed.choices[0].logprobs is None  # the client has not asked for them
    assert parsed.offramp["member"] == "large"


def test_streams_are_those_of_openai(tmp_path):
    async def program(made, client):
        stream = await ask(
            client, "2-2", stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        return [chunk async for chunk in stream]

    first, last, usage = run(configured(tmp_path), StandIn(), program)
    assert first.choices[0].delta.content == "2"
    assert first.choices[0].logprobs.content[0].token == "2"
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == [] and usage.usage.prompt_tokens == 10
    assert first.offramp["member"] == "small"


def test_calls_of_tools_are_streamed_with_their_numbers():
    made = completion("small", "1-1")
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    made["choices"][0]["message"] = {"role": "assistant", "tool_calls": [call, call]}
    (first, _) = chunks(made, with_usage=False)
    assert [each["index"] for each in first["choices"][0]["delta"]["tool_calls"]] == [0, 1]


def test_the_log_is_a_ledger_in_which_nothing_is_filled_in(tmp_path):
    async def program(made, client):
        await asyncio.gather(*(ask(client, question) for question in questions(70)))

    config = configured(tmp_path, log="log.jsonl")
    run(config, StandIn(), program)
    ledger = offramp.Ledger.load(tmp_path / "log.jsonl", split="all")
    lengths = [{5: 2, 6: 3}.get(number % 7, 1) for number in range(70)]
    order = [row["messages"][-1]["content"] for row in rows_of(tmp_path)]
    wanted = [lengths[int(question.split("-")[1])] for question in order]
    assert ledger.lengths.tolist() == wanted
    assert ledger.unit == "dollars"
    assert ledger.reference_cost == pytest.approx(CALL["large"])
    policy = offramp.Policy.load(config.policy)
    assert policy.network == ledger.network


def test_shadows_make_the_next_ledger(tmp_path):
    async def program(made, client):
        found = await asyncio.gather(*(ask(client, question) for question in questions(40)))
        await asyncio.wait(made._behind)
        return found, made.metrics.page().body.decode()

    stand_in = StandIn(seconds=0.01)
    found, page = run(configured(tmp_path, log="log.jsonl", shadow=1.0), stand_in, program)
    assert [each.choices[0].message.content for each in found] == [truth(q) for q in questions(40)]
    assert stand_in.calls == {model: 40 for model in MODELS}  # none was asked twice
    ledger = offramp.Ledger.load(tmp_path / "log.jsonl", split="all")
    assert ledger.lengths is None and len(ledger) == 40
    assert ledger.cost_model.alone == pytest.approx(list(CALL.values()))
    assert 'dollars_total{kind="shadow",member="large"}' in page


def test_without_a_policy_the_last_member_answers_and_shadows_make_the_first_ledger(tmp_path):
    async def program(made, client):
        found = await asyncio.gather(*(ask(client, question) for question in questions(40)))
        return {each.offramp["member"] for each in found}

    stand_in = StandIn()
    config = configured(tmp_path, with_policy=False, log="log.jsonl", shadow=1.0)
    assert run(config, stand_in, program) == {"large"}
    table = offramp.Ledger.load(tmp_path / "log.jsonl", split="all")
    assert len(table) == 40 and table.network == Gateway(config).cascade.fingerprint()


def test_a_log_in_which_nobody_asked_the_last_model_is_no_ledger(tmp_path):
    async def program(made, client):
        await ask(client, "2-2")

    run(configured(tmp_path, log="log.jsonl"), StandIn(), program)
    with pytest.raises(LedgerError, match="cost of the last model is not known of any sample"):
        offramp.Ledger.load(tmp_path / "log.jsonl", split="all")


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [("500!", 503, "every member failed: small: HTTPStatusError"), ("400!", 400, "too long"),
     ("hang!", 504, "no member has answered in time")],
)  # fmt: skip
def test_failures_are_those_of_openai(tmp_path, fault, status, message):
    async def program(made, client):
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, "2-2")
        return caught.value

    faults = {(model, "2-2"): fault for model in MODELS}
    config = configured(tmp_path, backoff=0.0, retries=1, timeout=0.4)
    error = run(config, StandIn(faults), program)
    assert error.status_code == status and message in str(error)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 400, "the body must be JSON: Expecting"),
        (b"", 400, "the body must be JSON"),
        (b"[" * 4000, 400, "the body must be JSON"),
        (b'{"messages": "hello"}', 400, "an object with `messages`, a list"),
        (b'{"messages": [], "n": 2}', 400, "`n` must be 1"),
        (b" " * 5000, 413, "a body may have 4,096 bytes"),
    ],
)
def test_requests_that_cannot_be_asked_are_refused(tmp_path, content, status, message):
    async def program(made, client):
        return await client._client.post("http://gateway/v1/chat/completions", content=content)

    reply = run(configured(tmp_path, max_bytes=4096), StandIn(), program)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_clients_need_the_key_of_the_gateway(tmp_path, monkeypatch):
    async def program(made, client):
        return (await ask(client, "2-2")).offramp["member"]

    config = configured(tmp_path)
    monkeypatch.setenv("OFFRAMP_API_KEY", "mine")
    assert run(config, StandIn(), program) == "small"
    monkeypatch.setenv("OFFRAMP_API_KEY", "other")
    with pytest.raises(openai.AuthenticationError, match="send the key of this gateway"):
        run(config, StandIn(), program)


def test_members_get_their_own_keys_models_and_parameters(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALL_KEY", "secret")
    config = configured(tmp_path)
    stand_in = StandIn()

    async def program(made, client):
        member = ChatMember(
            name="one", model="small", url="http://models/v1/", key="SMALL_KEY",
            price=TokenPrice(),
            parameters={"temperature": 0.5},
        )  # fmt: skip
        endpoint = Endpoint(member)
        endpoint.client = made._endpoints[0].client
        return await endpoint({"messages": [{"content": "2-2"}], "stream": True, "top_p": 0.1})

    response = run(config, stand_in, program)
    body, headers = stand_in.requests[0]
    assert headers["authorization"] == "Bearer secret"
    assert body["model"] == "small" and body["temperature"] == 0.5 and body["top_p"] == 0.1
    assert body["logprobs"] is True and "stream" not in body
    assert response.answer.form == "2" and response.confidence == pytest.approx(0.9)
    monkeypatch.delenv("SMALL_KEY")
    with pytest.raises(ConfigError, match=r"key of `one` is not set: .* variable SMALL_KEY"):
        Endpoint(ChatMember(name="one", url="x", key="SMALL_KEY", price=TokenPrice()))


@pytest.mark.parametrize("field", ["input", "output", "call"])
def test_a_negative_price_is_refused(field):
    with pytest.raises(ConfigError, match=f"`price.{field} of one` must be at least 0, got -5"):
        ChatMember(name="one", url="x", price=TokenPrice(**{field: -5.0}))


def halves(made):
    return made["choices"][0]["message"]["content"], 0.5


@pytest.mark.parametrize(
    ("confidence", "content", "expected"),
    [
        ("mean-logprobs", "4", ("4", 0.8)),
        ("json", '{"answer": 4, "confidence": 0.7}', (4, 0.7)),
        (f"{__name__}:halves", "x", ("x", 0.5)),
    ],
)
def test_answers_and_confidences_are_read_as_configured(confidence, content, expected):
    member = ChatMember(name="one", url="x", price=TokenPrice(), confidence="json")
    if confidence != f"{__name__}:halves":
        member = ChatMember(name="one", url="x", price=TokenPrice(), confidence=confidence)
    made = completion("small", "4-4")
    made["choices"][0]["message"]["content"] = content
    tokens = [{"logprob": -0.1}, {"logprob": -0.3462871}]
    made["choices"][0]["logprobs"]["content"] = tokens
    read = Endpoint(member)._read if ":" not in confidence else halves
    answer, sure = read(made)
    assert (answer, sure) == (expected[0], pytest.approx(expected[1]))


def test_a_function_that_reads_is_named_by_its_place():
    assert named("math:sqrt")(4) == 2
    for place in ("math:root", "no_such_module:x", "math:pi"):
        with pytest.raises(ConfigError, match=f"'{place}' must name a function"):
            named(place)


def test_tokens_that_are_not_stated_count_nothing_and_warn(caplog):
    with caplog.at_level(logging.WARNING, logger="offramp.serving"):
        assert dollars({}, TokenPrice(input=1.0, call=0.25)) == 0.25
    assert "does not say its usage" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"shadow": 0.5}, FileFormatError, "give `log`, a file"),
        ({"shadow": 2.0, "log": "x"}, FileFormatError, r"`shadow` must lie in \[0, 1\]"),
        ({"shaddow": 0.5}, FileFormatError, "cascade.toml: .*unknown field `shaddow`"),
        ({"timeout": "soon"}, FileFormatError, "`timeout` must be a number, got a text"),
        ({"timeout": 0}, FileFormatError, "`timeout` must be above 0"),
        ({"certified": True}, ConfigError, "of a policy: give `policy`"),
        ({"policy": "none"}, FileFormatError, "no policy at"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        Gateway(configured(tmp_path, with_policy=False, **settings))


def test_a_gateway_refuses_other_policies_and_uncertified_ones(tmp_path, splits):
    config = configured(tmp_path)
    with pytest.raises(ConfigError, match="is not certified: certify the policy"):
        Gateway(GatewayConfig.load(configured_again(tmp_path, certified=True)))
    other = offramp.Policy(offramp.MaxProbability()).fit(splits["held_out"])
    other.tune(splits["val"]).at(budget=0.5).save(config.policy)
    with pytest.raises(NetworkError, match="fitted"):
        Gateway(config)
    with pytest.raises(FileFormatError, match="there is no file at"):
        GatewayConfig.load(tmp_path / "other.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("members = [")
    with pytest.raises(FileFormatError, match=r"broken\.toml is not valid TOML"):
        GatewayConfig.load(broken)


def configured_again(tmp_path, **settings):
    path = tmp_path / "cascade.toml"
    path.write_text(config_text("http://models", "policy", **settings))
    return path


def test_the_routes_beside_say_what_is_served(tmp_path):
    async def program(made, client):
        models = [each.id async for each in client.models.list()]
        info = (await client._client.get("http://gateway/info")).json()
        health = (await client._client.get("http://gateway/health")).text
        return models, info, health

    models, info, health = run(configured(tmp_path), StandIn(), program)
    assert (models, health, info["members"]) == (["cascade"], "ok", list(MODELS))
    assert info["guarantee"] is None and info["policy"]


def test_several_workers_are_refused(tmp_path):
    from offramp.serving import ServeConfig, serve_gateway

    with pytest.raises(ConfigError, match="leave `workers` at 1"):
        serve_gateway(configured(tmp_path), ServeConfig(workers=2))


def test_the_command_serves_a_file_without_torch(tmp_path):
    """Over sockets, as a process of its own; Ctrl-C ends it with 0."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        models, front = one.getsockname()[1], other.getsockname()[1]
    inner = uvicorn.Server(uvicorn.Config(StandIn().app, port=models, log_config=None))
    threading.Thread(target=inner.run, daemon=True).start()
    path = tmp_path / "cascade.toml"
    path.write_text(config_text(f"http://127.0.0.1:{models}"))
    policy_for(Gateway(GatewayConfig.load(path)).cascade).save(tmp_path / "policy")
    path.write_text(config_text(f"http://127.0.0.1:{models}", "policy", log="log.jsonl"))
    command = [sys.executable, "-m", "offramp", "serve", str(path), "--port", str(front)]
    (tmp_path / "no").mkdir()
    options = {"env": without_torch(tmp_path / "no"), "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as server:
        said = server.stderr.readline()
        assert f"serving small, middle, large at http://127.0.0.1:{front}" in said
        with openai.OpenAI(base_url=f"http://127.0.0.1:{front}/v1", api_key="none") as client:
            found = [
                client.chat.completions.create(
                    model="cascade", messages=[{"role": "user", "content": question}]
                )
                for question in questions(14)
            ]
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    inner.should_exit = True
    assert [each.choices[0].message.content for each in found] == [truth(q) for q in questions(14)]
    assert len(rows_of(tmp_path)) == 14
