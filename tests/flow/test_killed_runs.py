"""A run that is killed at any write goes on to the identical result."""

import multiprocessing
import os
import signal

import pytest
import torch

from offramp import storage
from offramp.flow import run

LASTS = 4  # writes that a life begins; the last of them never takes effect


def live_until_a_write(study, folder, number):
    """Run the study in this process, and kill it just before a write takes effect."""
    replace, left = storage.Path.replace, number

    def die(self, target):
        nonlocal left
        left -= 1
        if left == 0:
            with (folder / "deaths.txt").open("a") as file:
                file.write(f"{target.relative_to(folder)}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    storage.Path.replace = die
    torch.set_num_threads(1)
    run(study, folder / "out", cache=folder / "cache", progress=False)


def lives(study, folder, number):
    """Start again until a run survives; what each was about to write when it was killed."""
    folder.mkdir()
    fork = multiprocessing.get_context("fork")
    for _ in range(100):
        process = fork.Process(target=live_until_a_write, args=(study, folder, number))
        process.start()
        process.join()
        if process.exitcode == 0:
            return (folder / "deaths.txt").read_text().split()
        assert process.exitcode == -signal.SIGKILL
    raise AssertionError("it never ended")


def results(folder):
    """Everything in a folder but what the clock says."""
    left_out = ("timings.json", "done.json")
    files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in left_out
    }


@pytest.mark.slow
def test_killed_in_every_step_a_run_ends_with_the_same_files(tiny, tmp_path):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    run(tiny, whole / "out", cache=whole / "cache", progress=False)
    deaths = lives(tiny, pieces, LASTS)
    for step in ("cache/network", "cache/ledger", "cache/comparison", "out/"):
        assert any(place.startswith(step) for place in deaths), f"no run was killed in {step}"
    assert results(pieces) == results(whole)
    assert not [path for path in (pieces / "out").rglob("*") if path.name.endswith(".tmp")]
