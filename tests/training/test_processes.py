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


def start(folder, mode):
    """Two processes, as torchrun and `accelerate launch` start them."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(2):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, SCRIPT, folder, mode]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
    return running


def launch(folder):
    for process in start(folder, "shared"):
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said.decode()
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


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
    first, second = launch(tmp_path / "two")
    assert first["again"]["fingerprint"] == first["frozen"]["fingerprint"]
    for name in ("whole", "frozen", "again"):  # ten steps on half the batch each
        check_weights(alone[name], first[name], second[name])
    for rank in range(2):
        ledgers = ("one/ledger-0", f"two/ledger-{rank}")
        check_ledgers(*(Ledger.load(tmp_path / name) for name in ledgers))
    assert accuracies(tmp_path / "one") == accuracies(tmp_path / "two")


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        ("SIGSTOP", "offramp: process 1 gave no sign of life for 3 seconds; this process stops"),
        ("SIGKILL", "ProcessError: the connection to another process is lost, which may have"),
    ],
)
def test_if_one_process_fails_or_dies_the_other_one_stops(signal, message, tmp_path):
    pytest.importorskip("accelerate")
    first, second = start(tmp_path / "two", signal)
    try:
        _, said = first.communicate(timeout=240)
    finally:
        second.kill()
        second.communicate()
    assert first.returncode == 1
    assert message in said.decode()
    errors = [(tmp_path / "two" / f"error-{rank}.txt").read_text() for rank in range(2)]
    assert errors[0] == "ConfigError: nothing can be written"
    assert errors[1].startswith("ProcessError: process 0 failed with ConfigError: nothing can be")
