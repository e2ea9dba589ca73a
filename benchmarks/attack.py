"""Attacks on a server over loopback: what they cost, and whether others are still answered.

Run: python benchmarks/attack.py [--only malformed bomb ...] [--requests 10000] [--seconds 30]

`offramp serve` runs an export of a small untrained network; a cascade of callables is served by a
process of its own. While an attack runs, one client asks `/health` all the time. All traffic stays
on this machine, and every attack ends by itself.
"""

import argparse
import http.client
import io
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import offramp
from offramp.data.decoding import Normalization
from offramp.serving.images import ImageReader, Reading

Answers = list[list[dict[str, Any]]]
"""By export and row."""
SIZE, ROWS, TOKEN = 32, 64, "only-for-benchmarks"
JSON = {"Content-Type": "application/json"}
CASCADE = """
import sys, numpy as np, offramp
from offramp.serving import ServeConfig, serve
def one(items): return [(1, 0.5 if len(x) % 2 else 0.9, 1.0) for x in items]
def two(items): return [(1, 0.99, 4.0) for x in items]
cascade = offramp.Cascade([one, two])
ledger = cascade.record(([np.zeros(n % 5 + 1) for n in range(90)], [1] * 90), "all")
held_out, val, _ = ledger.partition()
policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.9)
config = ServeConfig(port=int(sys.argv[1]))
serve(cascade, config, policy=policy, read_item=np.asarray)
"""


def prepare(folder: Path) -> tuple[list[Path], Answers, np.ndarray]:
    """Two exports of one network that read and name differently; inputs, and what each answers."""
    torch.manual_seed(0)
    network = offramp.build("thin-resnet", num_classes=10, image_size=SIZE, at=3, depth=14).eval()
    for weight in network.heads.parameters():
        weight.data.mul_(10)
    pixels = torch.randint(256, (ROWS + 300, 3, SIZE, SIZE), dtype=torch.uint8)
    data = TensorDataset(Normalization()(pixels[ROWS:]), torch.arange(300) % 10)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    exports, expected = [], []
    for number, budget in enumerate((0.6, 0.9)):
        scorer = (offramp.MaxProbability(), offramp.scorers.Entropy())[number]
        policy = offramp.Policy(scorer).fit(held_out).tune(val, "geometric").at(budget=budget)
        normal = Normalization((0.5 - number / 9,) * 3, (0.25,) * 3)
        names = tuple(f"{'ab'[number]}{label}" for label in range(10))
        notes = asdict(Reading(ImageReader(SIZE, normalization=normal), names))
        exports.append(folder / f"export-{number}")
        offramp.export(network, policy, exports[-1], full=False, notes=notes)
        runner = offramp.OnnxRunner(exports[-1], threads=1)
        expected.append(runner(normal(pixels[:ROWS].numpy())).records(names))
    return exports, expected, pixels[:ROWS].numpy()


