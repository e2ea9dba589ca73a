"""Writers on a full disk, writers that are killed, and two that write into one folder."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import offramp
from offramp import Ledger, Policy, synthetic
from offramp.errors import OfframpError
from offramp.networks import EarlyExitNetwork
from offramp.report import read_comparison
from offramp.training import TrainConfig, train

from .test_mutations import KINDS, save_comparison

TIMES = int(os.environ.get("OFFRAMP_KILLS", "2"))
fork = multiprocessing.get_context("fork")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes, which is unmounted at the end."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk, spare):
    """Leave room for so many bytes."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - spare))


@pytest.mark.parametrize("spare", [4096])
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_leaves_what_was_there(kind, spare, small_disk):
    save, load = KINDS[kind]
    folder = small_disk / "folder"
    save(folder)
    before, names = load(folder), sorted(path.name for path in folder.rglob("*"))
    fill(small_disk, spare)
    try:
        save(folder)
    except (OSError, OfframpError) as error:
        assert str(error)
        assert kind == "comparison" or sorted(path.name for path in folder.rglob("*")) == names
    (small_disk / "ballast").unlink()
    found = load(folder)
    assert kind == "export" or found == before
    save(folder)
    load(folder)


def alternate(folder, sources, until):
    while time.monotonic() < until:
        for source in sources:
            source.save(folder)


def test_two_processes_that_write_into_one_folder_leave_one_of_both(tmp_path):
    """And a reader sees one or the other at any time."""
    ledgers = synthetic.ledgers(seed=0, samples=60)
    folder, until = tmp_path / "ledger", time.monotonic() + 1.5
    ledgers["val"].save(folder)
    known = {ledger.data_fingerprint for ledger in ledgers.values()}
    writers = [
        fork.Process(target=alternate, args=(folder, list(ledgers.values()), until))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(Ledger.load(folder).data_fingerprint)
    assert seen <= known and len(seen) > 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0


def killed_at_random(work, number):
    """Start work in a process, and kill it somewhere on its way; False if it was quicker."""
    process = fork.Process(target=work)
    process.start()
    process.join(random.Random(number).uniform(0.02, 0.5))
    was_alive = process.is_alive()
    if was_alive:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return was_alive


def network():
    torch.manual_seed(0)
    return offramp.build("convnet", num_classes=3, image_size=8, at=2)


IMAGES = torch.rand(240, 3, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(IMAGES, torch.arange(240) % 3)


def train_in(folder):
    torch.set_num_threads(1)
    config = TrainConfig(epochs=4, batch_size=32, learning_rate=0.01)
    trained = network()
    train(trained, DATA, config=config, folder=folder, progress=False)
    trained.save(folder / "network")


def record_in(folder):
    torch.set_num_threads(1)
    offramp.record(network().eval(), DATA, "val", progress=False).save(folder)


COMMANDS = {
    "train": (train_in, lambda folder: EarlyExitNetwork.load(folder / "network").fingerprint()),
    "record": (record_in, lambda folder: Ledger.load(folder).logits.tobytes()),
    "compare": (save_comparison, lambda folder: figures(read_comparison(folder)[0])),
    "fit": (
        lambda folder: (
            Policy(offramp.MaxProbability())
            .fit(LEDGERS["held_out"])
            .tune(LEDGERS["val"])
            .save(folder)
        ),
        lambda folder: Policy.load(folder).fingerprint(),
    ),
}
LEDGERS = synthetic.ledgers(seed=0, samples=300)


def figures(comparison):
    return [{**method.figures} for method in comparison.methods]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_killed_ends_with_the_same_result(command, tmp_path):
    """`OFFRAMP_KILLS=20 pytest tests/test_faults.py -s -k killed` kills each twenty times."""
    run, load = COMMANDS[command]
    run(tmp_path / "whole")
    expected, kills = load(tmp_path / "whole"), 0
    for number in range(TIMES):
        folder = tmp_path / f"killed-{number}"
        kills += killed_at_random(lambda folder=folder: run(folder), number)
        if any(folder.rglob("*.json")):
            try:
                load(folder)  # all of it, or a clear error
            except OfframpError as error:
                assert str(error)
        run(folder)
        assert load(folder) == expected
    with Path(os.devnull if TIMES < 20 else "/dev/stdout").open("w") as out:
        out.write(f"{command}: {kills} of {TIMES} killed on the way, all ended alike\n")


def test_arrays_of_a_loaded_policy_do_not_change_with_its_file(tmp_path):
    policy = Policy(offramp.MaxProbability()).fit(LEDGERS["held_out"]).tune(LEDGERS["val"])
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path)
    before = loaded.fingerprint()
    (path,) = tmp_path.glob("*.safetensors")
    content = np.memmap(path, np.uint8, "r+")
    content[-64:] = 0
    content.flush()
    assert loaded.fingerprint() == before
