"""A run that is killed in any step goes on to the identical result."""

import multiprocessing
import os
import signal

import pytest
import torch

from offramp import files
from offramp.studies import run

# Each life is killed just before the first such file takes its place; the next one goes on.
DEATHS = (
    "cache/network/*/checkpoint/checkpoint.json",
    "cache/network/*/network/network.json",
    "cache/network/*/done.json",
    "cache/ledger/*/ledger/ledger.json",
    "cache/comparison/*/comparison.json",
    "cache/comparison/*/done.json",
    "out/tiny/comparison.csv",
    "out/report.html",
    "out/done.json",
)


def live_until(study, folder, death):
    """Run the study in this process, and kill it at a certain write."""
    replace = files.Path.replace

    def die(self, target):
        if target.relative_to(folder).match(death):
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    files.Path.replace = die
    torch.set_num_threads(1)
    run(study, folder / "out", cache=folder / "cache", progress=False)


def results(folder):
    """Everything in a folder but what the clock says."""
    files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in ("timings.json", "done.json") and path.suffix != ".tmp"
    }


@pytest.mark.slow
def test_killed_in_every_step_a_run_ends_with_the_same_files(tiny, tmp_path):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    run(tiny, whole / "out", cache=whole / "cache", progress=False)
    fork = multiprocessing.get_context("fork")
    for death in DEATHS:
        process = fork.Process(target=live_until, args=(tiny, pieces, death))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"nothing was written to {death}"
    last = run(tiny, pieces / "out", cache=pieces / "cache", progress=False)
    assert [each.partition(":")[0] for each in last.done] == ["report"]
    assert results(pieces) == results(whole)
    assert len(results(whole)) > 5
