"""A run that is killed in any step goes on to the identical result."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from .tiny import tiny_run

# Each life is killed just before the first such file takes its place; the next one goes on.
DEATHS = (
    "networks/*/checkpoint/checkpoint.json",
    "networks/*/network/network.json",
    "networks/*/ledgers/val/ledger.json",
    "out/tiny/comparison.json",
    "out/tiny/done.json",
    "out/done.json",
)


def live_until(folder, death):
    """Run in this process, and kill it at a certain write."""
    replace = Path.replace

    def die(self, target):
        if target.relative_to(folder).match(death):
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = die
    torch.set_num_threads(1)
    tiny_run(folder)


def results(folder):
    """Every result of a run, without what the clock says."""
    place = folder / "out" / "tiny"
    comparison = json.loads((place / "comparison.json").read_text())
    del comparison["sha256"]
    for method in comparison["methods"]:
        method["seconds"] = None
    study = json.loads((folder / "out" / "study.json").read_text())
    texts = [(place / name).read_text() for name in ("comparison.csv", "paper.md")]
    return [comparison, study, *texts]


@pytest.mark.slow
def test_killed_in_every_step_a_run_ends_with_the_same_results(finished, tmp_path):
    fork = multiprocessing.get_context("fork")
    for death in DEATHS:
        process = fork.Process(target=live_until, args=(tmp_path, death))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"nothing was written to {death}"
    assert tiny_run(tmp_path) == []
    assert results(tmp_path) == results(finished[0])
