"""Real servers in processes of their own: signals, draining, several workers.

They serve an export where torch cannot be imported, which also makes them start in a second.
"""

import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import offramp
from offramp.errors import ConfigError
from offramp.files import write_sealed
from offramp.serving import ServeConfig, serve

from ..deployment import without_torch
from .conftest import READING, SIZE, policy_of

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")

TOKEN = "only-for-tests"
ZEROS = {"inputs": np.zeros((3, SIZE, SIZE)).tolist()}


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    """The export that is served, and the same graphs with another policy."""
    second = shutil.copytree(small.export, tmp_path_factory.mktemp("exports") / "second")
    described = json.loads((second / "export.json").read_text())
    shutil.rmtree(second / described["policy_folder"])
    other = policy_of(small.network, offramp.scorers.Entropy()).at(budget=0.75)
    other.save(second / described["policy_folder"])
    write_sealed(second / "export.json", described | {"policy": other.fingerprint()})
    return small.export, second


class Server:
    """`offramp serve` on a free port."""

    def __init__(self, export, folder, *options):
        self.folder, self.port = folder, free_port()
        (folder / "tmp").mkdir()
        command = [sys.executable, "-m", "offramp", "serve", export, "--port", self.port]
        self._log = (folder / "log.txt").open("w+")
        environment = {"OFFRAMP_ADMIN_TOKEN": TOKEN, "TMPDIR": str(folder / "tmp")}
        self.process = subprocess.Popen(
            list(map(str, [*command, "--threads", "1", *options])),
            env={**without_torch(folder), **environment},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # as in a terminal: a group of its own
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.children(), self.process]:
            process.kill()
        self._log.close()

    def wait(self):
        wait_for(lambda: "serving on" in self.printed() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.printed()
        return self

    def printed(self):
        """Everything that its processes have printed."""
        self._log.seek(0)
        return self._log.read()

    def children(self):
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def workers(self):
        return [each for each in self.children() if "spawn_main" in " ".join(each.cmdline())]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", **headers}
        try:
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def admin(self, method, path, body=None):
        status, text = self.ask(method, path, body, Authorization=f"Bearer {TOKEN}")
        assert status == 200, text
        return json.loads(text)

    def about(self):
        return json.loads(self.ask("GET", "/info")[1])["model"]

    def metric(self, name):
        page = self.ask("GET", "/metrics")[1].decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, flags=re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ends(self, code=0):
        """It returns, with all its processes, and leaves nothing behind."""
        children = self.children()
        assert self.process.wait(timeout=120) == code, self.printed()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))
        assert not list((self.folder / "tmp").glob("offramp-*"))
        printed = self.printed()
        assert "Traceback" not in printed and "ERROR" not in printed, printed
        assert printed.endswith("stopped\n"), printed


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "this did not happen in time"
        time.sleep(0.05)


class LastRequests(threading.Thread):
    """A client that sends requests until connections are refused.

    What it has `lost` are requests without answers: when each was sent or failed to be, and why.
    """

    def __init__(self, port, reconnects):
        super().__init__()
        self.port, self.reconnects, self.statuses, self.lost = port, reconnects, [], []

    def run(self):
        body = json.dumps(ZEROS).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while True:
            sent = math.inf
            try:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                sent = time.monotonic()
                answer = connection.getresponse()
                answer.read()
                self.statuses.append(answer.status)
            except ConnectionRefusedError:
                return  # a new connection after the end
            except (OSError, http.client.HTTPException) as error:
                self.lost.append((min(sent, time.monotonic()), repr(error)))
                return
            if self.reconnects:
                connection.close()
                time.sleep(0.01)


