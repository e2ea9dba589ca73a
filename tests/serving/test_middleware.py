"""What stands before an application: ids, counts and logs, limits, and keys."""

import asyncio
import json
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from offramp.serving import AppConfig
from offramp.serving.logs import JsonLines, log_as_json
from offramp.serving.metrics import RequestMetrics
from offramp.serving.middleware import FAULT, HEALTH, Throttle, guards

from .asgi import GONE, LATER, NOTHING_MORE, Client

log = logging.getLogger("offramp.serving")


class Guarded(Client):
    """An application of routes that behave badly, and what it has seen."""

    def __init__(self, keys=(), mount="", **limits):
        self.metrics = RequestMetrics(["/echo"], "other")
        self.ended, self.may = [], asyncio.Event()
        self.before = guards(AppConfig(**limits), self.metrics, keys=keys)
        ways = [self.echo, self.crash, self.wait, self.stream, self.refuse, self.late]
        routes = [Route(f"/{way.__name__}", way, methods=["POST"]) for way in ways]
        routes += [Route(path, lambda _: PlainTextResponse("ok")) for path in HEALTH]
        app = Starlette(routes=routes, middleware=self.before)
        super().__init__(Starlette(routes=[Mount(mount, app)]) if mount else app)

    async def echo(self, request):
        log.warning("echoed")
        return PlainTextResponse(await request.body())

    async def crash(self, request):
        raise RuntimeError("a fault")

    async def refuse(self, request):
        raise HTTPException(418)

    async def wait(self, request):
        try:
            await self.may.wait()
            return PlainTextResponse("waited")
        finally:
            self.ended.append("waited" if self.may.is_set() else "cancelled")

    async def stream(self, request):
        async def parts():
            yield b"first"
            raise RuntimeError("in the middle")

        return StreamingResponse(parts())

    async def late(self, request):
        async def after():
            await asyncio.sleep(0.1)
            self.ended.append("after the answer")

        return PlainTextResponse("ok", background=after)

    def ask(self, path, body=b"", **headers):
        return self.request("POST", path, body, **headers)

    def counted(self, status, path="other"):
        labels = {"path": path, "status": str(status)}
        return self.metrics.registry.get_sample_value("other_requests_total", labels) or 0

    @property
    def open(self):
        return self.metrics.registry.get_sample_value("other_open_requests")


def test_an_exception_is_a_500_that_is_counted_and_logged_with_its_traceback(caplog):
    client = Guarded(access_log=False)
    found = client.ask("/crash", **{"X-Request-ID": "mine"})
    assert found.status == 500 and found.json() == {"detail": FAULT}
    assert found.headers["x-request-id"] == "mine"
    assert client.counted(500) == 1 and client.open == 0
    fault, answer = caplog.records
    assert "a fault" in fault.exc_text and answer.fields["status"] == 500


def test_an_answer_that_breaks_off_is_counted_as_a_fault():
    client = Guarded()
    with pytest.raises(RuntimeError, match="in the middle"):
        client.ask("/stream")
    assert client.counted(500) == 1


@pytest.mark.parametrize("given", ["", "x" * 201, "a\tb"])
def test_every_answer_has_an_id_where_the_client_gave_none(given):
    client = Guarded()
    for path, status in (("/echo", 200), ("/refuse", 418), ("/nowhere", 404)):
        found = client.ask(path, **{"X-Request-ID": given})
        assert found.status == status
        assert re.fullmatch("[0-9a-f]{32}", found.headers["x-request-id"])


def test_all_logs_are_lines_of_json_with_the_id_of_the_request(capsys):
    names = ("offramp", "offramp.access", "uvicorn")
    before = {
        name: (logging.getLogger(name).handlers[:], logging.getLogger(name).level)
        for name in names
    }
    try:
        log_as_json()
        client = Guarded()
        client.ask("/echo", b"x", **{"X-Request-ID": "mine"})
        client.ask("/crash", **{"X-Request-ID": "other"})
        client.request("GET", "/health")
        logging.getLogger("uvicorn.error").warning("of the server")
    finally:
        for name, (handlers, level) in before.items():
            logging.getLogger(name).handlers[:] = handlers
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = True
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # A server of an earlier test may still be shutting down in its thread.
    lines = [line for line in lines if line["message"] != "Shutting down"]
    assert [(line["message"], line.get("request_id")) for line in lines] == [
        ("echoed", "mine"),
        ("POST /echo 200", "mine"),
        ("a request could not be answered", "other"),
        ("POST /crash 500", "other"),
        ("of the server", None),
    ]  # and no probe
    assert lines[1]["client"] == "127.0.0.1" and lines[1]["ms"] >= 0
    assert "RuntimeError: a fault" in lines[2]["traceback"]


def test_a_line_of_the_log_cannot_be_forged():
    record = logging.makeLogRecord({"msg": 'a\n{"level": "ERROR"}', "levelname": "INFO"})
    assert len(JsonLines().format(record).splitlines()) == 1