def png(pixels: np.ndarray) -> bytes:
    """Pixels `[3, H, W]` as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


class Server:
    """A server on a free port, and how it fares."""

    def __init__(self, command: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        command = [each.replace("PORT", str(self.port)) for each in command]
        environment = {**os.environ, "OFFRAMP_ADMIN_TOKEN": TOKEN}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=self.log, stderr=self.log
        )
        began = time.monotonic()
        while self.ask("GET", "/health", timeout=5)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > began + 240:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        self.slowest, self.unhealthy, self.peak = 0.0, 0, 0.0

    def ask(
        self, method: str, path: str, body: bytes = b"", timeout: float = 60, **headers: str
    ) -> tuple[int, bytes]:
        """One request; status 0 where there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, {**JSON, **named})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def memory(self) -> float:
        """MB that only its processes use."""
        family = [psutil.Process(self.process.pid)]
        family += family[0].children(recursive=True)
        return float(sum(each.memory_info().rss for each in family)) / 2**20

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Ask for its health, and measure its memory, all the time."""
        over = threading.Event()
        self.slowest, self.unhealthy, self.peak = 0.0, 0, self.memory()

        def watch() -> None:
            while not over.wait(0.02):
                began = time.monotonic()
                self.unhealthy += self.ask("GET", "/health")[0] != 200
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.peak = max(self.peak, self.memory())

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        over.set()
        thread.join()

    @property
    def fared(self) -> str:
        """What was seen while it was watched."""
        return (
            f"health at most {self.slowest:.2f} s, {self.unhealthy} times not 200; "
            f"memory at most {self.peak:.0f} MB"
        )

    def printed(self) -> str:
        """What it has logged."""
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()


def malformed(chance: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that nobody should answer with a 200, or with a 500."""
    numbers = json.dumps(np.zeros((3, SIZE, SIZE)).tolist()).encode()
    deep = b"[" * chance.choice([10, 1000, 100_000])
    odd = [
        b"NaN",
        b"1e999",
        b'"1"',
        b"true",
        b"null",
        b"{}",
        b"[]",
        deep,
        b"9" * 5000,
        b'"\\ud800"',
    ]
    npy = io.BytesIO()
    np.save(npy, np.zeros((3, SIZE, chance.choice([1, SIZE]))))
    cut = npy.getvalue()[: chance.randrange(1, 200)]
    picture = bytearray(png(np.zeros((3, 40, 40), np.uint8)))
    picture[chance.randrange(8, len(picture))] ^= 1 << chance.randrange(8)
    value = chance.choice(odd)
    bodies = [
        (b'{"inputs": ' + value + b"}", "application/json"),
        (b'{"image": ' + value + b"}", "application/json"),
        (b'{"id": ' + value + b', "inputs": 1}', "application/json"),
        (b'{"' + b"k" * chance.randrange(9000) + b'": 1}', "application/json"),
        (b'{"a\\ud800": ' + value + b"}", "application/json"),
        (numbers[: chance.randrange(len(numbers))], "application/json"),
        (numbers.replace(b"0.0", value[:20], 1), "application/json"),
        (chance.randbytes(chance.randrange(3000)), "application/json"),
        (chance.randbytes(chance.randrange(3000)), "image/png"),
        (bytes(picture[: chance.randrange(len(picture))]), "image/png"),
        (bytes(picture), "image/jpeg"),
        (cut, "application/x-npy"),
        (b"\x93NUMPY\x01\x00" + chance.randbytes(60), "application/x-npy"),
        (b"[" * 5000, "application/json"),
    ]
    body, kind = chance.choice(bodies)
    path = chance.choice(["/predict"] * 8 + ["/admin/budget", "/admin/reload", "/x\x7f", "/info"])
    method = chance.choice(["POST"] * 8 + ["PUT", "DELETE", "GET"])
    headers = {"Content-Type": kind, "X-Request-ID": "x" * chance.choice([1, 300])}
    if chance.random() < 0.3:
        headers["Authorization"] = chance.choice([f"Bearer {TOKEN}", "Bearer \xe4", "Basic"])
    return method, path, body, headers


HEADS = (
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /predict HTTP/9.9\r\nHost: \x00\r\n\r\n",
)


def attack_malformed(server: Server, requests: int) -> str:
    """Malformed bodies, heads, paths and headers from eight clients."""
    counts: Counter[int] = Counter()

    def client(number: int) -> None:
        chance = random.Random(number)
        for _ in range(requests // 8):
            if chance.random() < 0.1:
                counts[head(chance.choice(HEADS))] += 1
                continue
            method, path, body, headers = malformed(chance)
            named = {key.replace("-", "_"): value for key, value in headers.items()}
            counts[server.ask(method, path.replace("\x7f", "%7f"), body, 60, **named)[0]] += 1

    def head(content: bytes) -> int:
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 30) as raw:
            raw.sendall(content)
            raw.shutdown(socket.SHUT_WR)
            status = raw.recv(100).split(b" ")
            return int(status[1]) if len(status) > 1 else 0
        return 0

    with server.watched(), ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    tracebacks = server.printed().count("Traceback")
    faults = sum(count for status, count in counts.items() if status >= 500)
    shown = dict(sorted(counts.items()))
    return f"{shown}, {faults} of 5xx, {tracebacks} tracebacks; {server.fared}"


def attack_bomb(server: Server) -> str:
    """Texts next to a long one, of which an array would take terabytes."""
    shown = []
    with server.watched():
        for letters, texts in ((50_000, 5_000), (1_000_000, 700_000)):
            item = b'["' + b"x" * letters + b'"' + b',""' * texts + b"]"
            began = time.monotonic()
            status = server.ask("POST", "/predict", b'{"item": ' + item + b"}", timeout=120)[0]
            size = (letters + 3 * texts) / 1000
            shown.append(f"{size:.0f} kB: {status} in {time.monotonic() - began:.2f} s")
    return f"{', '.join(shown)}; {server.fared}"


