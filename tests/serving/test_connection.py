"""Connections that send nothing, or a head without end, are closed; others are answered."""

import http.client
import socket
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")

from offramp.serving.connection import LONGEST_HEAD, Connection, connections  # noqa: E402
from offramp.serving.metrics import RequestMetrics  # noqa: E402

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def answer(scope, receive, send):
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(Connection, "most", 8)
    monkeypatch.setattr(Connection, "header_timeout", 0.3)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        settings = uvicorn.Config(
            answer, http=Connection, log_config=None, lifespan="off", timeout_keep_alive=1
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(30)


def connected(port, content=b""):
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(content)
    return client


@pytest.mark.parametrize("content", [b"", HEAD], ids=["nothing", "half a head"])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_connection_that_sends_no_whole_head_is_closed(port, content, is_second):
    with connected(port) as client:
        if is_second:
            client.sendall(HEAD + b"\r\n")
            assert client.recv(1000).endswith(b"ok")
        client.sendall(content)
        began = time.monotonic()
        assert client.recv(1000) == b""
        assert 0.2 < time.monotonic() - began < 4


def test_a_head_without_end_is_cut_off(port):
    with connected(port, HEAD) as client, pytest.raises(OSError):
        for _ in range(100):
            client.sendall(b"X-Long: " + b"x" * (LONGEST_HEAD // 8) + b"\r\n")
            time.sleep(0.001)


def test_silent_connections_make_room_for_others(port):
    silent = [connected(port) for _ in range(30)]
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(3):
        client.request("GET", "/")
        assert client.getresponse().read() == b"ok"
    assert sum(each.recv(1) == b"" for each in silent[:20]) == 20  # the oldest
    for each in [*silent, client]:
        each.close()


def test_heads_that_are_no_requests_are_counted(port, monkeypatch):
    metrics = RequestMetrics([], "heads")
    monkeypatch.setattr(Connection, "metrics", metrics)
    with connected(port, b"\x16\x03 no request\r\n\r\n") as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    labels = {"path": "other", "status": "400"}
    assert metrics.registry.get_sample_value("heads_requests_total", labels) == 1


def test_there_may_be_as_many_connections_as_files():
    before = Connection.header_timeout, Connection.most, Connection.metrics
    try:
        assert connections(5.0) is Connection
        assert Connection.header_timeout == 5.0 and Connection.most >= 1
    finally:
        Connection.header_timeout, Connection.most, Connection.metrics = before
