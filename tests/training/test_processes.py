"""Two processes on this machine do what one does."""

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.training import train
from offramp.training.distributed import Processes

SCRIPT = Path(__file__).with_name("run_training.py")


def launch(folder, processes):
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            # What torchrun and `accelerate launch` set.
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
        assert process.wait(timeout=240) == 0, process.stderr.read().decode()
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(processes)]


def check_weights(alone, first, second):
    assert first["fingerprint"] == second["fingerprint"]
    for key, values in alone["weights"].items():
        found = torch.tensor(first["weights"][key])
        torch.testing.assert_close(found, torch.tensor(values), atol=1e-4, rtol=0)


def check_ledgers(one, two):
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(one.labels, two.labels)
    assert one.network == two.network
    assert one.costs.tolist() == two.costs.tolist()


def accuracies(folder):
    lines = (folder / "frozen" / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["accuracy"] for line in lines]


def test_a_batch_that_cannot_be_shared_out_is_refused(convnet, data, quick, monkeypatch):
    three = Processes(0, 3, torch.device("cpu"))
    monkeypatch.setattr(Processes, "here", lambda device: three)
    with pytest.raises(ConfigError, match=r"`batch_size` must be a multiple of the 3 processes"):
        train(convnet, data, config=quick)


def test_two_processes_do_what_one_does(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "one").mkdir()
    runpy.run_path(str(SCRIPT))["main"](tmp_path / "one", "shared")
    alone = json.loads((tmp_path / "one" / "result-0.json").read_text())
    first, second = launch(tmp_path / "two", 2)
    assert first["again"]["fingerprint"] == first["frozen"]["fingerprint"]
    for name in ("whole", "frozen", "again"):  # ten steps on half the batch each
        check_weights(alone[name], first[name], second[name])
    for rank in range(2):
        ledgers = ("one/ledger-0", f"two/ledger-{rank}")
        check_ledgers(*(Ledger.load(tmp_path / name) for name in ledgers))
    assert accuracies(tmp_path / "one") == accuracies(tmp_path / "two")
