"""Two processes on this machine do what one does."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.training import train
from offramp.training.batches import Samples, compute_rows
from offramp.training.processes import Processes

SCRIPT = Path(__file__).with_name("run_training.py")


def check_weights(alone, first, second):
    assert first["fingerprint"] == second["fingerprint"]
    for key, values in alone["weights"].items():
        found = torch.tensor(first["weights"][key])
        torch.testing.assert_close(found, torch.tensor(values), atol=1e-4, rtol=0)


def check_ledgers(one, two):
    assert np.array_equal(one.logits, two.logits)
    assert np.array_equal(one.labels, two.labels)
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


def rows_in(world, samples, batch_size):
    """What each of several processes, run one after the other, computes of numbered samples."""
    numbers = torch.arange(samples)
    data = Samples(TensorDataset(numbers[:, None].float(), numbers))
    given = [[] for _ in range(world)]

    def computed(rank, gather):
        processes = Processes(rank, world, torch.device("cpu"))
        object.__setattr__(processes, "gather", gather)
        return compute_rows(data, numbers, batch_size, processes, lambda batch: [*batch])

    def keep(rank):
        def gather(rows):
            given[rank].append(rows)
            return [rows.new_zeros(batch_size, *rows.shape[1:])] * world

        return gather

    def exchange():
        rounds = zip(*given, strict=True)
        return lambda rows: [padded(each, batch_size) for each in next(rounds)]

    for rank in range(world):
        computed(rank, keep(rank))
    return [computed(rank, exchange()) for rank in range(world)]


def padded(rows, size):
    return torch.cat([rows, rows.new_full((size - len(rows), *rows.shape[1:]), -1)])


@pytest.mark.parametrize(("world", "samples"), [(1, 9), (2, 9), (3, 20), (3, 5), (4, 3)])
def test_rows_are_in_the_order_of_the_samples_however_many_processes_compute(world, samples):
    for inputs, labels in rows_in(world, samples, batch_size=4):
        assert labels.tolist() == list(range(samples))
        assert inputs[:, 0].tolist() == labels.tolist()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes of torchrun leave and print, of which the second dies in the end."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", SCRIPT, folder, "shared-and-killed"]
    ended = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return folder, ended


def test_two_processes_do_what_one_does(two, tmp_path):
    folder, ended = two
    runpy.run_path(str(SCRIPT))["main"](tmp_path, "shared")
    alone = json.loads((tmp_path / "result-0.json").read_text())
    results = [folder / f"result-{rank}.json" for rank in range(2)]
    assert all(path.exists() for path in results), ended.stderr
    first, second = (json.loads(path.read_text()) for path in results)
    assert first["again"]["fingerprint"] == first["frozen"]["fingerprint"]
    for name in ("whole", "frozen", "again"):  # ten steps on half the batch each
        check_weights(alone[name], first[name], second[name])
    for rank in range(2):
        ledgers = (tmp_path / "ledger-0", folder / f"ledger-{rank}")
        check_ledgers(*map(Ledger.load, ledgers))
    assert accuracies(tmp_path) == accuracies(folder)


def test_no_process_waits_for_one_that_has_failed_or_died(two):
    folder, ended = two
    assert ended.returncode == 1
    assert "exitcode  : -9" in ended.stderr
    errors = [(folder / f"error-{rank}.txt").read_text() for rank in range(2)]
    assert errors[0] == "ConfigError: nothing can be written"
    assert errors[1] == f"ProcessError: the first process failed with {errors[0]}"
