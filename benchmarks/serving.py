"""Load on a server over loopback: latency, lost or mixed-up answers, and memory.

Run: python benchmarks/serving.py [--seconds 60] [--clients 64] [--workers 1]

`offramp serve` runs in processes of its own with a small untrained network at 32 px. Every client
sends one image after another, as PNG or as JSON, each with an id; a runner in this process says
which class and exit must come back. For every eight clients there is one that misbehaves:
malformed bodies, bodies that are too large, files that are not images, and bodies that never
arrive completely. All clients are threads of this one process, so the latencies include the
time they wait for each other.
"""

import argparse
import http.client
import io
import itertools
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import offramp
from offramp.data.decoding import Normalization

SIZE, POOL = 32, 256
BAD = (b"{", b'{"inputs": [1]}', b"x" * (2**20 + 1), b"[" * 9000)


@dataclass
class Results:
    """What all clients have seen."""

    seconds: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, seconds: float, problem: str | None) -> None:
        """Count a good request, and what was wrong with its answer."""
        with self.lock:
            self.seconds.append(seconds)
            if problem is not None:
                self.wrong[problem] += 1

    def refused_with(self, status: int) -> None:
        """Count a bad request."""
        with self.lock:
            self.refused[status] += 1


def prepare(folder: Path) -> tuple[list[tuple[bytes, str]], offramp.runtime.RunOutput]:
    """Save a network and a policy; bodies to send, and what should come back."""
    torch.manual_seed(0)
    network = offramp.build("thin-resnet", num_classes=10, image_size=SIZE, at=3, depth=14).eval()
    for weight in network.heads.parameters():
        weight.data.mul_(10)
    pixels = torch.randint(256, (POOL + 300, 3, SIZE, SIZE), dtype=torch.uint8)
    images = Normalization()(pixels)
    labels = torch.arange(300) % 10
    data = TensorDataset(images[POOL:], labels)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out)
    policy = policy.tune(val, "geometric").at(budget=0.6)
    network.save(folder / "network")
    policy.save(folder / "policy")
    bodies = [encoded(pixels[row], images[row], row) for row in range(POOL)]
    return bodies, offramp.Runner(network, policy)(images[:POOL])


def encoded(pixels: torch.Tensor, image: torch.Tensor, row: int) -> tuple[bytes, str]:
    """A body and its type: a PNG, and every eighth as numbers."""
    if row % 8 == 0:
        return json.dumps({"inputs": image.tolist()}).encode(), "application/json"
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue(), "image/png"


def start(folder: Path, workers: int) -> tuple[subprocess.Popen[bytes], int]:
    """A server that is ready, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = f"serve {folder / 'network'} {folder / 'policy'} --port {port} --workers {workers}"
    command += f" --max-bytes {2**20} --body-timeout 2"
    process = subprocess.Popen(
        [sys.executable, "-m", "offramp", *command.split()], stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server did not start")


class Client(threading.Thread):
    """Sends good requests over one connection until time is up."""

    def __init__(self, number: int, port: int, until: float, world: "World") -> None:
        super().__init__()
        self.number, self.port, self.until, self.world = number, port, until, world

    def run(self) -> None:
        """One request after another."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for turn in itertools.count():
            if time.monotonic() >= self.until:
                return
            row = (self.number * 37 + turn) % POOL
            body, kind = self.world.bodies[row]
            name = f"{self.number}-{turn}"
            began = time.perf_counter()
            try:
                headers = {"Content-Type": kind, "X-Request-ID": name}
                connection.request("POST", "/predict", body, headers)
                reply = connection.getresponse()
                text = reply.read()
                problem = self._problem(row, name, reply.status, text)
            except OSError as error:
                problem = f"lost: {type(error).__name__}"
                connection.close()
            self.world.results.answered(time.perf_counter() - began, problem)

    def _problem(self, row: int, name: str, status: int, text: bytes) -> str | None:
        if status != 200:
            return f"status {status}"
        answer, expected = json.loads(text), self.world.expected
        if answer["id"] != name:
            return "another request's answer"
        same = answer["class"] == int(expected.predictions[row])
        same = same and answer["exit"] == int(expected.exits[row])
        return None if same else "another class or exit"


