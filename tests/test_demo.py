"""The demo goes from nothing to a page; what it made is not made again, and survives a kill."""

import multiprocessing
import os
import signal

import pytest
import torch
from typer.testing import CliRunner

from offramp import files, synthetic, zoo
from offramp.cli.app import app
from offramp.demo import demo

# Each life is killed just before the first such file takes its place; the next one goes on.
DEATHS = (
    "network/checkpoint/checkpoint.json",
    "ledgers/val/done.json",
    "cifar100/comparison.csv",
    "done.json",
)


@pytest.fixture(autouse=True, scope="module")
def _shipped():
    """Small made-up ledgers in place of the shipped ones."""
    made = synthetic.ledgers(seed=0, samples=400, exits=4, classes=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "cifar100", lambda: made)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a demo that was run in one piece, and what the command said."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def run(folder):
    command = ["demo", "--quick", "--out", str(folder)]
    return CliRunner().invoke(app, command, catch_exceptions=False).stdout


def written(folder):
    """Every file and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_demo_goes_from_nothing_to_a_page_and_then_does_nothing(whole):
    folder, printed = whole
    for words in ("Temperature scaling", "digits", "cifar100", f"report: {folder}/report.html"):
        assert words in printed
    assert "<h1>Demo: from nothing to a policy</h1>" in (folder / "report.html").read_text()
    assert (folder / "digits" / "comparison.md").is_file()
    before = written(folder)
    assert run(folder) == printed
    assert written(folder) == before


def live_until(folder, death):
    """Run the demo in this process, and kill it at a certain write."""
    replace = files.Path.replace

    def die(self, target):
        if target == folder / death:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    files.Path.replace = die
    torch.set_num_threads(1)
    demo(folder, quick=True, progress=False)


def results(folder):
    """Every table and figure of the demo, without what the clock says."""
    found = demo(folder, quick=True, progress=False)
    for comparison in found.values():
        for method in comparison.methods:
            method.seconds = 0.0
    return {name: comparison.to_json() for name, comparison in found.items()}


@pytest.mark.slow
def test_killed_in_every_step_the_demo_ends_with_the_same_figures(whole, tmp_path):
    fork = multiprocessing.get_context("fork")
    for death in DEATHS:
        process = fork.Process(target=live_until, args=(tmp_path / "pieces", death))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"nothing was written to {death}"
    assert results(tmp_path / "pieces") == results(whole[0])