def test_a_server_that_is_stopped_answers_what_was_sent(exports, tmp_path):
    """Under the load of clients that keep their connections, and of others."""
    options = ("--hold-budget", "--body-timeout", "60")
    with Server(exports[0], tmp_path, *options).wait() as stopped:
        here = offramp.OnnxRunner(exports[0], threads=1)
        (expected,) = here(np.zeros((1, 3, SIZE, SIZE), np.float32)).records(READING.class_names)
        status, body = stopped.ask("POST", "/predict", ZEROS)
        assert status == 200 and json.loads(body) == {"id": None, **expected}
        clients = [LastRequests(stopped.port, reconnects=number % 2) for number in range(8)]
        for client in clients:
            client.start()
        wait_for(lambda: all(len(client.statuses) > 3 for client in clients), seconds=240)
        stopped_at = time.monotonic()  # a request that is sent later may be refused
        stopped.process.send_signal(signal.SIGTERM)
        stopped.ends()
        for client in clients:
            client.join(120)
        lost = [each for client in clients for each in client.lost]
        assert not [why for sent, why in lost if sent < stopped_at], (stopped_at, lost)
        assert {status for client in clients for status in client.statuses} == {200}
        assert "serving on ONNX Runtime" in stopped.printed()
        lines = [json.loads(x) for x in stopped.printed().splitlines() if x.startswith("{")]
        lines = [line for line in lines if line["logger"] == "offramp.access"]
        assert len(lines) == 1 + sum(len(client.statuses) for client in clients)


def test_several_workers_serve_the_same_and_only_what_was_asked_for(exports, tmp_path):
    served = shutil.copytree(exports[0], tmp_path / "export")
    with Server(served, tmp_path, "--workers", "2").wait() as server:
        wait_for(lambda: server.printed().count("startup complete") == 2, 60)
        listening = [
            found.laddr.ip
            for process in [psutil.Process(server.process.pid), *server.children()]
            for found in process.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}
        first = server.about()
        answers = 'offramp_requests_total{path="/predict",status="200"}'
        for _ in range(20):
            assert server.ask("POST", "/predict", ZEROS)[0] == 200
        assert server.metric(answers) == 20  # of both together

        budget = server.admin("PUT", "/admin/budget", {"budget": 1.0})["budget"]
        assert budget != first["budget"]
        assert {server.about()["budget"] for _ in range(20)} == {budget}

        # Files are not served before a reload, not even by a new process.
        shutil.rmtree(served)
        shutil.copytree(exports[1], served)
        server.workers()[0].kill()
        wait_for(lambda: server.printed().count("startup complete") == 3, 60)
        abouts = [server.about() for _ in range(20)]
        assert {(each["policy"], each["budget"]) for each in abouts} == {(first["policy"], budget)}

        new = server.admin("POST", "/admin/reload")["policy"]
        assert new != first["policy"]
        assert {server.about()["policy"] for _ in range(20)} == {new}
        assert server.metric(answers) == 20
        os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
        server.ends()


def test_cascades_need_no_torch(tmp_path):
    """Of callables, of classifiers and of sessions of ONNX Runtime."""
    pytest.importorskip("onnx")
    command = [sys.executable, Path(__file__).with_name("run_cascades.py"), tmp_path]
    environment = without_torch(tmp_path)
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    kinds = "callables", "classifiers", "sessions"
    assert found.stdout.splitlines() == [f"served {kind}" for kind in kinds]


def test_interrupted_while_workers_start_it_leaves_nothing_behind(exports, tmp_path):
    """SIGTERM, to the first process alone, as service managers do."""
    with Server(exports[0], tmp_path, "--workers", "2") as early:
        wait_for(lambda: early.workers() or early.process.poll() is not None, 60)
        early.process.send_signal(signal.SIGTERM)
        early.ends()


def test_workers_end_with_a_supervisor_that_is_killed(exports, tmp_path):
    with Server(exports[0], tmp_path, "--workers", "2").wait() as server:
        children = server.children()
        server.process.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive


def test_a_live_runner_needs_one_worker(exports):
    runner = offramp.OnnxRunner(exports[0], threads=1)
    with pytest.raises(ConfigError, match="2 workers each load a model of folders, got a OnnxRu"):
        serve(runner, ServeConfig(port=free_port(), workers=2))


def test_a_port_that_is_taken_is_named_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at 127.0.0.1:{port}: .*--port"):
            serve(None, ServeConfig(port=port))