def attack_pixels(server: Server) -> str:
    """Sixteen small files of many pixels at once."""
    large = png(np.zeros((3, 4000, 4000), np.uint8))
    before, began = server.memory(), time.monotonic()
    with server.watched(), ThreadPoolExecutor(16) as clients:
        asked = [
            clients.submit(server.ask, "POST", "/predict", large, Content_Type="image/png")
            for _ in range(16)
        ]
        statuses = Counter(each.result()[0] for each in asked)
    seconds = time.monotonic() - began
    return f"{dict(statuses)} in {seconds:.1f} s; {before:.0f} MB before; {server.fared}"


def attack_silent(server: Server) -> str:
    """Connections that send nothing."""
    silent = []
    for _ in range(1010):
        with suppress(OSError):
            silent.append(socket.create_connection(("127.0.0.1", server.port), 5))
    body = json.dumps({"inputs": np.zeros((3, SIZE, SIZE)).tolist()}).encode()
    with server.watched():
        statuses = Counter(server.ask("POST", "/predict", body, timeout=5)[0] for _ in range(20))
        time.sleep(15)
    closed = 0
    for each in silent:
        each.settimeout(0.001)
        with suppress(TimeoutError):
            closed += each.recv(1) == b""
        each.close()
    return (
        f"requests {dict(statuses)}; {closed} of {len(silent)} closed after 15 s; {server.fared}"
    )


def attack_gone(server: Server) -> str:
    """Clients that leave before they are answered, and one that waits."""
    body = json.dumps({"inputs": np.zeros((3, SIZE, SIZE)).tolist()}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    whole = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    over = threading.Event()

    def leave() -> None:
        while not over.wait(0.05):
            with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 5) as raw:
                raw.sendall(whole)

    def median() -> float:
        times = []
        for _ in range(60):
            began = time.monotonic()
            server.ask("POST", "/predict", body)
            times.append(time.monotonic() - began)
        return 1000 * float(np.median(times))

    alone = median()
    leaving = [threading.Thread(target=leave) for _ in range(20)]
    for thread in leaving:
        thread.start()
    time.sleep(1)
    beside = median()
    over.set()
    for thread in leaving:
        thread.join()
    return f"p50 {alone:.0f} ms alone, {beside:.0f} ms next to 20 clients that leave"


