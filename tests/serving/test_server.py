"""A real server in processes of its own, with many clients at once."""

import http.client
import io
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from torch.utils.data import TensorDataset

import offramp
from offramp.data.decoding import Normalization

from ..deployment import bad_requests, without_torch

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
Image = pytest.importorskip("PIL.Image")

SIZE = 8
MAX_BYTES = 20_000
TOKEN = "only-for-tests"
NAMES = ["ant", "bee", "cat", "dog"]


class Server:
    """`offramp serve` on a free port, and the same runner in this process."""

    def __init__(self, folder, *more, folders=("network", "policy")):
        torch.manual_seed(0)
        network = offramp.build("convnet", num_classes=4, image_size=SIZE, at=2).eval()
        for weight in network.heads.parameters():
            weight.data.mul_(20)  # so that scores lie apart
        data = TensorDataset(torch.randn(150, 3, SIZE, SIZE), torch.arange(150) % 4)
        ledger = offramp.record(network, data, split="all", progress=False)
        held_out, val, _ = ledger.partition()
        policy = offramp.Policy(offramp.MaxProbability()).fit(held_out)
        policy = policy.tune(val, "geometric").at(budget=0.75)
        network.save(folder / "network")
        policy.save(folder / "policy")
        (folder / "names.txt").write_text("\n".join(NAMES))
        self.folder, self.runner = folder, offramp.Runner(network, policy)
        if "export" in folders:
            offramp.export(network, policy, folder / "export", points="all")
        self.port = free_port()
        options = f"--port {self.port} --max-bytes {MAX_BYTES} --max-pixels 5000 --threads 1"
        options += f" --body-timeout 1 --class-names {folder / 'names.txt'}"
        command = [sys.executable, "-m", "offramp", "serve", *(folder / each for each in folders)]
        self.log = (folder / "log.txt").open("w+")
        environment = without_torch(folder) if folders == ("export",) else os.environ
        self.process = subprocess.Popen(
            [*map(str, command), *options.split(), *more],
            env={**environment, "OFFRAMP_ADMIN_TOKEN": TOKEN},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # as in a terminal: a group of its own
        )

    def wait(self):
        deadline = time.monotonic() + 240  # two imports of torch, where the machine is busy
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                early = "serving on" not in self.printed()
                status, text, _ = self.get("/health")
                assert status in (200, 503)
                if status == 200:
                    return self
                assert early, "it says that it serves only when it does"
                assert text == b"the workers are not ready yet"
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the server did not start: {self.printed()}")

    def printed(self):
        """Everything that its processes have printed."""
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        return self._exchange("GET", path, None, {})

    def admin(self, method, path, body=None, token=TOKEN):
        status, text, _ = self._exchange(
            method, path, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"}
        )
        return status, json.loads(text)

    def post(self, body, kind="application/json", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self._exchange("POST", "/predict", body, {"Content-Type": kind, **headers})

    def _exchange(self, method, path, body, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers)
        finally:
            connection.close()

    def metric(self, name):
        _, text, _ = self.get("/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), flags=re.MULTILINE)
        return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("served"))
    try:
        yield started.wait()
        stops_cleanly(started)
    finally:
        started.process.kill()


def stops_cleanly(server):
    """On Ctrl-C, which a terminal sends to all processes, it ends without a word too many."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.process.wait(timeout=120) == 0
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", server.port))
    printed = server.printed()
    assert printed.endswith("stopped\n"), printed
    assert "Traceback" not in printed and "ERROR" not in printed, printed


def test_interrupted_while_it_starts_it_leaves_nothing_behind(tmp_path):
    """SIGTERM, to the first process alone, as service managers do."""
    early = Server(tmp_path)
    first = psutil.Process(early.process.pid)
    deadline = time.monotonic() + 240
    while not first.children(recursive=True) and time.monotonic() < deadline:
        time.sleep(0.01)
    children = first.children(recursive=True)
    assert children and early.process.poll() is None
    early.process.send_signal(signal.SIGTERM)
    try:
        assert early.process.wait(timeout=120) == 0
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
    finally:
        early.process.kill()
    assert "Traceback" not in early.printed() and early.printed().endswith("stopped\n"), (
        early.printed()
    )


def png(seed, kind="PNG"):
    numbers = random.Random(seed)
    image = Image.new("RGB", (SIZE, SIZE))
    image.putdata([tuple(numbers.randrange(256) for _ in range(3)) for _ in range(SIZE**2)])
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def pixels(encoded):
    with Image.open(io.BytesIO(encoded)) as image:
        flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return Normalization()(flat.view(1, SIZE, SIZE, 3).permute(0, 3, 1, 2))


def test_many_clients_get_their_own_answers_while_others_misbehave(server):
    inputs = torch.randn(120, 3, SIZE, SIZE)
    expected = server.runner(inputs)
    bad = [b"{", b"[" * 5000, b'{"inputs": [[1]]}', b'{"inputs": NaN}', b"x" * (MAX_BYTES + 1)]

    def good(number):
        status, body, _ = server.post({"id": f"n-{number}", "inputs": inputs[number].tolist()})
        return number, status, json.loads(body)

    def misbehave(number):
        return server.post(bad[number % len(bad)])[0]

    slow = [slow_client(server.port) for _ in range(4)]
    with ThreadPoolExecutor(24) as clients:
        refused = clients.map(misbehave, range(40))
        answers = list(clients.map(good, range(120)))
        assert set(refused) == {400, 413, 422}
    for number, status, answer in answers:
        assert status == 200 and answer["id"] == f"n-{number}"  # nobody else's answer
        assert answer["class"] == int(expected.predictions[number])
        assert answer["name"] == NAMES[answer["class"]]
        assert answer["exit"] == int(expected.exits[number])
        assert answer["cost"] == pytest.approx(float(expected.costs[number]), abs=1e-5)
        assert answer["confidence"] == pytest.approx(float(expected.confidence[number]), abs=1e-3)
        assert answer["likely_wrong"] == bool(expected.likely_wrong[number])
    assert len({answer["exit"] for *_, answer in answers}) == 2  # each at its own
    for client in slow:
        assert b"408" in client.recv(200).split(b"\r\n")[0]
        client.close()


def slow_client(port):
    """Says that 100 bytes will come, and sends five."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.sendall(head + b"Content-Length: 100\r\n\r\n12345")
    return client


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_are_answered_like_their_pixels(server, kind):
    encoded = png(3, kind)
    expected = server.runner(pixels(encoded))
    status, body, headers = server.post(encoded, f"image/{kind.lower()}", **{"X-Request-ID": "7"})
    answer = json.loads(body)
    assert status == 200 and answer["id"] == "7" and headers["x-request-id"] == "7"
    assert answer["class"] == int(expected.predictions[0])
    assert answer["confidence"] == pytest.approx(float(expected.confidence[0]), abs=1e-3)


@pytest.mark.parametrize(("body", "kind", "status", "reason"), bad_requests(MAX_BYTES))
def test_bad_requests_get_a_reason_as_json(server, body, kind, status, reason):
    found, text, _ = server.post(body, kind)
    assert found == status and reason in json.loads(text)["detail"]


def test_a_body_that_grows_without_end_is_cut_off(server):
    """Chunks say no size beforehand."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")

    def send():
        try:
            for _ in range(100):
                client.sendall(b"1000\r\n" + b"[" * 4096 + b"\r\n")
        except OSError:
            pass  # the server has closed the door

    sender = threading.Thread(target=send)
    sender.start()
    assert b"413" in client.recv(200).split(b"\r\n")[0]
    sender.join()
    client.close()


def test_metrics_count_requests_exits_latency_and_savings(server):
    exits = [f'offramp_exits_total{{exit="{exit_index}"}}' for exit_index in range(2)]
    names = ['offramp_requests_total{status="200"}', 'offramp_requests_total{status="422"}']
    names += [*exits, "offramp_cost_saved_total", "offramp_request_seconds_count"]
    before = {name: server.metric(name) for name in names}
    costs = []
    for number in range(5):
        inputs = torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(number))
        costs.append(json.loads(server.post({"inputs": inputs.tolist()})[1])["cost"])
    server.post({"inputs": [1]})
    grown = {name: server.metric(name) - before[name] for name in names}
    assert grown[names[0]] == 5 and grown[names[1]] == 1
    assert sum(grown[name] for name in exits) == 5
    saved = sum(max(0, 1 - cost) for cost in costs)
    assert grown["offramp_cost_saved_total"] == pytest.approx(saved, abs=1e-4)
    assert grown["offramp_request_seconds_count"] == 6


def test_nothing_else_is_offered(server):
    assert server.get("/predict")[0] == 405
    assert server.get("/docs")[0] == server.get("/openapi.json")[0] == 404
    status, body, _ = server.get("/info")
    assert status == 200 and json.loads(body)["model"]["exits"] == 2
    assert json.loads(body)["model"]["policy"] == server.runner.policy.fingerprint()


def test_it_listens_on_this_machine_only(server):
    connections = [
        found
        for process in [psutil.Process(server.process.pid)]
        for child in [process, *process.children(recursive=True)]
        for found in child.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    ]
    assert {found.laddr.ip for found in connections} == {"127.0.0.1"}


def test_a_client_that_goes_away_in_mid_upload_is_no_error(server):
    gone = 'offramp_requests_total{status="499"}'
    before = server.metric(gone)
    slow_client(server.port).close()
    wait_for(lambda: server.metric(gone) == before + 1)
    assert server.metric('offramp_requests_total{status="500"}') == 0
    assert "Traceback" not in server.printed()


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "this did not happen in time"
        time.sleep(0.05)


def test_the_budget_changes_with_a_token_only(server):
    points = server.runner.policy.points
    assert server.admin("PUT", "/admin/budget", {"budget": 1.0}, token="wrong")[0] == 401
    status, body = server.admin("PUT", "/admin/budget", {"budget": 7})
    assert status == 422 and "in (0, 1], got 7" in body["detail"]
    assert server.admin("PUT", "/admin/budget", ["no"])[0] == 422
    before = server.metric("offramp_budget")
    for budget in (1.0, 0.75):
        status, about = server.admin("PUT", "/admin/budget", {"budget": budget})
        expected = float(points.budgets[points.for_budget(budget)])
        assert status == 200 and about["budget"] == pytest.approx(expected)
        inputs = torch.randn(16, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
        answers = [json.loads(server.post({"inputs": x.tolist()})[1]) for x in inputs]
        runner = offramp.Runner(server.runner.network, server.runner.policy.at(budget=budget))
        assert [each["exit"] for each in answers] == runner(inputs).exits.tolist()
    assert server.metric("offramp_budget") == before


def test_the_policy_is_read_again_without_a_restart(server):
    old = server.runner.policy
    network = server.runner.network
    data = TensorDataset(torch.randn(150, 3, SIZE, SIZE), torch.arange(150) % 4)
    held_out, val, _ = offramp.record(network, data, split="all", progress=False).partition()
    new = offramp.Policy(offramp.scorers.Entropy()).fit(held_out).tune(val, "geometric")
    new.at(budget=1.0).save(server.folder / "policy")
    try:
        status, about = server.admin("POST", "/admin/reload")
        assert status == 200 and about["policy"] == new.fingerprint()
        assert server.post({"inputs": torch.zeros(3, SIZE, SIZE).tolist()})[0] == 200
        (server.folder / "policy" / "policy.json").write_text("{")
        status, body = server.admin("POST", "/admin/reload")
        assert status == 409 and "nothing was changed" in body["detail"]
        assert server.post({"inputs": torch.zeros(3, SIZE, SIZE).tolist()})[0] == 200
    finally:
        for file in (server.folder / "policy").iterdir():
            file.unlink()
        old.save(server.folder / "policy")
        assert server.admin("POST", "/admin/reload")[1]["policy"] == old.fingerprint()


def test_a_worker_that_dies_is_replaced(server):
    workers = [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if "spawn_main" in " ".join(each.cmdline())
    ]
    before = server.metric("offramp_worker_restarts")
    workers[0].kill()
    body = {"inputs": torch.zeros(3, SIZE, SIZE).tolist()}
    statuses = [server.post(body)[0]]
    wait_for(lambda: statuses.append(server.post(body)[0]) or statuses[-1] == 200, seconds=240)
    assert set(statuses) <= {200, 503}
    assert server.metric("offramp_worker_restarts") == before + 1
    assert "Traceback" not in server.printed() and "Aborted" not in server.printed()


class LastRequests(threading.Thread):
    """A client that sends requests until nobody listens, whatever it is told.

    What it has `lost` are requests without answers: when each was sent or failed to be, and why.
    """

    def __init__(self, port, reconnects):
        super().__init__()
        self.port, self.reconnects, self.statuses, self.lost = port, reconnects, [], []

    def run(self):
        body = json.dumps({"inputs": torch.zeros(3, SIZE, SIZE).tolist()}).encode()
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
            if self.reconnects or self.statuses[-1] == 503:
                connection.close()
                time.sleep(0.01)


def test_a_server_that_is_stopped_answers_what_is_open_and_refuses_the_rest(tmp_path):
    """An export, under the load of clients that keep their connections, and of others.

    It can be served where torch cannot be imported, with the answers that it has with torch.
    """
    pytest.importorskip("onnxruntime")
    from offramp.serving.service import LINGER

    # A client that waits for a core in mid-request is no slow client: its body has time.
    options = ("--access-log", "--hold-budget", "--body-timeout", "60")
    stopped = Server(tmp_path, *options, folders=("export",))
    try:
        stopped.wait()
        here = offramp.OnnxRunner(tmp_path / "export", threads=1)
        for seed in range(4):
            status, body, _ = stopped.post(png(seed), "image/png")
            (expected,) = here(pixels(png(seed))).records(NAMES)
            assert status == 200 and json.loads(body) == {"id": None, **expected}
        clients = [LastRequests(stopped.port, reconnects=number % 2) for number in range(16)]
        for client in clients:
            client.start()
        wait_for(lambda: all(len(client.statuses) > 3 for client in clients), seconds=240)
        promised = time.monotonic() + LINGER  # who is slower than that may find a closed door
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.process.wait(timeout=120) == 0
        for client in clients:
            client.join(120)
        lost = [each for client in clients for each in client.lost]
        assert not [why for sent, why in lost if sent < promised], (promised, lost)
        assert {status for client in clients for status in client.statuses} <= {200, 503}
    finally:
        stopped.process.kill()
    printed = stopped.printed()
    assert printed.endswith("stopped\n") and "Traceback" not in printed, printed
    assert "serving on ONNX Runtime" in printed
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert {"POST"} == {line["method"] for line in lines if line["path"] == "/predict"}


def test_a_policy_of_another_network_is_refused_before_the_port_opens(tmp_path):
    for name, seed in (("one", 1), ("other", 2)):
        torch.manual_seed(seed)
        network = offramp.build("convnet", num_classes=4, image_size=SIZE, at=2).eval()
        network.save(tmp_path / name)
    data = TensorDataset(torch.randn(60, 3, SIZE, SIZE), torch.arange(60) % 4)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out)
    policy = policy.tune(val, "geometric").at(budget=0.8)
    from offramp.errors import ConfigError, OriginError
    from offramp.serving import Model

    policy.save(tmp_path / "policy")
    with pytest.raises(OriginError, match="this policy is for the network"):
        Model(tmp_path / "one", tmp_path / "policy").runner()
    with pytest.raises(ConfigError, match="a name for each of the 4 classes, got 1"):
        Model(tmp_path / "other", tmp_path / "policy", class_names=("a",)).runner()


def test_a_live_runner_of_any_network_is_served_from_python(tmp_path):
    """Also one whose backbone no file could name."""
    code = f"""
import torch
from torch import nn
from torch.utils.data import TensorDataset
import offramp
from offramp.serving import ServeConfig, serve

blocks = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()]
backbone = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64, 3))
network = offramp.attach(backbone, example=torch.zeros(2, 1, 8, 8))
data = TensorDataset(torch.randn(60, 1, 8, 8), torch.arange(60) % 3)
held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
runner = offramp.Runner(network, policy.at(budget=1.0))
serve(runner, ServeConfig(port={(port := free_port())}), class_names=["a", "b", "c"], ready=print)
print(runner.stats.samples)
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"inputs": torch.zeros(1, 8, 8).tolist()})
        client.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = json.loads(client.getresponse().read())
        assert answer["name"] == "abc"[answer["class"]]
        client.request("PUT", "/admin/budget", "{}")
        refused = json.loads(client.getresponse().read())["detail"]
        assert "nothing can be changed: start the server with a token" in refused
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and process.stdout.read() == "1\n"
    finally:
        process.kill()