def test_work_for_a_client_that_left_is_stopped():
    client = Guarded()
    assert client.ask("/wait", [b"x", LATER, GONE]) is None
    assert client.ended == ["cancelled"]
    assert client.counted(499) == 1 and client.open == 0


def test_what_follows_the_answer_is_not_stopped():
    client = Guarded()
    assert client.ask("/late", [b"x", LATER, GONE]).status == 200
    assert client.ended == ["after the answer"]


def test_a_request_that_takes_too_long_is_stopped_and_asked_to_come_back():
    client = Guarded(request_timeout=0.05)
    found = client.ask("/wait")
    assert found.status == 504 and "no answer within 0.05 seconds" in found.json()["detail"]
    assert found.headers["retry-after"] == "1" and client.ended == ["cancelled"]


def test_requests_in_flight_are_limited_and_health_is_not():
    client = Guarded(max_requests=2)
    with ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(client.ask, "/wait") for _ in range(2)]
        while client.open != 2:
            pass
        found = client.ask("/echo", b"x")
        assert found.status == 503 and found.headers["retry-after"] == "1"
        assert "more than 2 requests are open" in found.json()["detail"]
        assert {client.get(path).status for path in HEALTH} == {200}
        client._loop.call_soon_threadsafe(client.may.set)
        assert [each.result().status for each in waiting] == [200, 200]
    assert client.ask("/echo", b"x").status == 200


def test_bodies_of_open_requests_are_limited_together(monkeypatch):
    monkeypatch.setattr("offramp.serving.middleware.BODIES", 2)
    client = Guarded(max_bytes=10)
    with ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(client.ask, "/wait", b"x" * 9) for _ in range(2)]
        while client.open != 2:
            pass
        found = client.ask("/echo", b"x" * 9)
        assert found.status == 503 and "take all room" in found.json()["detail"]
        client._loop.call_soon_threadsafe(client.may.set)
        assert [each.result().status for each in waiting] == [200, 200]
    assert client.ask("/echo", b"x" * 9).text == b"x" * 9


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x" * 11, {}, 413),
        ([b"x" * 6, b"x" * 6, NOTHING_MORE], {}, 413),
        (b"", {"Content-Length": "99"}, 413),
        (b"", {"Content-Length": "9" * 5000}, 413),
        (b"", {"Content-Length": "many"}, 413),
        ([b"x", NOTHING_MORE], {}, 408),
        (b"x" * 10, {}, 200),
    ],
)
def test_bodies_are_limited_in_size_and_time(body, headers, status):
    client = Guarded(max_bytes=10, body_timeout=0.05)
    assert client.ask("/echo", body, **headers).status == status
    assert client.counted(status, "/echo") == 1 and client.open == 0


def test_a_client_that_leaves_in_mid_upload_is_counted():
    client = Guarded()
    assert client.ask("/echo", [b"12", GONE]) is None
    assert client.counted(499, "/echo") == 1


def test_wrong_keys_are_throttled_and_right_ones_are_not():
    client = Guarded(keys=["one", "two"])
    statuses = [client.ask("/echo", **{"X-API-Key": f"guess-{n}"}).status for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert client.ask("/echo", **{"X-API-Key": "two"}).status == 200
    assert client.ask("/echo", Authorization="bearer one").status == 200
    assert client.get("/health").status == 200


def test_guesses_are_forgotten():
    throttle = Throttle(most=1, seconds=0.01)
    throttle.failed("a")
    assert throttle.wait("a") > 0 and throttle.wait("b") == 0
    while throttle.wait("a"):
        pass
    throttle.failed("b")
    assert throttle._failures.keys() == {"b"}


def test_limits_know_their_paths_where_the_application_is_mounted():
    client = Guarded(mount="/inner", keys=["key"])
    assert client.get("/inner/health").status == 200
    assert client.ask("/inner/echo").status == 401
    client.ask("/inner/echo", **{"X-API-Key": "key"})
    assert client.counted(200, "/echo") == 1


def test_pages_of_other_origins_may_ask_where_they_are_named():
    client = Guarded(cors_origins=("https://a.example",), keys=["key"])
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = client.request("OPTIONS", "/echo", **asked)
    assert allowed.status == 200
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = client.request("OPTIONS", "/echo", **{**asked, "Origin": "https://b.example"})
    assert other.status == 400
    assert "access-control-allow-origin" not in Guarded().ask("/echo", **asked).headers


def test_requests_are_spans_where_opentelemetry_is_installed(monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    Guarded().ask("/echo", traceparent=parent)
    (span,) = spans.get_finished_spans()
    assert span.name == "POST /echo" and span.kind is trace.SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]


def test_requests_need_no_opentelemetry(monkeypatch):
    monkeypatch.setattr("offramp.serving.middleware.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert Guarded().ask("/echo").status == 200