class Load:
    """Clients that send images and compare the answers with those of either export."""

    def __init__(self, server: Server, pixels: np.ndarray, expected: Answers) -> None:
        self.server, self.expected = server, expected
        self.bodies = [png(each) for each in pixels]
        self.over = threading.Event()
        self.times: list[float] = []
        self.problems: Counter[str] = Counter()
        self.oldest = 0  # the export that may still answer what is sent from now on
        self.known = [{row["name"][0] for row in each}.pop() for each in expected]

    def client(self, number: int) -> None:
        """Ask over one connection until the time is over."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        turn = number * 7
        while not self.over.is_set():
            row, turn = turn % ROWS, turn + 1
            oldest, began = self.oldest, time.monotonic()
            try:
                headers = {"Content-Type": "image/png"}
                connection.request("POST", "/predict", self.bodies[row], headers)
                answer = connection.getresponse()
                found, status = json.loads(answer.read()), answer.status
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.problems[f"lost: {type(error).__name__}"] += 1
                continue
            self.times.append(time.monotonic() - began)
            if status != 200:
                self.problems[f"status {status}"] += 1
            elif (problem := self.problem(found, row, oldest)) is not None:
                self.problems[problem] += 1

    def problem(self, found: dict[str, Any], row: int, oldest: int) -> str | None:
        """What is wrong with an answer; batches may differ in the last bits."""
        which = self.known.index(found["name"][0])
        wanted = self.expected[which][row]
        same = (found["name"], found["exit"]) == (wanted["name"], wanted["exit"])
        if not same or abs(found["confidence"] - wanted["confidence"]) > 1e-3:
            return "mixed"
        return None if oldest < 0 or which == oldest or self.oldest != oldest else "another export"

    @contextmanager
    def running(self, clients: int) -> Iterator[None]:
        """So many clients, as long as the block runs."""
        threads = [threading.Thread(target=self.client, args=[each]) for each in range(clients)]
        for thread in threads:
            thread.start()
        yield
        self.over.set()
        for thread in threads:
            thread.join()

    def shown(self) -> str:
        """How many answers, how fast, and what was wrong."""
        p50, p99 = (1000 * float(np.quantile(self.times, share)) for share in (0.5, 0.99))
        wrong = sum(self.problems.values())
        return (
            f"{len(self.times)} answers, {wrong} wrong {dict(self.problems) or ''}, "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )


def reload_under_load(
    folder: Path, exports: list[Path], pixels: np.ndarray, expected: Answers
) -> str:
    """Two workers and eight clients, while the export is replaced and read again ten times."""
    served = folder / "served"
    served.symlink_to(exports[0])
    server = Server(["-m", "offramp", "serve", str(served), "--port", "PORT", "--workers", "2"])
    load, seconds = Load(server, pixels, expected), 0.0
    statuses: Counter[int] = Counter()
    try:
        with load.running(8):
            time.sleep(1)
            for turn in range(1, 11):
                fresh = folder / f"link-{turn}"
                fresh.symlink_to(exports[turn % 2])
                fresh.replace(served)
                load.oldest = -1 - turn  # either export may answer
                began = time.monotonic()
                token = f"Bearer {TOKEN}"
                status = server.ask("POST", "/admin/reload", timeout=300, Authorization=token)[0]
                seconds = max(seconds, time.monotonic() - began)
                statuses[status] += 1
                load.oldest = turn % 2
                time.sleep(0.5)
        return f"{dict(statuses)}, at most {seconds:.1f} s; {load.shown()}"
    finally:
        server.stop()


def drains(export: Path, pixels: np.ndarray, expected: Answers, times: int) -> str:
    """Servers that are stopped under load: answers that were lost though they were asked for."""
    counts: Counter[str] = Counter()
    for _ in range(times):
        server = Server(["-m", "offramp", "serve", str(export), "--port", "PORT"])
        load, stopped = Load(server, pixels, expected), [float("inf")]

        def last(
            load: Load = load, server: Server = server, stopped: list[float] = stopped
        ) -> None:
            while True:
                sent = time.monotonic()
                status = server.ask("POST", "/predict", load.bodies[0], Content_Type="image/png")[
                    0
                ]
                if status == 0:  # refused, or lost if it was sent before the signal
                    counts["lost"] += sent < stopped[0]
                    return
                counts[str(status)] += 1

        threads = [threading.Thread(target=last) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        stopped[0] = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        counts[f"exit code {server.process.wait(60)}"] += 1
        for thread in threads:
            thread.join()
    return str(dict(counts))


def start_up(export: Path) -> str:
    """Seconds of the processor from the start until requests are answered, without torch."""
    code = "import sys; sys.modules['torch'] = None; from offramp.__main__ import main; main()"
    server = Server(["-c", code, "serve", str(export), "--port", "PORT"])
    times = psutil.Process(server.process.pid).cpu_times()
    server.stop()
    return f"{times.user + times.system:.2f} s of CPU"


def main() -> None:
    """Attack, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--drains", type=int, default=20)
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exports, expected, pixels = prepare(folder)
        serve = ["-m", "offramp", "serve", str(exports[0]), "--port", "PORT", "--threads", "1"]

        def against(command: list[str], attack: Callable[[Server], str]) -> str:
            server = Server(command)
            try:
                return attack(server)
            finally:
                server.stop()

        def loaded(server: Server, clients: int) -> str:
            load, before = Load(server, pixels, expected[:1]), server.memory()
            with server.watched(), load.running(clients):
                time.sleep(asked.seconds)
            return f"{load.shown()}; {before:.0f} MB before; {server.fared}"

        attacks: dict[str, Callable[[], str]] = {
            "start": lambda: start_up(exports[0]),
            "malformed": lambda: against(serve, lambda s: attack_malformed(s, asked.requests)),
            "bomb": lambda: against(["-c", CASCADE, "PORT"], attack_bomb),
            "pixels": lambda: against(serve, attack_pixels),
            "silent": lambda: against(serve, attack_silent),
            "gone": lambda: against(serve, attack_gone),
            "load-16": lambda: against(serve, lambda server: loaded(server, 16)),
            "load-64": lambda: against(serve, lambda server: loaded(server, 64)),
            "reload": lambda: reload_under_load(folder, exports, pixels, expected),
            "drains": lambda: drains(exports[0], pixels, expected[:1], asked.drains),
        }
        for title, attack in attacks.items():
            if not asked.only or title in asked.only:
                print(f"{title:10} {attack()}", flush=True)


if __name__ == "__main__":
    main()
