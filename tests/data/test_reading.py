"""A hub that is not there is noticed at once, and what was downloaded before is still used."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module

import pytest
import torch

from offramp.data import load
from offramp.data.reading import _offline, why_unreachable
from offramp.errors import DataError


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "OFFRAMP_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def closed_port():
    """An address of this machine at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def refusing_server():
    """A server that says no to everything, as the hub does to those without a key."""

    class Refuse(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_that_cannot_be_reached_is_noticed_at_once(closed_port, monkeypatch):
    import datasets

    asked = []

    def nothing_kept(name):
        asked.append(datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError("not in the cache")

    monkeypatch.setenv("HF_ENDPOINT", closed_port)
    monkeypatch.setattr(datasets, "load_dataset", nothing_kept)
    before = datasets.config.HF_HUB_OFFLINE
    message = (
        r"there is no data set `cifar10`: OFFRAMP_DATA is not set, and the hub cannot be reached "
        r"\(127.0.0.1: .*refused\). To get it, .*hf download uoft-cs/cifar10 .* set OFFRAMP_DATA="
    )
    start = time.monotonic()
    with pytest.raises(DataError, match=message):
        load("cifar10")
    assert time.monotonic() - start < 15, "the hub's own library tries for longer"
    assert asked == [True], "the cache is read, without asking the hub"
    assert datasets.config.HF_HUB_OFFLINE is before


@pytest.mark.parametrize("offline", ["0", "1"])
def test_what_was_downloaded_before_is_used_without_the_hub(
    cifar_like, closed_port, monkeypatch, offline
):
    import datasets

    found = datasets.load_dataset(str(cifar_like))
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.delenv("OFFRAMP_DATA", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", closed_port)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: found)
    splits = load("cifar10", held_out=5, val=5)
    assert torch.equal(splits.test.labels, torch.tensor(found["test"]["label"][:]))


def test_a_hub_that_refuses_is_there(refusing_server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", refusing_server)
    assert why_unreachable() is None


def test_a_hub_that_does_not_answer_in_time_is_not_waited_for(monkeypatch):
    with socket.socket() as silent:  # takes connections and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "timed out" in why_unreachable(timeout=0.2)


def test_an_address_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert "nonsense" in why_unreachable()


def test_the_hubs_libraries_are_offline_while_the_cache_is_read(monkeypatch):
    constants = [import_module(name) for name in ("huggingface_hub.constants", "datasets.config")]
    for each in constants:
        monkeypatch.setattr(each, "HF_HUB_OFFLINE", False)
    with _offline():
        assert [each.HF_HUB_OFFLINE for each in constants] == [True, True]
    assert [each.HF_HUB_OFFLINE for each in constants] == [False, False]
