"""Two processes on this machine do what one does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from offramp.ledger import Ledger

SCRIPT = Path(__file__).with_name("run_training.py")


def launch(folder, processes):
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(processes):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if processes > 1:
            # What torchrun and `accelerate launch` set.
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        command = [sys.executable, SCRIPT, folder, "shared"]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
    for process in running:
        assert process.wait(timeout=90) == 0, process.stderr.read().decode()
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder, and what one process and each of two processes came to."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("runs")
    return folder, launch(folder / "one", 1), launch(folder / "two", 2)


@pytest.mark.parametrize("name", ["whole", "frozen"])
def test_two_processes_on_half_the_batch_each_follow_one(runs, name):
    _, (alone,), (first, second) = runs
    assert first[name]["fingerprint"] == second[name]["fingerprint"]
    for key, values in alone[name]["weights"].items():
        found = torch.tensor(first[name]["weights"][key])
        torch.testing.assert_close(found, torch.tensor(values), atol=1e-4, rtol=0)


def test_the_ledger_of_two_processes_is_that_of_one(runs):
    one = Ledger.load(runs[0] / "one" / "ledger-0")
    for rank in range(2):
        two = Ledger.load(runs[0] / "two" / f"ledger-{rank}")
        assert torch.equal(one.logits, two.logits)
        assert torch.equal(one.labels, two.labels)
        assert one.network == two.network
        assert one.costs.tolist() == two.costs.tolist()


def test_one_of_two_processes_writes_the_files(runs):
    lines = [
        (runs[0] / name / "frozen" / "history.jsonl").read_text().splitlines()
        for name in ("one", "two")
    ]
    one, two = ([json.loads(line)["accuracy"] for line in each] for each in lines)
    assert one == two