def test_a_cascade_is_served_from_python(tmp_path):
    code = f"""
import offramp
from offramp.runtime import Member
from offramp.serving import ServeConfig, serve

def quick(batch):
    return [(len(text) > 4, 0.9 if len(text) != 5 else 0.55) for text in batch]

def slow(batch):
    if any("crash" in text for text in batch):
        raise RuntimeError
    return [(text.startswith("long"), 0.99) for text in batch]

members = [Member(quick, cost=1.0), Member(slow, cost=9.0)]
cascade = offramp.Cascade(members, unit="dollars", backoff=0)
words = ["long word", "abc", "tiny!", "b"] * 30
ledger = cascade.record((words, [w.startswith("long") for w in words]), split="all")
held_out, val, _ = ledger.partition()
policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
config = ServeConfig(port={(port := free_port())})
serve(cascade, config, policy=policy, read=str.strip, ready=print)
"""
    environment = {**os.environ, "OFFRAMP_ADMIN_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(path, method="POST", **fields):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        client.request(method, path, json.dumps(fields), headers)
        response = client.getresponse()
        return response.status, response.read()

    try:
        assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
        status, body = ask("/predict", item=" abc ", id=3)
        first = json.loads(body)
        assert (status, first["id"], first["answer"], first["member"]) == (200, 3, False, "quick")
        second = json.loads(ask("/predict", item="tiny!")[1])
        assert (second["member"], second["exit"], second["answer"]) == ("slow", 1, False)
        assert first["cost"] == pytest.approx(1 / 9)
        assert second["cost"] == pytest.approx(10 / 9)
        fallen = json.loads(ask("/predict", item="crash")[1])  # five letters: quick is unsure
        assert (fallen["member"], fallen["failures"]) == ("quick", ["slow"])
        for status, wanted in ((422, {"text": "abc"}), (422, {"item": 5})):
            assert ask("/predict", **wanted)[0] == status
        assert b"give `item`" in ask("/predict", text="abc")[1]
        page = ask("/metrics", "GET")[1].decode()
        assert 'offramp_exits_total{exit="0"} 1.0' in page  # where it stopped asking
        assert 'offramp_exits_total{exit="1"} 2.0' in page
        about = json.loads(ask("/admin/budget", "PUT", budget=1.0)[1])
        assert about["members"] == ["quick", "slow"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_a_cascade_is_refused_without_its_own_policy(splits):
    from offramp import Cascade, MaxProbability, Policy
    from offramp.errors import ConfigError, NetworkError
    from offramp.serving import ServeConfig, serve

    cascade = Cascade([lambda batch: batch, lambda batch: batch])
    with pytest.raises(ConfigError, match=r"serve\(cascade, policy=policy\)"):
        serve(cascade, ServeConfig(port=free_port()))
    with pytest.raises(ConfigError, match="or a Cascade can be served, got Linear"):
        serve(torch.nn.Linear(2, 2), ServeConfig(port=free_port()))
    other = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"]).at(budget=0.5)
    with pytest.raises(NetworkError):
        serve(cascade, ServeConfig(port=free_port()), policy=other)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    from offramp.errors import FileFormatError
    from offramp.serving import Model

    (tmp_path / "export").mkdir()
    with pytest.raises(FileFormatError, match=r"no folder .*exprt on .*; did you mean .*export"):
        Model.of_run(tmp_path / "exprt")


def test_a_model_is_a_network_and_a_policy_or_an_export(tmp_path):
    from offramp.errors import ConfigError
    from offramp.serving import Model

    with pytest.raises(ConfigError, match=r"is no export, .* give the folder of a policy, too"):
        Model.of_run(tmp_path)


def test_cli_names_what_is_wrong(tmp_path):
    command = [sys.executable, "-m", "offramp", "serve", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "COLUMNS": "200"}
    found = subprocess.run(
        [*command, "--port", "70000"], capture_output=True, text=True, env=environment
    )
    assert found.returncode == 2 and "`port` must lie in 1..65535" in found.stderr


def test_images_are_read_as_the_named_data_set_was(tmp_path):
    from offramp.errors import NetworkError
    from offramp.serving.images import images_of_run

    network = offramp.build("convnet", num_classes=10, image_size=28)
    reader, names = images_of_run(network.inputs, tmp_path, "cluttered-digits")
    data = offramp.data.load("cluttered-digits")["test"]
    assert reader.size == 28 and reader.normalization == data.normalization
    assert names == tuple(data.class_names)
    grey = offramp.build("convnet", num_classes=10, image_size=28, channels=1)
    with pytest.raises(NetworkError, match="a network that takes square RGB images, and this"):
        images_of_run(grey.inputs, tmp_path)  # its images are sent as numbers