class BadClient(threading.Thread):
    """Sends requests that cannot be answered, and bodies that do not end."""

    def __init__(self, number: int, port: int, until: float, world: "World") -> None:
        super().__init__()
        self.number, self.port, self.until, self.world = number, port, until, world

    def run(self) -> None:
        """One bad request after another."""
        for turn in itertools.count(self.number):
            if time.monotonic() >= self.until:
                return
            if turn % 5 == 4:
                self._dawdle()
                continue
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                kind = {"Content-Type": "image/png" if turn % 3 == 0 else "application/json"}
                connection.request("POST", "/predict", BAD[turn % len(BAD)], kind)
                self.world.results.refused_with(connection.getresponse().status)
            except OSError:
                self.world.results.refused_with(0)  # cut off while sending too much
            finally:
                connection.close()
            time.sleep(0.02)

    def _dawdle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 100\r\n\r\n{")
            status = client.recv(100).split(b" ")
            self.world.results.refused_with(int(status[1]) if len(status) > 1 else 0)


@dataclass
class World:
    """What clients share."""

    bodies: list[tuple[bytes, str]]
    expected: offramp.runtime.RunOutput
    results: Results = field(default_factory=Results)


def memory(process: psutil.Process) -> float:
    """MB that only the server's processes use."""
    family = [process, *process.children(recursive=True)]
    return float(sum(each.memory_full_info().uss for each in family)) / 2**20


def load(world: World, port: int, clients: int, seconds: float) -> None:
    """Start all clients, and wait for them."""
    until = time.monotonic() + seconds
    good = [Client(number, port, until, world) for number in range(clients)]
    bad = [BadClient(number, port, until, world) for number in range(clients // 8)]
    for thread in (*good, *bad):
        thread.start()
    for thread in (*good, *bad):
        thread.join()


class MemoryMonitor(threading.Thread):
    """Measures the server's memory every second."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.seen, self.done = process, [memory(process)], threading.Event()

    def run(self) -> None:
        """Until it is stopped."""
        while not self.done.wait(1):
            self.seen.append(memory(self.process))

    def quarters(self) -> str:
        """At the start, after each quarter of the time, and at most."""
        self.done.set()
        last = len(self.seen) - 1
        shown = (f"{self.seen[last * part // 4]:.0f}" for part in range(5))
        return f"{' / '.join(shown)}, at most {max(self.seen):.0f}"


def report(results: Results, seconds: float, monitor: MemoryMonitor) -> None:
    """Print what was seen."""
    times = torch.tensor(sorted(results.seconds))
    quantiles = torch.tensor([0.5, 0.9, 0.99, 0.999])
    shown = (f"{1000 * value:.0f}" for value in torch.quantile(times, quantiles).tolist())
    print(f"answers            {len(times)} ({len(times) / seconds:.0f} per second)")
    print(
        f"latency ms         p50 / p90 / p99 / p99.9 / max: {' / '.join(shown)} / "
        f"{1000 * float(times[-1]):.0f}"
    )
    print(f"lost or mixed up   {sum(results.wrong.values())} {dict(results.wrong) or ''}")
    print(f"refused            {dict(sorted(results.refused.items()))} (by status; 0: cut off)")
    print(f"server memory MB   at 0 / 25 / 50 / 75 / 100 % of the time: {monitor.quarters()}")


def main() -> None:
    """Start a server, load it, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bodies, expected = prepare(Path(folder))
        process, port = start(Path(folder), asked.workers)
        try:
            load(World(bodies, expected), port, asked.clients, asked.seconds / 5)  # warm up
            world, monitor = World(bodies, expected), MemoryMonitor(psutil.Process(process.pid))
            monitor.start()
            load(world, port, asked.clients, asked.seconds)
            report(world.results, asked.seconds, monitor)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


if __name__ == "__main__":
    main()
